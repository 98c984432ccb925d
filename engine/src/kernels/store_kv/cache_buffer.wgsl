// Keys and values go to buffers.

@group(0) @binding(CACHE_KEYS) var<storage, read_write> keys: array<Chunk>;
@group(0) @binding(CACHE_VALUES) var<storage, read_write> values: array<Chunk>;

fn keep_key(place: u32, chunk: Chunk) {
    keys[place] = chunk;
}

fn keep_value(place: u32, chunk: Chunk) {
    values[place] = chunk;
}
