fn load_four(index: u32) -> array<Block, 4> {
    let eight = scales_at(index / 8u);
    let four = select(eight.xy, eight.zw, (index & 4u) != 0u);
    let first = unpack2x16float(four.x);
    let second = unpack2x16float(four.y);
    return array<Block, 4>(
        Block(value_at(index), first.x),
        Block(value_at(index + 1u), first.y),
        Block(value_at(index + 2u), second.x),
        Block(value_at(index + 3u), second.y),
    );
}
