// One thread for four values: `out += input`. The zeros between width and stride stay zeros.

struct Params {
    per_row: u32,
    logits: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> input: array<vec4<f32>>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups) * WORKGROUP + local;
    if (index >= row_count(params.logits) * params.per_row) {
        return;
    }
    let row = index / params.per_row;
    let place = index % params.per_row;
    put_out(row, params.per_row, place, before_at(row, params.per_row, place) + input[index]);
}
