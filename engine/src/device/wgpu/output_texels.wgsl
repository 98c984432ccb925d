@group(0) @binding(OUTPUT_BINDING) var OUTPUT_NAME: texture_storage_2d<rgba32float, write>;

// Writes the chunk at a place in a row.
fn put_OUTPUT_NAME(row: u32, stride: u32, place: u32, chunk: vec4<f32>) {
    textureStore(OUTPUT_NAME, vec2<u32>(place, row), chunk);
}
