fn load_four(index: u32) -> array<Block, 4> {
    let eight = scales_at(index / 8u);
    let four = select(eight.xy, eight.zw, (index & 4u) != 0u);
    let first = unpack2x16float(four.x);
    let second = unpack2x16float(four.y);
    return array<Block, 4>(
        Block(value_at(2u * index), value_at(2u * index + 1u), first.x),
        Block(value_at(2u * index + 2u), value_at(2u * index + 3u), first.y),
        Block(value_at(2u * index + 4u), value_at(2u * index + 5u), second.x),
        Block(value_at(2u * index + 6u), value_at(2u * index + 7u), second.y),
    );
}
