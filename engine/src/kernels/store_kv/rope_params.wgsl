// What both ways to turn and store are told, and the rope tables.

struct Params {
    query_pairs: u32,
    head_size: u32,
    pairs: u32,
    query_stride: u32,
    // In fours of keys, in chunks of values.
    key_width: u32,
    key_stride: u32,
    value_width: u32,
    value_stride: u32,
    // Words of the rope tables before this one, for one row.
    words_before: u32,
    // Distance between the values of a pair, and between the first values of two pairs.
    partner: u32,
    next: u32,
    // The layer's group: whose slots count.
    cache_group: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

// Cosine and sine of a pair.
fn turn_of(table: u32, pair: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(step[table + pair * 2u], step[table + pair * 2u + 1u]));
}

