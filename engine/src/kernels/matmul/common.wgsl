// What the three mappings of matmul share. Their sums are equal to the last bit, so that a row's result does
// not depend on how many rows are computed with it: inside a block of 32 values one chain of `fma` in rising
// order, then the blocks in rising order. Every multiplication whose product is added is written as `fma`: what
// is left to the compiler to fuse or not, it does differently in different surroundings.

struct Params {
    // Output features of this part of the weight, and where they start in a row of `out`.
    features: u32,
    first_feature: u32,
    blocks: u32,
    out_stride: u32,
    logits: u32,
    accumulate: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> values: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> scales: array<u32>;
@group(0) @binding(5) var<storage, read> input: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

// sum + w · x, value by value.
fn add_product(w: vec4<f32>, x: vec4<f32>, sum: f32) -> f32 {
    return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

fn add_inputs(x: vec4<f32>, sum: f32) -> f32 {
    return sum + ((x.x + x.y) + (x.z + x.w));
}

fn store(row: u32, feature: u32, value: f32) {
    let place = row * params.out_stride + params.first_feature + feature;
    if (params.accumulate != 0u) {
        out[place] += value;
    } else {
        out[place] = value;
    }
}
