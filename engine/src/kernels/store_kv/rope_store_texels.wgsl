// `rope_store_kv` where queries, keys and values are textures: a thread for each four of a head walks all heads of the
// row, so that cosines and sines are loaded once. The turned queries go to a texture of their own.

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let index = linear_workgroup(group, groups) * WORKGROUP + local;
    let length = params.head_size / 4u;
    let row = index / length;
    if (row >= header.tokens) {
        return;
    }
    let own = index % length;
    let table = header.ropes + header.tokens * params.words_before + row * params.pairs * 2u;
    // Of each value, what it and its partner are multiplied by; one and zero behind the rotary values.
    var cosines = vec4<f32>(1.0);
    var sines = vec4<f32>(0.0);
    var other = own;
    if (params.next == 2u) {
        if (own < params.pairs / 2u) {
            let first = turn_of(table, own * 2u);
            let second = turn_of(table, own * 2u + 1u);
            cosines = vec4<f32>(first.xx, second.xx);
            sines = vec4<f32>(-first.y, first.y, -second.y, second.y);
        }
    } else if (own < params.pairs / 2u) {
        let half = params.pairs / 4u;
        let is_second = own >= half;
        let pair = (own % half) * 4u;
        let a = turn_of(table, pair);
        let b = turn_of(table, pair + 1u);
        let c = turn_of(table, pair + 2u);
        let d = turn_of(table, pair + 3u);
        cosines = vec4<f32>(a.x, b.x, c.x, d.x);
        sines = vec4<f32>(a.y, b.y, c.y, d.y) * select(-1.0, 1.0, is_second);
        other = select(own + half, own - half, is_second);
    }

    let num_heads = params.query_pairs / params.pairs;
    for (var head = 0u; head < num_heads; head++) {
        let place = head * length;
        let value = query_at(row, 0u, place + own);
        let partner = partner_of(value, query_at(row, 0u, place + other));
        put_turned(row, 0u, place + own, value * cosines + partner * sines);
    }
    let slot = step[header.slots + params.cache_group * header.tokens + row];
    for (var start = 0u; start < params.key_width; start += length) {
        let value = key_at(row, 0u, start + own);
        let partner = partner_of(value, key_at(row, 0u, start + other));
        keep_key(slot * params.key_width + start + own, value * cosines + partner * sines);
    }
    for (var place = own; place < params.value_width; place += length) {
        keep_value(slot * params.value_width + place, value_at(row, 0u, place));
    }
}

// The partners of four values: their neighbours, or those of another four.
fn partner_of(value: vec4<f32>, other: vec4<f32>) -> vec4<f32> {
    if (params.next == 2u) {
        return value.yxwz;
    }
    return other;
}
