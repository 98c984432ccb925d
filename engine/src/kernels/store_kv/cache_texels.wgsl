// Keys and values go to textures.

@group(0) @binding(CACHE_KEYS) var keys: texture_storage_2d<rgba32float, write>;
@group(0) @binding(CACHE_VALUES) var values: texture_storage_2d<rgba32float, write>;

fn keep_key(place: u32, chunk: KeyChunk) {
    textureStore(keys, texel(place), chunk);
}

fn keep_value(place: u32, chunk: ValueChunk) {
    textureStore(values, texel(place), chunk);
}
