@group(0) @binding(OUTPUT_BINDING) var<storage, read_write> OUTPUT_NAME: array<OUTPUT_CHUNK>;

// Writes the chunk at a place in a row; rows are `stride` chunks apart.
fn put_OUTPUT_NAME(row: u32, stride: u32, place: u32, chunk: OUTPUT_CHUNK) {
    OUTPUT_NAME[row * stride + place] = chunk;
}
