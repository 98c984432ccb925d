// Packed weights in buffers, row by row.

@group(0) @binding(3) var<storage, read> values: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> scales: array<u32>;

fn value_at(index: u32) -> vec4<u32> {
    return values[index];
}

fn scale_at(index: u32) -> u32 {
    return scales[index];
}

// Number of a row's block.
fn block_index(row: u32, b: u32, blocks: u32) -> u32 {
    return row * blocks + b;
}
