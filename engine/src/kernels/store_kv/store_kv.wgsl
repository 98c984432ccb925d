// One thread for each chunk of a row: key and value go to the row's slot.

struct Params {
    // In chunks.
    width: u32,
    stride: u32,
    // The layer's group: whose slots count.
    cache_group: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> key: array<Chunk>;
@group(0) @binding(4) var<storage, read> value: array<Chunk>;

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
    keep_key(slot * params.width + place, key[row * params.stride + place]);
    keep_value(slot * params.width + place, value[row * params.stride + place]);
}
