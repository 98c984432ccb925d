// The input is multiplied as it is; compilers leave out a factor of 1.

fn norm_weight(place: u32) -> vec4<f32> {
    return vec4<f32>(1.0);
}

fn add_weighted(given: vec4<f32>, weight: vec4<f32>, sum: f32) -> f32 {
    return add_inputs(given, sum);
}

fn add_squares(given: vec4<f32>, sum: f32) -> f32 {
    return 0.0;
}

fn norm_factor(squares: f32) -> f32 {
    return 1.0;
}
