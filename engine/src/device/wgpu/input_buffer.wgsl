@group(0) @binding(INPUT_BINDING) var<storage, INPUT_ACCESS> INPUT_NAME: array<vec4<f32>>;

// Four values of a row; rows are `stride` fours apart.
fn INPUT_NAME_at(row: u32, stride: u32, four: u32) -> vec4<f32> {
    return INPUT_NAME[row * stride + four];
}
