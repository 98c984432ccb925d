// One workgroup for each chunk of a row: the best of each thread's candidates, then the best of those by a tree.

var<workgroup> partial: array<vec2<u32>, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups);
    let row = index / params.chunks;
    if (row >= header.logits_rows) {
        return;
    }
    let first = index % params.chunks * CHUNK;
    var own = NOTHING;
    for (var i = local; i < CHUNK; i += WORKGROUP) {
        let next = candidate(row, first + i);
        if (is_better(next, own)) {
            own = next;
        }
    }
    partial[local] = own;
    workgroupBarrier();
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        if (local < half && is_better(partial[local + half], partial[local])) {
            partial[local] = partial[local + half];
        }
        workgroupBarrier();
    }
    if (local == 0u) {
        best[index] = partial[0];
    }
}
