// Two weights, gate and up, whose rows alternate in pairs: each lane has two neighbours of both.
const OWNED: u32 = 16u;

fn feature_of(tile: u32, lane: u32, f: u32) -> u32 {
    return tile * OWNED + lane * (FEATURES / 2u) + f;
}

fn gated(gate: f32, up: f32) -> f32 {
    return gate / (1.0 + exp(-slope(gate))) * up;
}
