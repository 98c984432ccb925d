// Every lane loads the inputs it needs.

fn prepare(block: u32, lane: u32) -> vec4<f32> {
    return vec4<f32>(0.0);
}

fn block_input(prepared: vec4<f32>, block: u32, j: u32) -> vec4<f32> {
    return input[block * 8u + j];
}

fn block_sum(prepared: vec4<f32>, block: u32) -> f32 {
    var sum = 0.0;
    for (var j = 0u; j < 8u; j++) {
        sum = add_inputs(input[block * 8u + j], sum);
    }
    return sum;
}
