// Q4_0 weights: a block is 32 nibbles in one word of four and an f16 scale, two scales to a word.

struct Block {
    nibbles: vec4<u32>,
    scale: f32,
}

fn load_block(index: u32) -> Block {
    let pair = unpack2x16float(scale_at(index / 2u));
    return Block(value_at(index), select(pair.x, pair.y, (index & 1u) != 0u));
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(block.scale, 0.0);
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>(nibbles_of(block.nibbles, j)) - vec4<i32>(8));
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, total);
}
