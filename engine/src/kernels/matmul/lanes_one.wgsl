// Output features of a workgroup: each lane has four neighbours.
const OWNED: u32 = 32u;

fn feature_of(tile: u32, lane: u32, f: u32) -> u32 {
    return tile * OWNED + lane * FEATURES + f;
}
