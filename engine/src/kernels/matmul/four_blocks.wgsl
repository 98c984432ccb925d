fn load_four(index: u32) -> array<Block, 4> {
    return array<Block, 4>(
        load_block(index),
        load_block(index + UNIT),
        load_block(index + 2u * UNIT),
        load_block(index + 3u * UNIT),
    );
}
