// Rope of queries and keys and the way of keys and values into the cache in one: a thread for each pair of the
// queries, in place as `rope` has it, for each four of the keys and for each chunk of the values, which go to the row's
// slot.

@group(0) @binding(3) var<storage, read_write> query: array<f32>;
@group(0) @binding(4) var<storage, read> key: array<f32>;
@group(0) @binding(5) var<storage, read> value: array<ValueChunk>;

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups) * WORKGROUP + local;
    let per_row = params.query_pairs + params.key_width + params.value_width;
    let row = index / per_row;
    if (row >= header.tokens) {
        return;
    }
    let table = header.ropes + header.tokens * params.words_before + row * params.pairs * 2u;
    let item = index % per_row;
    if (item < params.query_pairs) {
        let pair = item % params.pairs;
        let head = item / params.pairs;
        let first = row * params.query_stride + head * params.head_size + pair * params.next;
        let a = query[first];
        let b = query[first + params.partner];
        let turn = turn_of(table, pair);
        query[first] = a * turn.x - b * turn.y;
        query[first + params.partner] = a * turn.y + b * turn.x;
        return;
    }
    let slot = step[header.slots + params.cache_group * header.tokens + row];
    let place = item - params.query_pairs;
    if (place < params.key_width) {
        let start = row * params.key_stride * 4u;
        let four = vec4<f32>(
            turned_key(table, start, place * 4u),
            turned_key(table, start, place * 4u + 1u),
            turned_key(table, start, place * 4u + 2u),
            turned_key(table, start, place * 4u + 3u),
        );
        keep_key(slot * params.key_width + place, four);
    } else {
        let chunk = place - params.key_width;
        keep_value(slot * params.value_width + chunk, value[row * params.value_stride + chunk]);
    }
}

fn turned_key(table: u32, start: u32, place: u32) -> f32 {
    let inside = place % params.head_size;
    if (inside >= params.pairs * 2u) {
        return key[start + place];
    }
    // Neighbours are pairs where the next pair is two values on.
    let neighbours = params.next == 2u;
    let pair = select(inside % params.pairs, inside / 2u, neighbours);
    let is_second = select(inside >= params.pairs, (inside & 1u) == 1u, neighbours);
    let first = start + place - select(0u, params.partner, is_second);
    let a = key[first];
    let b = key[first + params.partner];
    let turn = turn_of(table, pair);
    return select(a * turn.x - b * turn.y, a * turn.y + b * turn.x, is_second);
}
