// Q4_0 weights: a block is 32 nibbles in one word of four and an f16 scale, two scales to a word.

struct Block {
    nibbles: vec4<u32>,
    scale: f32,
}

fn load_block(index: u32) -> Block {
    let pair = unpack2x16float(scales[index / 2u]);
    return Block(values[index], select(pair.x, pair.y, (index & 1u) != 0u));
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(block.scale, 0.0);
}

// The low nibbles of the 16 bytes are values 0 to 15, the high ones 16 to 31.
fn block_values(block: Block, j: u32) -> vec4<f32> {
    let word = block.nibbles[j & 3u] >> ((j >> 2u) * 4u);
    let four = vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) & vec4<u32>(15u);
    return vec4<f32>(vec4<i32>(four) - vec4<i32>(8));
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, total);
}
