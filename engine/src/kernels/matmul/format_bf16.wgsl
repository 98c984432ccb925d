// BF16 weights: a block is 32 values in 4 words of eight; a value is the upper half of an f32.

struct Block {
    first: u32,
}

fn load_block(index: u32) -> Block {
    return Block(index * 4u);
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    let eight = value_at(block.first + j / 2u);
    let four = select(eight.xy, eight.zw, (j & 1u) != 0u);
    return bitcast<vec4<f32>>(
        vec4<u32>(four.x << 16u, four.x & 0xffff0000u, four.y << 16u, four.y & 0xffff0000u),
    );
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return total + sum;
}
