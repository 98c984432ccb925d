// Keys are read in fours.

fn chunk_dot(a: KeyChunk, b: KeyChunk, sum: f32) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
