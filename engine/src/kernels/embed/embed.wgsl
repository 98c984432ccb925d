// One thread for four values of a row: `out[row] = table[token[row]] · scale`. A table in several parts takes one
// dispatch each; a part leaves alone the rows whose tokens lie in others.

struct Params {
    first_entry: u32,
    entries: u32,
    blocks: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups) * WORKGROUP + local;
    let per_row = params.blocks * 8u;
    let row = index / per_row;
    if (row >= header.tokens) {
        return;
    }
    let entry = step[header.token_ids + row] - params.first_entry;
    if (entry >= params.entries) {
        return;
    }
    let place = index % per_row;
    let block = load_block(block_index(entry, place / 8u, params.blocks));
    let scale = block_scale(block);
    let raw = block_values(block, place % 8u);
    let value = params.scale * vec4<f32>(
        add_block(0.0, scale, raw.x, 1.0),
        add_block(0.0, scale, raw.y, 1.0),
        add_block(0.0, scale, raw.z, 1.0),
        add_block(0.0, scale, raw.w, 1.0),
    );
    put_out(row, per_row, place, value);
}
