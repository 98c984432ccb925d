// The input is normed on its way in: its values are multiplied by the norm's weights, and what becomes of them in the
// end by what the row is divided by.

fn norm_weight(place: u32) -> vec4<f32> {
    return norm_at(0u, 0u, place);
}

// sum + Σ given · weight.
fn add_weighted(given: vec4<f32>, weight: vec4<f32>, sum: f32) -> f32 {
    return sum + fma(given.w, weight.w, fma(given.z, weight.z, fma(given.y, weight.y, given.x * weight.x)));
}

// sum + Σ given².
fn add_squares(given: vec4<f32>, sum: f32) -> f32 {
    return add_weighted(given, given, sum);
}

// For a row with this sum of squares.
fn norm_factor(squares: f32) -> f32 {
    return 1.0 / sqrt(squares / f32(params.columns) + params.epsilon);
}
