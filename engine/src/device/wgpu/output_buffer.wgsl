// The output is a buffer.

@group(0) @binding(OUTPUT_BINDING) var<storage, read_write> out: array<OUTPUT_CHUNK>;

// Writes the chunk at a place in a row; rows are `stride` chunks apart.
fn put(row: u32, stride: u32, place: u32, chunk: OUTPUT_CHUNK) {
    out[row * stride + place] = chunk;
}
