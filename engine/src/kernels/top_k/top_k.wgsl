// One workgroup for each chunk of a row: a bitonic sort in workgroup memory, best first, of which the head is kept.

var<workgroup> chunk: array<vec2<u32>, CHUNK>;

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
    for (var i = local; i < CHUNK; i += WORKGROUP) {
        chunk[i] = candidate(row, first + i);
    }
    // Runs of `size` become sorted, every second one backwards, by exchanges over ever shorter distances.
    for (var size = 2u; size <= CHUNK; size *= 2u) {
        for (var distance = size / 2u; distance > 0u; distance /= 2u) {
            workgroupBarrier();
            for (var i = local; i < CHUNK / 2u; i += WORKGROUP) {
                // The i-th place that has a partner so far above it.
                let low = 2u * i - (i & (distance - 1u));
                let one = chunk[low];
                let other = chunk[low + distance];
                let best_first = (low & size) == 0u;
                if (is_better(other, one) == best_first) {
                    chunk[low] = other;
                    chunk[low + distance] = one;
                }
            }
        }
    }
    workgroupBarrier();
    if (local < KEPT) {
        best[index * KEPT + local] = chunk[local];
    }
}
