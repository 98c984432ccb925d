//! The definition of `rope`.

use crate::program::{RopeStyle, Rotation};

/// Turns per position of each pair, with the values of the rotation's factors, if it has any.
pub fn frequencies(rotation: &Rotation, factors: Option<&[f32]>) -> Vec<f32> {
    let Rotation { rotary, base, scaling, .. } = *rotation;
    let frequency = |pair: usize| {
        let plain = base.powf(-2.0 * pair as f32 / rotary as f32);
        scaling.apply(pair, factors.map_or(plain, |factors| plain / factors[pair]))
    };
    (0..rotary / 2).map(frequency).collect()
}

/// Rotates the first `rotary` values of every head of `head_size` values in place. `rotary` is twice
/// the number of frequencies; pair i turns by `position · frequencies[i]` and grows by `magnitude`.
pub fn rope(
    values: &mut [f32],
    positions: &[u32],
    num_heads: usize,
    head_size: usize,
    frequencies: &[f32],
    magnitude: f32,
    style: RopeStyle,
) {
    let rotary = 2 * frequencies.len();
    for (row, position) in values.chunks_exact_mut(num_heads * head_size).zip(positions) {
        for head in row.chunks_exact_mut(head_size) {
            for (pair, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (*position as f32 * frequency).sin_cos();
                let (sin, cos) = (sin * magnitude, cos * magnitude);
                let (a, b) = match style {
                    RopeStyle::Pairs => (2 * pair, 2 * pair + 1),
                    RopeStyle::Halves => (pair, pair + rotary / 2),
                };
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
            }
        }
    }
}
