// What the partitions of a row and a head gave, joined.

@group(0) @binding(3) var<storage, read_write> sums: array<ValueChunk>;
@group(0) @binding(4) var<storage, read_write> totals: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<ValueChunk>;

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
    var all = nothing();
    for (var p = range.x / PARTITION; p * PARTITION < range.y; p++) {
        let place = index * params.partitions + p;
        var more = nothing();
        more.highest[0] = totals[place].x;
        more.total[0] = totals[place].y;
        for (var o = 0u; o < OWNED; o++) {
            let chunk = min(thread.index + o * THREADS, VALUE_LENGTH - 1u);
            more.sum[o][0] = sums[place * VALUE_LENGTH + chunk];
        }
        all = join(all, more);
    }
    write_out(thread, row, index % params.num_heads, all);
}
