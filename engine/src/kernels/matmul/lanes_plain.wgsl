// Every lane loads the inputs it needs.

fn given(row: u32, b: u32, lane: u32) -> vec4<f32> {
    return vec4<f32>(0.0);
}

fn given_weight(b: u32, lane: u32) -> vec4<f32> {
    return vec4<f32>(0.0);
}

fn add_block_squares(given: vec4<f32>, row: u32, b: u32, sum: f32) -> f32 {
    var squares = sum;
    for (var j = 0u; j < 8u; j++) {
        squares = add_squares(input_at(row, params.blocks * 8u, b * 8u + j), squares);
    }
    return squares;
}

fn across_lanes(own: f32, lane: u32) -> f32 {
    return own;
}

fn block_input(prepared: vec4<f32>, row: u32, b: u32, j: u32) -> vec4<f32> {
    return input_at(row, params.blocks * 8u, b * 8u + j) * norm_weight(b * 8u + j);
}

fn block_sum(given: vec4<f32>, weight: vec4<f32>, row: u32, b: u32, lane: u32) -> f32 {
    var sum = 0.0;
    for (var j = 0u; j < 8u; j++) {
        sum = add_weighted(input_at(row, params.blocks * 8u, b * 8u + j), norm_weight(b * 8u + j), sum);
    }
    return sum;
}
