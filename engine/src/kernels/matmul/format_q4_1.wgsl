// Q4_1 weights: a block is 32 nibbles in one word of four, and a word with an f16 scale and an f16 minimum.

struct Block {
    nibbles: vec4<u32>,
    scale: vec2<f32>,
}

fn load_block(index: u32) -> Block {
    return Block(value_at(index), unpack2x16float(scale_at(index)));
}

fn block_scale(block: Block) -> vec2<f32> {
    return block.scale;
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>(nibbles_of(block.nibbles, j)));
}

// Σ (scale · q + minimum) · x = scale · Σ q · x + minimum · Σ x.
fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, fma(scale.y, inputs, total));
}
