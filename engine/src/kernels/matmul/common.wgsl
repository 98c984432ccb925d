// What the mappings of matmul share. The kernels of a device, for few rows and for many, have sums that are equal to the
// last bit, so that a row's result does not depend on how many rows are computed with it: inside a block of 32 values
// one chain of `fma` in rising order, then the blocks in rising order. Every multiplication whose product is added is
// written as `fma`: what is left to the compiler to fuse or not, it does differently in different surroundings.

struct Params {
    // Output features of this part of the weight, and where they start among all.
    features: u32,
    first_feature: u32,
    columns: u32,
    blocks: u32,
    logits: u32,
    // Added to the mean square of a row that is normed.
    epsilon: f32,
    // For each output, the feature it ends before and the distance of its rows.
    end_0: u32,
    stride_0: u32,
    end_1: u32,
    stride_1: u32,
    end_2: u32,
    stride_2: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

// sum + w · x, value by value.
fn add_product(w: vec4<f32>, x: vec4<f32>, sum: f32) -> f32 {
    return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}

fn add_inputs(x: vec4<f32>, sum: f32) -> f32 {
    return sum + ((x.x + x.y) + (x.z + x.w));
}
