//! The definition of `rope`.

use crate::program::RopeStyle;

/// Turns per position of each pair: `base^(−2i / rotary)`, divided by the pair's factor if there are any.
pub fn frequencies(rotary: usize, base: f32, factors: Option<&[f32]>) -> Vec<f32> {
    let plain = (0..rotary / 2).map(|pair| base.powf(-2.0 * pair as f32 / rotary as f32));
    match factors {
        None => plain.collect(),
        Some(factors) => plain.zip(factors).map(|(frequency, factor)| frequency / factor).collect(),
    }
}

/// Rotates the first `rotary` values of every head of `head_size` values in place. `rotary` is twice
/// the number of frequencies; pair i turns by `position · frequencies[i]`.
pub fn rope(
    values: &mut [f32],
    positions: &[u32],
    num_heads: usize,
    head_size: usize,
    frequencies: &[f32],
    style: RopeStyle,
) {
    let rotary = 2 * frequencies.len();
    for (row, position) in values.chunks_exact_mut(num_heads * head_size).zip(positions) {
        for head in row.chunks_exact_mut(head_size) {
            for (pair, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (*position as f32 * frequency).sin_cos();
                let (a, b) = match style {
                    RopeStyle::Pairs => (2 * pair, 2 * pair + 1),
                    RopeStyle::Halves => (pair, pair + rotary / 2),
                };
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
            }
        }
    }
}
