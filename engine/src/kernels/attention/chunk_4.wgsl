// Heads are read in fours.

alias Chunk = vec4<f32>;
const CHUNK: u32 = 4u;

fn chunk_dot(a: Chunk, b: Chunk, sum: f32) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
