// Q3_K weights: the low two bits of 32 values take two words. 256 values share 23 halves: 8 words of third bits,
// 16 scales of 6 bits, which multiply 16 values each, and an f16 scale for all.

struct Block {
    crumbs: vec2<u32>,
    thirds: u32,
    // Of the two halves of the block.
    factors: vec2<i32>,
    scale: f32,
}

fn load_block(index: u32) -> Block {
    let two = value_at(index / 2u);
    let crumbs = select(two.xy, two.zw, (index & 1u) != 0u);
    let g = index % 8u;
    let first = 23u * (index / 8u);
    let factors = vec2<i32>(six_bit_pair(first + 16u, g)) - vec2<i32>(32);
    return Block(crumbs, scale_word(first + 2u * g), factors, half_of(scale_word(first + 22u)));
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(block.scale, 0.0);
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    let three = crumbs_of(block.crumbs, j) | (bits_of(block.thirds, j) << vec4<u32>(2u));
    let factor = select(block.factors.x, block.factors.y, j >= 4u);
    return vec4<f32>((vec4<i32>(three) - vec4<i32>(4)) * factor);
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, total);
}
