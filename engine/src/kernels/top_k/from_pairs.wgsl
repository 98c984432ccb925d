// Candidates that a stage before has kept.

@group(0) @binding(3) var<storage, read> input: array<vec2<u32>>;

fn load(index: u32, place: u32) -> vec2<u32> {
    return input[index];
}
