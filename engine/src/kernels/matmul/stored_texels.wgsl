// Packed weights in textures, 32 rows side by side: the first UNIT blocks of each, then the next of each.

@group(0) @binding(3) var values: texture_storage_2d<rgba32uint, read>;
@group(0) @binding(4) var scales: texture_storage_2d<rgba32uint, read>;

fn value_at(index: u32) -> vec4<u32> {
    return textureLoad(values, texel(index));
}

fn scale_at(index: u32) -> u32 {
    return scales_at(index / 4u)[index % 4u];
}

fn scales_at(index: u32) -> vec4<u32> {
    return textureLoad(scales, texel(index));
}

// Number of a row's block. `blocks` is a multiple of UNIT.
fn block_index(row: u32, b: u32, blocks: u32) -> u32 {
    let unit = row / 32u * (blocks / UNIT) + b / UNIT;
    return (unit * 32u + row % 32u) * UNIT + b % UNIT;
}
