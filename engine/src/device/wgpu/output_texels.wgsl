// The output is a texture, a row of texels for each row.

@group(0) @binding(OUTPUT_BINDING) var out: texture_storage_2d<rgba32float, write>;

// Writes the chunk at a place in a row.
fn put(row: u32, stride: u32, place: u32, chunk: vec4<f32>) {
    textureStore(out, vec2<u32>(place, row), chunk);
}
