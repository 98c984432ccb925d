// What candidates are: pairs of a key, which is in the order of the logits, and an id. Included before `from_logits` or
// `from_pairs`, which load them, and `top_one` or `top_k`, which choose.

struct Params {
    // Candidates in a row of the input.
    count: u32,
    // Places between two rows of the input.
    stride: u32,
    // Chunks of a row.
    chunks: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(4) var<storage, read_write> best: array<vec2<u32>>;

// Worse than every candidate.
const NOTHING = vec2<u32>(0u, 0xffffffffu);

fn is_better(one: vec2<u32>, other: vec2<u32>) -> bool {
    return one.x > other.x || (one.x == other.x && one.y < other.y);
}

fn candidate(row: u32, place: u32) -> vec2<u32> {
    if (place >= params.count) {
        return NOTHING;
    }
    return load(row * params.stride + place, place);
}
