// Q4_K weights: 32 nibbles take one word of four. 256 values share four words: an f16 scale and an f16 minimum,
// and for each 32 values two numbers of 6 bits that multiply them.

struct Block {
    nibbles: vec4<u32>,
    scale: vec2<f32>,
}

fn load_block(index: u32) -> Block {
    let first = 4u * (index / 8u);
    let factors = vec2<f32>(six_bit_pair(2u * first + 2u, index % 8u));
    return Block(value_at(index), unpack2x16float(scale_at(first)) * vec2<f32>(factors.x, -factors.y));
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
