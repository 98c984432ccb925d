// One thread for each value, in place.

struct Params {
    width: u32,
    stride: u32,
    logits: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> values: array<f32>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups) * WORKGROUP + local;
    let row = index / params.width;
    if (row >= row_count(params.logits)) {
        return;
    }
    let column = index % params.width;
    values[row * params.stride + column] += bias[column];
}
