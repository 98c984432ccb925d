// One thread for four values: `out = activation(gate) · up`. The zeros between width and stride stay zeros.

struct Params {
    per_row: u32,
    logits: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> gate: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> up: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<vec4<f32>>;

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
    let value = gate[index];
    out[index] = value / (1.0 + exp(-vec4<f32>(slope(value.x), slope(value.y), slope(value.z), slope(value.w)))) * up[index];
}
