// One thread for each value of a row: key and value go to the row's slot.

struct Params {
    width: u32,
    stride: u32,
    // The layer's group: whose slots count.
    cache_group: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> key: array<f32>;
@group(0) @binding(4) var<storage, read> value: array<f32>;
@group(0) @binding(5) var<storage, read_write> keys: array<f32>;
@group(0) @binding(6) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups) * WORKGROUP + local;
    let row = index / params.width;
    if (row >= header.tokens) {
        return;
    }
    let place = index % params.width;
    let slot = step[header.slots + params.cache_group * header.tokens + row];
    keys[slot * params.width + place] = key[row * params.stride + place];
    values[slot * params.width + place] = value[row * params.stride + place];
}
