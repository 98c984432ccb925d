// Q6_K weights: the low nibbles of 32 values take one word of four. 256 values share 41 halves: for each 32 values
// two words of high bits, then 16 signed bytes that multiply 16 values each, and an f16 scale for all.

struct Block {
    nibbles: vec4<u32>,
    crumbs: vec2<u32>,
    // Of the two halves of the block.
    factors: vec2<i32>,
    scale: f32,
}

fn load_block(index: u32) -> Block {
    let g = index % 8u;
    let first = 41u * (index / 8u);
    let crumbs = vec2<u32>(scale_word(first + 4u * g), scale_word(first + 4u * g + 2u));
    let bytes = bitcast<i32>(scale_word(first + 32u + g));
    let factors = vec2<i32>(bytes << 24u, bytes << 16u) >> vec2<u32>(24u);
    return Block(value_at(index), crumbs, factors, half_of(scale_word(first + 40u)));
}

fn block_scale(block: Block) -> vec2<f32> {
    return vec2<f32>(block.scale, 0.0);
}

fn block_values(block: Block, j: u32) -> vec4<f32> {
    let six = nibbles_of(block.nibbles, j) | (crumbs_of(block.crumbs, j) << vec4<u32>(4u));
    let factor = select(block.factors.x, block.factors.y, j >= 4u);
    return vec4<f32>((vec4<i32>(six) - vec4<i32>(32)) * factor);
}

fn add_block(total: f32, scale: vec2<f32>, sum: f32, inputs: f32) -> f32 {
    return fma(scale.x, sum, total);
}
