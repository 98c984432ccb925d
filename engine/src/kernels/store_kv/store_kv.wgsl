// One thread for each chunk of the longer of key and value: both go to the row's slot.

struct Params {
    // In chunks, of keys and of values.
    key_width: u32,
    key_stride: u32,
    value_width: u32,
    value_stride: u32,
    // The layer's group: whose slots count.
    cache_group: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read> key: array<KeyChunk>;
@group(0) @binding(4) var<storage, read> value: array<ValueChunk>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups) * WORKGROUP + local;
    let per_row = max(params.key_width, params.value_width);
    let row = index / per_row;
    if (row >= header.tokens) {
        return;
    }
    let place = index % per_row;
    let slot = step[header.slots + params.cache_group * header.tokens + row];
    if (place < params.key_width) {
        keep_key(slot * params.key_width + place, key[row * params.key_stride + place]);
    }
    if (place < params.value_width) {
        keep_value(slot * params.value_width + place, value[row * params.value_stride + place]);
    }
}
