// Keys and values go to buffers.

@group(0) @binding(CACHE_KEYS) var<storage, read_write> keys: array<KeyChunk>;
@group(0) @binding(CACHE_VALUES) var<storage, read_write> values: array<ValueChunk>;

fn keep_key(place: u32, chunk: KeyChunk) {
    keys[place] = chunk;
}

fn keep_value(place: u32, chunk: ValueChunk) {
    values[place] = chunk;
}
