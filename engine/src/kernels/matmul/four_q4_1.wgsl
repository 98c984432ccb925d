fn load_four(index: u32) -> array<Block, 4> {
    let four = scales_at(index / 4u);
    return array<Block, 4>(
        Block(value_at(index), unpack2x16float(four.x)),
        Block(value_at(index + 1u), unpack2x16float(four.y)),
        Block(value_at(index + 2u), unpack2x16float(four.z)),
        Block(value_at(index + 3u), unpack2x16float(four.w)),
    );
}
