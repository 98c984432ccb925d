// Every lane loads the inputs it needs.

fn prepare(row: u32, b: u32, lane: u32) -> vec4<f32> {
    return vec4<f32>(0.0);
}

fn block_input(prepared: vec4<f32>, row: u32, b: u32, j: u32) -> vec4<f32> {
    return input_at(row, params.blocks * 8u, b * 8u + j);
}

fn block_sum(prepared: vec4<f32>, row: u32, b: u32) -> f32 {
    var sum = 0.0;
    for (var j = 0u; j < 8u; j++) {
        sum = add_inputs(input_at(row, params.blocks * 8u, b * 8u + j), sum);
    }
    return sum;
}
