// One thread for four values: `out[i] = input[wanted_rows[i]]`.

struct Params {
    per_row: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups) * WORKGROUP + local;
    let row = index / params.per_row;
    if (row >= header.logits_rows) {
        return;
    }
    let place = index % params.per_row;
    put_out(row, params.per_row, place, input_at(step[header.wanted_rows + row], params.per_row, place));
}
