// Features of one weight to its output, a texture.

@group(0) @binding(6) var out_0: texture_storage_2d<rgba32float, write>;

fn store(row: u32, feature: u32, value: Out) {
    textureStore(out_0, vec2<u32>((params.first_feature + feature) / WIDE, row), value);
}
