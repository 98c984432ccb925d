// Q5_0 weights: a block is 32 nibbles in one word of four, and three halves: an f16 scale and 32 fifth bits.

struct Block {
    nibbles: vec4<u32>,
    fifths: u32,
    scale: f32,
}

fn load_block(index: u32) -> Block {
    return Block(value_at(index), scale_word(3u * index + 1u), half_of(scale_word(3u * index)));
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(block.scale, 0.0);
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    let five = nibbles_of(block.nibbles, j) | (bits_of(block.fifths, j) << vec4<u32>(4u));
    return vec4<f32>(vec4<i32>(five) - vec4<i32>(16));
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, total);
}
