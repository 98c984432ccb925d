// All lanes need the same 32 inputs: each of the 8 loads four of them, and hands them round.

fn prepare(row: u32, b: u32, lane: u32) -> vec4<f32> {
    return input_at(row, params.blocks * 8u, b * 8u + lane);
}

fn block_input(prepared: vec4<f32>, row: u32, b: u32, j: u32) -> vec4<f32> {
    return subgroupShuffle(prepared, j);
}

fn block_sum(prepared: vec4<f32>, row: u32, b: u32) -> f32 {
    let four = add_inputs(prepared, 0.0);
    var sum = 0.0;
    // each four
    sum += subgroupShuffle(four, FOUR);
    // end four
    return sum;
}
