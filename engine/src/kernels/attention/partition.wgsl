// One of the partitions that a row sees; the third dimension of the dispatch counts them. One head at a time.

@group(0) @binding(6) var<storage, read_write> sums: array<ValueChunk>;
// Highest score and sum of the exponentials.
@group(0) @binding(7) var<storage, read_write> totals: array<vec2<f32>>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    THREAD_PARAMETERS
) {
    let thread = THREAD;
    let index = linear_workgroup(group, groups);
    let row = index / params.num_heads;
    if (row >= header.tokens) {
        return;
    }
    let range = seen(row);
    let first = max(range.x, group.z * PARTITION);
    let end = min(range.y, (group.z + 1u) * PARTITION);
    if (first >= end) {
        return;
    }
    let head = index % params.num_heads;
    load_query(thread, row, head);
    let own = attend(thread, row, head / GROUP, first, end);
    let place = index * params.partitions + group.z;
    if (thread.index == 0u) {
        totals[place] = vec2<f32>(own.highest[0], own.total[0]);
    }
    for (var o = 0u; o < OWNED; o++) {
        let chunk = thread.index + o * THREADS;
        if (chunk < VALUE_LENGTH) {
            sums[place * VALUE_LENGTH + chunk] = own.sum[o][0];
        }
    }
}
