// Q4_1 weights: a block is 32 nibbles in one word of four, and a word with an f16 scale and an f16 minimum.

struct Block {
    nibbles: vec4<u32>,
    scale: vec2<f32>,
}

fn load_block(index: u32) -> Block {
    return Block(values[index], unpack2x16float(scales[index]));
}

fn block_scale(block: Block) -> vec2<f32> {
    return block.scale;
}

// The low nibbles of the 16 bytes are values 0 to 15, the high ones 16 to 31.
fn block_values(block: Block, j: u32) -> vec4<f32> {
    let word = block.nibbles[j & 3u] >> ((j >> 2u) * 4u);
    let four = vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) & vec4<u32>(15u);
    return vec4<f32>(vec4<i32>(four));
}

// Σ (scale · q + minimum) · x = scale · Σ q · x + minimum · Σ x.
fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, fma(scale.y, inputs, total));
}
