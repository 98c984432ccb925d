// Heads are read value by value: their size is no multiple of four.

alias Chunk = f32;
const CHUNK: u32 = 1u;

fn chunk_dot(a: Chunk, b: Chunk, sum: f32) -> f32 {
    return fma(a, b, sum);
}
