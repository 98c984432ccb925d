@group(0) @binding(INPUT_BINDING) var INPUT_NAME: texture_storage_2d<rgba32float, read>;

// The chunk at a place in a row.
fn INPUT_NAME_at(row: u32, stride: u32, place: u32) -> vec4<f32> {
    return textureLoad(INPUT_NAME, vec2<u32>(place, row));
}
