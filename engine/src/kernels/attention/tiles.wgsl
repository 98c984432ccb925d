// What a row finds at some positions: `attend`.

@group(0) @binding(3) var<storage, read_write> query: array<KeyChunk>;
@group(0) @binding(4) var<storage, read> keys: array<KeyChunk>;
@group(0) @binding(5) var<storage, read> values: array<ValueChunk>;

var<workgroup> head_query: array<KeyChunk, HEADS * KEY_LENGTH>;
var<workgroup> weights: array<f32, HEADS * THREADS>;
// Where the tile's values begin.
var<workgroup> starts: array<u32, THREADS>;

// Loads the query of a row from its first head on. A barrier must follow.
fn load_query(thread: Thread, row: u32, first_head: u32) {
    let start = row * params.query_stride + first_head * KEY_LENGTH;
    for (var i = thread.index; i < HEADS * KEY_LENGTH; i += THREADS) {
        head_query[i] = query[start + i];
    }
}

// What the positions from `first` to before `end`, all in one partition, give the row whose query is loaded.
fn attend(thread: Thread, row: u32, kv_head: u32, first: u32, end: u32) -> Gathered {
    let local = thread.index;
    let table = header.block_tables + step[header.table_starts + params.cache_group * header.tokens + row];
    var own = nothing();
    workgroupBarrier();
    for (var start = first; start < end; start += THREADS) {
        let count = min(THREADS, end - start);
        let position = start + min(local, count - 1u);
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
            let higher = max(own.highest[h], highest_here[h]);
            let shrink = exp(own.highest[h] - higher);
            own.highest[h] = higher;
            let weight = select(0.0, exp(score[h] - higher), local < count);
            weights[h * THREADS + local] = weight;
            own.total[h] = fma(own.total[h], shrink, weight);
            for (var o = 0u; o < OWNED; o++) {
                own.sum[o][h] *= shrink;
            }
        }
        workgroupBarrier();
        for (var o = 0u; o < OWNED; o++) {
            let place = local + o * THREADS;
            if (place < VALUE_LENGTH) {
                for (var p = 0u; p < count; p++) {
                    let value = values[starts[p] + place];
                    for (var h = 0u; h < HEADS; h++) {
                        own.sum[o][h] = fma(ValueChunk(weights[h * THREADS + p]), value, own.sum[o][h]);
                    }
                }
            }
        }
        workgroupBarrier();
    }
    own.total = workgroup_sum(thread, own.total);
    return own;
}
