// Keys are read value by value: their size is no multiple of four.

fn chunk_dot(a: KeyChunk, b: KeyChunk, sum: f32) -> f32 {
    return fma(a, b, sum);
}
