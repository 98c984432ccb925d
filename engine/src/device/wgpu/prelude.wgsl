// What every kernel sees: the step's header and data, and the number of its workgroup.

// Counts of this step, and the word in `step` at which each section starts.
struct Header {
    tokens: u32,
    logits_rows: u32,
    token_ids: u32,
    positions: u32,
    // For each group of layers, for each row.
    slots: u32,
    // For each group of layers, for each row, the start of its sequence's table in the block tables.
    table_starts: u32,
    block_tables: u32,
    wanted_rows: u32,
    // Rope tables: for each, for each row, `rotary / 2` pairs of cosine and sine.
    ropes: u32,
}

@group(0) @binding(1) var<uniform> header: Header;
@group(0) @binding(2) var<storage, read> step: array<u32>;

// Dispatches of more workgroups than one dimension allows are folded into two.
fn linear_workgroup(id: vec3<u32>, count: vec3<u32>) -> u32 {
    return id.y * count.x + id.x;
}

// Rows of a buffer: one for each token, or one for each wanted row of logits.
fn row_count(logits: u32) -> u32 {
    return select(header.tokens, header.logits_rows, logits != 0u);
}

// Where an array's element is in a texture.
fn texel(index: u32) -> vec2<u32> {
    return vec2<u32>(index & 4095u, index >> 12u);
}
