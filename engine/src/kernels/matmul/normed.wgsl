// The input is normed on its way in: its values are multiplied by the norm's weights, and what becomes of them in the
// end by what the row is divided by.

const NORMED: bool = true;

fn norm_weight(place: u32) -> vec4<f32> {
    return norm_at(0u, 0u, place);
}

// sum + Σ x².
fn add_squares(x: vec4<f32>, sum: f32) -> f32 {
    return sum + fma(x.w, x.w, fma(x.z, x.z, fma(x.y, x.y, x.x * x.x)));
}

// For a row with this sum of squares.
fn norm_factor(squares: f32) -> f32 {
    return 1.0 / sqrt(squares / f32(params.columns) + params.epsilon);
}
