// Cosine and sine of a pair.
fn turn_of(table: u32, pair: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(vec2<u32>(step[table + pair * 2u], step[table + pair * 2u + 1u]));
}

