@group(0) @binding(INPUT_BINDING) var<storage, INPUT_ACCESS> INPUT_NAME: array<INPUT_CHUNK>;

// The chunk at a place in a row; rows are `stride` chunks apart.
fn INPUT_NAME_at(row: u32, stride: u32, place: u32) -> INPUT_CHUNK {
    return INPUT_NAME[row * stride + place];
}
