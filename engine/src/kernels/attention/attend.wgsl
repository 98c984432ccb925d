// One workgroup for a row and a group of HEADS query heads that share a KV head. It walks positions in tiles of one for
// each thread, with the online softmax: scores of the tile, their maximum, their exponentials, then the weighted
// values, each thread owning some of the output.
//
// Positions are attended to PARTITION by PARTITION, and what each gave is joined in rising order, so that partitions
// may be spread over workgroups and nobody sees a difference: the order of the sums depends on nothing but the row's
// own position. Every multiplication whose product is added is written as `fma`, as in `matmul`.

struct Params {
    num_heads: u32,
    num_kv_heads: u32,
    // In chunks: from a row to the next, of query and of out.
    query_stride: u32,
    out_stride: u32,
    scale: f32,
    // Positions that a row sees at most.
    window: u32,
    // The layer's group: whose block tables count.
    cache_group: u32,
    // Partitions of a row that there is room for, where they are spread.
    partitions: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

// Chunks of a head of the output that a thread owns.
const OWNED: u32 = (VALUE_LENGTH + THREADS - 1u) / THREADS;
// Below every score, and finite: infinities cannot be written in WGSL and their differences are no numbers.
const LOWEST: f32 = -3.0e38;

// What positions gave, head by head: their highest score, and relative to it the sum of the exponentials and of the
// values they weigh, of which each thread has what it owns.
struct Gathered {
    highest: array<f32, HEADS>,
    total: array<f32, HEADS>,
    sum: array<array<ValueChunk, HEADS>, OWNED>,
}

fn nothing() -> Gathered {
    var gathered: Gathered;
    for (var h = 0u; h < HEADS; h++) {
        gathered.highest[h] = LOWEST;
    }
    return gathered;
}

// Positions that a row sees: from `x` to before `y`.
fn seen(row: u32) -> vec2<u32> {
    let visible = step[header.positions + row] + 1u;
    return vec2<u32>(visible - min(visible, params.window), visible);
}

fn join(all: Gathered, more: Gathered) -> Gathered {
    var joined: Gathered;
    for (var h = 0u; h < HEADS; h++) {
        joined.highest[h] = max(all.highest[h], more.highest[h]);
        let shrink = exp(all.highest[h] - joined.highest[h]);
        let shrink_more = exp(more.highest[h] - joined.highest[h]);
        joined.total[h] = fma(all.total[h], shrink, more.total[h] * shrink_more);
        for (var o = 0u; o < OWNED; o++) {
            joined.sum[o][h] = fma(all.sum[o][h], ValueChunk(shrink), more.sum[o][h] * shrink_more);
        }
    }
    return joined;
}
