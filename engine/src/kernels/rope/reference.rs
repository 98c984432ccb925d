//! The definition of `rope`.

use crate::program::RopeStyle;

/// Rotates the first `rotary` values of every head of `head_size` values in place. Pair i turns by
/// `position · base^(−2i / rotary)`.
pub fn rope(
    values: &mut [f32],
    positions: &[u32],
    num_heads: usize,
    head_size: usize,
    rotary: usize,
    base: f32,
    style: RopeStyle,
) {
    for (row, position) in values.chunks_exact_mut(num_heads * head_size).zip(positions) {
        for head in row.chunks_exact_mut(head_size) {
            for pair in 0..rotary / 2 {
                let angle = *position as f32 * base.powf(-2.0 * pair as f32 / rotary as f32);
                let (sin, cos) = angle.sin_cos();
                let (a, b) = match style {
                    RopeStyle::Pairs => (2 * pair, 2 * pair + 1),
                    RopeStyle::Halves => (pair, pair + rotary / 2),
                };
                (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
            }
        }
    }
}
