// One workgroup for each run of a row: the sum of squares over its threads, then the scaled run. Values are read and
// written in chunks of CHUNK.

struct Params {
    width: u32,
    stride: u32,
    logits: u32,
    epsilon: f32,
    runs: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    THREAD_PARAMETERS
) {
    let thread = THREAD;
    let index = linear_workgroup(group, groups);
    let row = index / params.runs;
    if (row >= row_count(params.logits)) {
        return;
    }
    let count = params.width / CHUNK;
    let stride = params.stride / CHUNK;
    let in_row = index % params.runs * count;
    var sum = Chunk();
    for (var i = thread.index; i < count; i += THREADS) {
        let value = input_at(row, stride, in_row + i);
        sum = fma(value, value, sum);
    }
    let squares = workgroup_sum(thread, array<f32, VALUES>(across(sum)))[0];
    let scale = 1.0 / sqrt(squares / f32(params.width) + params.epsilon);
    for (var i = thread.index; i < count; i += THREADS) {
        put_out(row, stride, in_row + i, input_at(row, stride, in_row + i) * scale * weight_at(0u, 0u, i));
    }
}
