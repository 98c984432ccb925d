// Q5_K weights: 32 nibbles take one word of four. 256 values share 12 words: an f16 scale and an f16 minimum, for
// each 32 values two numbers of 6 bits that multiply them, and 8 words of fifth bits.

struct Block {
    nibbles: vec4<u32>,
    fifths: u32,
    scale: vec2<f32>,
}

fn load_block(index: u32) -> Block {
    let g = index % 8u;
    let first = 12u * (index / 8u);
    let factors = vec2<f32>(six_bit_pair(2u * first + 2u, g));
    let scale = unpack2x16float(scale_at(first)) * vec2<f32>(factors.x, -factors.y);
    return Block(value_at(index), scale_at(first + 4u + g), scale);
}

fn block_scale(block: Block) -> vec2<f32> {
    return block.scale;
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>(nibbles_of(block.nibbles, j) | (bits_of(block.fifths, j) << vec4<u32>(4u))));
}

// Σ (scale · q + minimum) · x = scale · Σ q · x + minimum · Σ x.
fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, fma(scale.y, inputs, total));
}
