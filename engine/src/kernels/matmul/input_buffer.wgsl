@group(0) @binding(5) var<storage, read> input: array<vec4<f32>>;

// Four values of a row.
fn input_at(row: u32, four: u32) -> vec4<f32> {
    return input[row * params.blocks * 8u + four];
}
