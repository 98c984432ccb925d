// One workgroup for each run of a row: sum of squares by a tree in workgroup memory, then the scaled run.

struct Params {
    width: u32,
    stride: u32,
    logits: u32,
    epsilon: f32,
    runs: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> input: array<f32>;
@group(0) @binding(4) var<storage, read> weight: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

var<workgroup> partial: array<f32, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups);
    let row = index / params.runs;
    if (row >= row_count(params.logits)) {
        return;
    }
    let start = row * params.stride + index % params.runs * params.width;
    var sum = 0.0;
    for (var i = local; i < params.width; i += WORKGROUP) {
        let value = input[start + i];
        sum = fma(value, value, sum);
    }
    partial[local] = sum;
    workgroupBarrier();
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        if (local < half) {
            partial[local] += partial[local + half];
        }
        workgroupBarrier();
    }
    let scale = 1.0 / sqrt(partial[0] / f32(params.width) + params.epsilon);
    for (var i = local; i < params.width; i += WORKGROUP) {
        out[start + i] = input[start + i] * scale * weight[i];
    }
}
