// One workgroup for each row and each group of HEADS query heads that share a KV head. It walks the row's
// visible positions in tiles of one position per thread, with the online softmax: scores of the tile, their
// maximum, their exponentials, then the weighted values, each thread owning some of the output.
//
// The order of the sums depends on nothing but the row's own position.

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
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(3) var<storage, read_write> query: array<KeyChunk>;
@group(0) @binding(4) var<storage, read> keys: array<KeyChunk>;
@group(0) @binding(5) var<storage, read> values: array<ValueChunk>;
@group(0) @binding(6) var<storage, read_write> out: array<ValueChunk>;

// Chunks of a head of the output that a thread owns.
const OWNED: u32 = (VALUE_LENGTH + THREADS - 1u) / THREADS;
// Below every score, and finite: infinities cannot be written in WGSL and their differences are no numbers.
const LOWEST: f32 = -3.0e38;

var<workgroup> head_query: array<KeyChunk, HEADS * KEY_LENGTH>;
var<workgroup> weights: array<f32, HEADS * THREADS>;
// Where the tile's values begin.
var<workgroup> starts: array<u32, THREADS>;

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    thread: Thread,
) {
    let local = thread.index;
    let index = linear_workgroup(group, groups);
    let head_groups = params.num_heads / HEADS;
    let row = index / head_groups;
    if (row >= header.tokens) {
        return;
    }
    let first_head = index % head_groups * HEADS;
    let kv_head = first_head / GROUP;
    let query_start = row * params.query_stride + first_head * KEY_LENGTH;
    let out_start = row * params.out_stride + first_head * VALUE_LENGTH;
    let visible = step[header.positions + row] + 1u;
    let table = header.block_tables + step[header.table_starts + params.cache_group * header.tokens + row];

    for (var i = local; i < HEADS * KEY_LENGTH; i += THREADS) {
        head_query[i] = query[query_start + i];
    }
    var highest: array<f32, HEADS>;
    var total: array<f32, HEADS>;
    var sum: array<array<ValueChunk, HEADS>, OWNED>;
    for (var h = 0u; h < HEADS; h++) {
        highest[h] = LOWEST;
    }
    workgroupBarrier();

    for (var first = visible - min(visible, params.window); first < visible; first += THREADS) {
        let count = min(THREADS, visible - first);
        let position = first + min(local, count - 1u);
        let slot = step[table + position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE;
        // The head's place among the KV heads of all slots.
        let stored = slot * params.num_kv_heads + kv_head;
        starts[local] = stored * VALUE_LENGTH;
        var score: array<f32, HEADS>;
        for (var i = 0u; i < KEY_LENGTH; i++) {
            let key = keys[stored * KEY_LENGTH + i];
            for (var h = 0u; h < HEADS; h++) {
                score[h] = chunk_dot(head_query[h * KEY_LENGTH + i], key, score[h]);
            }
        }
        for (var h = 0u; h < HEADS; h++) {
            score[h] = select(LOWEST, score[h] * params.scale, local < count);
        }
        let highest_here = workgroup_max(thread, score);
        for (var h = 0u; h < HEADS; h++) {
            let higher = max(highest[h], highest_here[h]);
            let shrink = exp(highest[h] - higher);
            highest[h] = higher;
            let weight = select(0.0, exp(score[h] - higher), local < count);
            weights[h * THREADS + local] = weight;
            total[h] = fma(total[h], shrink, weight);
            for (var o = 0u; o < OWNED; o++) {
                sum[o][h] *= shrink;
            }
        }
        workgroupBarrier();
        for (var o = 0u; o < OWNED; o++) {
            let place = local + o * THREADS;
            if (place < VALUE_LENGTH) {
                for (var p = 0u; p < count; p++) {
                    let value = values[starts[p] + place];
                    for (var h = 0u; h < HEADS; h++) {
                        sum[o][h] += weights[h * THREADS + p] * value;
                    }
                }
            }
        }
        workgroupBarrier();
    }

    let whole = workgroup_sum(thread, total);
    for (var h = 0u; h < HEADS; h++) {
        // A row that sees nothing is zero. The test is false for a NaN, which stays one.
        let divisor = select(whole[h], 1.0, whole[h] == 0.0);
        for (var o = 0u; o < OWNED; o++) {
            let place = local + o * THREADS;
            if (place < VALUE_LENGTH) {
                out[out_start + h * VALUE_LENGTH + place] = sum[o][h] / divisor;
            }
        }
    }
}
