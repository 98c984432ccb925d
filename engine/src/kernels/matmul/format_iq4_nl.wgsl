// IQ4_NL weights: a block is 32 nibbles in one word of four and an f16 scale, two scales to a word. A nibble is
// the number of one of 16 levels.

struct Block {
    nibbles: vec4<u32>,
    scale: f32,
}

fn load_block(index: u32) -> Block {
    return Block(value_at(index), half_of(scale_word(index)));
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(block.scale, 0.0);
}

// The levels are signed bytes: -127 -104 -83 -65 | -49 -35 -22 -10 | 1 13 25 38 | 53 69 89 113.
fn level(code: u32) -> i32 {
    let first = select(0xbfad9881u, 0xf6eaddcfu, (code & 4u) != 0u);
    let second = select(0x26190d01u, 0x71594535u, (code & 4u) != 0u);
    let four = select(first, second, (code & 8u) != 0u);
    return bitcast<i32>(four << (24u - 8u * (code & 3u))) >> 24u;
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    let codes = nibbles_of(block.nibbles, j);
    return vec4<f32>(vec4<i32>(level(codes.x), level(codes.y), level(codes.z), level(codes.w)));
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, total);
}
