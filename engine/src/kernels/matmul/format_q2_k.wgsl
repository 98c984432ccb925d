// Q2_K weights: 32 pairs of bits take two words. 256 values share five words of scales: an f16 scale and an f16
// minimum for all, then for each 16 values a byte of two nibbles that multiply them.

struct Block {
    crumbs: vec2<u32>,
    // Scales of the two halves of the block, then what is subtracted.
    scales: vec2<f32>,
    minimums: vec2<f32>,
}

fn load_block(index: u32) -> Block {
    let two = value_at(index / 2u);
    let crumbs = select(two.xy, two.zw, (index & 1u) != 0u);
    let first = 5u * (index / 8u);
    let both = unpack2x16float(scale_at(first));
    let codes = scale_at(first + 1u + index % 8u / 2u) >> (16u * (index & 1u));
    let factors = vec4<f32>(vec4<u32>(codes, codes >> 4u, codes >> 8u, codes >> 12u) & vec4<u32>(15u));
    return Block(crumbs, both.x * factors.xz, both.y * factors.yw);
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    let scale = select(block.scales.x, block.scales.y, j >= 4u);
    let minimum = select(block.minimums.x, block.minimums.y, j >= 4u);
    return fma(vec4<f32>(scale), vec4<f32>(vec4<i32>(crumbs_of(block.crumbs, j))), vec4<f32>(-minimum));
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return total + sum;
}
