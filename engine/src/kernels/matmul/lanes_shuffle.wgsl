// All lanes need the same 32 inputs: each of the 8 loads four of them, and hands them round.

fn given(row: u32, b: u32, lane: u32) -> vec4<f32> {
    return input_at(row, params.blocks * 8u, b * 8u + lane);
}

fn given_weight(b: u32, lane: u32) -> vec4<f32> {
    return norm_weight(b * 8u + lane);
}

fn add_block_squares(given: vec4<f32>, row: u32, b: u32, sum: f32) -> f32 {
    return add_squares(given, sum);
}

fn across_lanes(own: f32, lane: u32) -> f32 {
    let two = own + subgroupShuffle(own, lane ^ 1u);
    let four = two + subgroupShuffle(two, lane ^ 2u);
    return four + subgroupShuffle(four, lane ^ 4u);
}

fn block_input(prepared: vec4<f32>, row: u32, b: u32, j: u32) -> vec4<f32> {
    return subgroupShuffle(prepared, j);
}

fn block_sum(given: vec4<f32>, weight: vec4<f32>, row: u32, b: u32, lane: u32) -> f32 {
    return across_lanes(add_weighted(given, weight, 0.0), lane);
}
