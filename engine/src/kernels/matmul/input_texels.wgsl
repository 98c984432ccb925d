@group(0) @binding(5) var input: texture_storage_2d<rgba32float, read>;

// Four values of a row.
fn input_at(row: u32, four: u32) -> vec4<f32> {
    return textureLoad(input, vec2<u32>(four, row));
}
