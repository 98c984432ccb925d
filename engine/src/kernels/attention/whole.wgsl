// All that a row sees, in one workgroup.

@group(0) @binding(6) var<storage, read_write> out: array<ValueChunk>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    THREAD_PARAMETERS
) {
    let thread = THREAD;
    let index = linear_workgroup(group, groups);
    let head_groups = params.num_heads / HEADS;
    let row = index / head_groups;
    if (row >= header.tokens) {
        return;
    }
    let first_head = index % head_groups * HEADS;
    load_query(thread, row, first_head);
    let range = seen(row);
    var all = nothing();
    for (var first = range.x; first < range.y; first = (first / PARTITION + 1u) * PARTITION) {
        let end = min((first / PARTITION + 1u) * PARTITION, range.y);
        all = join(all, attend(thread, row, first_head / GROUP, first, end));
    }
    write_out(thread, row, first_head, all);
}
