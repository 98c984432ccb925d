// One thread for each pair of values, in place. Cosines and sines come with the step, computed on the host:
// a GPU's own are only good near zero, and positions are not.

struct Params {
    num_heads: u32,
    head_size: u32,
    pairs: u32,
    stride: u32,
    // Words of the rope tables before this one, for one row.
    words_before: u32,
    // Distance between the values of a pair, and between the first values of two pairs.
    partner: u32,
    next: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups) * WORKGROUP + local;
    let per_row = params.num_heads * params.pairs;
    let row = index / per_row;
    if (row >= header.tokens) {
        return;
    }
    let head = index % per_row / params.pairs;
    let pair = index % params.pairs;
    let table = header.ropes + header.tokens * params.words_before + (row * params.pairs + pair) * 2u;
    let cosine = bitcast<f32>(step[table]);
    let sine = bitcast<f32>(step[table + 1u]);
    let first = row * params.stride + head * params.head_size + pair * params.next;
    let second = first + params.partner;
    let a = values[first];
    let b = values[second];
    values[first] = a * cosine - b * sine;
    values[second] = a * sine + b * cosine;
}
