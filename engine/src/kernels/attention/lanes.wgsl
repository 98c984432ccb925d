// For software rasterisers whose subgroups are 8 lanes: one subgroup for each row and each group of HEADS query
// heads that share a KV head. It walks the row's visible positions in tiles of 8, one a lane, with the online
// softmax. The query lives in the lanes' registers, four values of each head to a lane, and is handed round, as
// are the weights of a tile; workgroup memory would be read value by value there.
//
// The order of the sums depends on nothing but the row's own position.

struct Params {
    num_heads: u32,
    num_kv_heads: u32,
    // In fours: from a row to the next, of query and of out.
    query_stride: u32,
    out_stride: u32,
    scale: f32,
    // Positions that a row sees at most.
    window: u32,
    // The layer's group: whose block tables count.
    cache_group: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(4) var keys: texture_storage_2d<rgba32float, read>;
@group(0) @binding(5) var values: texture_storage_2d<rgba32float, read>;

const LANES: u32 = 8u;
// Fours of a head that a lane owns, of the query and of the output.
const OWNED_QUERY: u32 = (KEY_LENGTH + LANES - 1u) / LANES;
const OWNED_OUT: u32 = (VALUE_LENGTH + LANES - 1u) / LANES;
// Below every score, and finite: infinities cannot be written in WGSL and their differences are no numbers.
const LOWEST: f32 = -3.0e38;

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let index = linear_workgroup(group, groups);
    let head_groups = params.num_heads / HEADS;
    let row = index / head_groups;
    if (row >= header.tokens) {
        return;
    }
    let first_head = index % head_groups * HEADS;
    let kv_head = first_head / GROUP;
    let visible = step[header.positions + row] + 1u;
    let table = header.block_tables + step[header.table_starts + params.cache_group * header.tokens + row];

    var head_query: array<array<vec4<f32>, OWNED_QUERY>, HEADS>;
    var highest: array<f32, HEADS>;
    var total: array<f32, HEADS>;
    var sum: array<array<vec4<f32>, HEADS>, OWNED_OUT>;
    // each this_head
    {
        highest[THIS_HEAD] = LOWEST;
        // each query_four
        {
            head_query[THIS_HEAD][QUERY_FOUR] = query_at(row, params.query_stride, (first_head + THIS_HEAD) * KEY_LENGTH + min(lane + QUERY_FOUR * LANES, KEY_LENGTH - 1u));
        }
        // end query_four
    }
    // end this_head

    for (var first = visible - min(visible, params.window); first < visible; first += LANES) {
        let count = min(LANES, visible - first);
        let position = first + min(lane, count - 1u);
        let slot = step[table + position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE;
        // The head's place among the KV heads of all slots.
        let stored = slot * params.num_kv_heads + kv_head;
        let key_start = stored * KEY_LENGTH;
        let value_start = stored * VALUE_LENGTH;
        var weight = array<f32, HEADS>();
        // each key_four
        {
            let key = textureLoad(keys, texel(key_start + KEY_FOUR));
            // each this_head
            {
                let four = subgroupShuffle(head_query[THIS_HEAD][KEY_FOUR / LANES], KEY_FOUR % LANES);
                weight[THIS_HEAD] = add_product(four, key, weight[THIS_HEAD]);
            }
            // end this_head
        }
        // end key_four
        // each this_head
        {
            let score = select(LOWEST, weight[THIS_HEAD] * params.scale, lane < count);
            var higher = max(score, subgroupShuffle(score, lane ^ 4u));
            higher = max(higher, subgroupShuffle(higher, lane ^ 2u));
            higher = max(higher, subgroupShuffle(higher, lane ^ 1u));
            higher = max(highest[THIS_HEAD], higher);
            let shrink = exp(highest[THIS_HEAD] - higher);
            highest[THIS_HEAD] = higher;
            weight[THIS_HEAD] = select(0.0, exp(score - higher), lane < count);
            total[THIS_HEAD] = fma(total[THIS_HEAD], shrink, weight[THIS_HEAD]);
            // each value_four
            {
                sum[VALUE_FOUR][THIS_HEAD] *= shrink;
            }
            // end value_four
        }
        // end this_head
        // each value_four
        {
            let place = min(lane + VALUE_FOUR * LANES, VALUE_LENGTH - 1u);
            // each position_of_tile
            {
                let value = textureLoad(values, texel(subgroupShuffle(value_start, POSITION_OF_TILE) + place));
                // each this_head
                {
                    sum[VALUE_FOUR][THIS_HEAD] = fma(vec4<f32>(subgroupShuffle(weight[THIS_HEAD], POSITION_OF_TILE)), value, sum[VALUE_FOUR][THIS_HEAD]);
                }
                // end this_head
            }
            // end position_of_tile
        }
        // end value_four
    }

    // each this_head
    {
        var whole = total[THIS_HEAD] + subgroupShuffle(total[THIS_HEAD], lane ^ 4u);
        whole += subgroupShuffle(whole, lane ^ 2u);
        whole += subgroupShuffle(whole, lane ^ 1u);
        // A row that sees nothing is zero. The test is false for a NaN, which stays one.
        let divisor = select(whole, 1.0, whole == 0.0);
        // each value_four
        {
            let place = lane + VALUE_FOUR * LANES;
            if (place < VALUE_LENGTH) {
                put_out(row, params.out_stride, (first_head + THIS_HEAD) * VALUE_LENGTH + place, sum[VALUE_FOUR][THIS_HEAD] / divisor);
            }
        }
        // end value_four
    }
    // end this_head
}

fn add_product(w: vec4<f32>, x: vec4<f32>, sum: f32) -> f32 {
    return fma(w.w, x.w, fma(w.z, x.z, fma(w.y, x.y, fma(w.x, x.x, sum))));
}
