// Q8_0 weights: a block is 32 signed bytes in two words of four and an f16 scale, two scales to a word.

struct Block {
    low: vec4<u32>,
    high: vec4<u32>,
    scale: f32,
}

fn load_block(index: u32) -> Block {
    let pair = unpack2x16float(scale_at(index / 2u));
    return Block(value_at(2u * index), value_at(2u * index + 1u), select(pair.x, pair.y, (index & 1u) != 0u));
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(block.scale, 0.0);
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    let bytes = bitcast<i32>(select(block.low[j & 3u], block.high[j & 3u], j >= 4u));
    return vec4<f32>(vec4<i32>(bytes << 24u, bytes << 16u, bytes << 8u, bytes) >> vec4<u32>(24u));
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, total);
}
