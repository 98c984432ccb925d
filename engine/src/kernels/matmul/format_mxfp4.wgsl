// MXFP4 weights: a block is 32 nibbles in one word of four and a byte of exponent, four to a word. A nibble is a
// float of one sign, two exponent and one mantissa bits.

struct Block {
    nibbles: vec4<u32>,
    scale: f32,
}

fn load_block(index: u32) -> Block {
    let exponent = (scale_at(index / 4u) >> (8u * (index & 3u))) & 255u;
    // Half of 2^(exponent - 127), since the levels are doubled. The smallest two are subnormal.
    let bits = select((exponent - 1u) << 23u, 0x00200000u << (exponent & 1u), exponent < 2u);
    return Block(value_at(index), bitcast<f32>(bits));
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(block.scale, 0.0);
}

// Doubled levels 0 1 2 3 4 6 8 12, a nibble each.
fn block_values(block: Block, j: u32) -> vec4<f32> {
    let codes = nibbles_of(block.nibbles, j);
    let sizes = (vec4<u32>(0xc8643210u) >> ((codes & vec4<u32>(7u)) * 4u)) & vec4<u32>(15u);
    let size = vec4<i32>(sizes);
    return vec4<f32>(select(size, -size, (codes & vec4<u32>(8u)) != vec4<u32>(0u)));
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, total);
}
