// F32 weights: a block is 32 values in 8 words of four. Values are loaded when they are asked for.

struct Block {
    first: u32,
}

fn load_block(index: u32) -> Block {
    return Block(index * 8u);
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(value_at(block.first + j));
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return total + sum;
}
