//! The definition of `matmul`.

use crate::program::Weight;

/// `out[r][n] = Σ_k input[r][k] · weight[n][k]`, added to `out` if `accumulate`; `bytes` is the stored weight.
pub fn matmul(input: &[f32], weight: &Weight, bytes: &[u8], accumulate: bool, out: &mut [f32]) {
    let row_bytes = bytes.len() / weight.rows;
    let mut row = vec![0.0; weight.columns];
    for (n, stored) in bytes.chunks_exact(row_bytes).enumerate() {
        weight.format.dequantize(stored, &mut row);
        for (input, out) in input.chunks_exact(weight.columns).zip(out.chunks_exact_mut(weight.rows)) {
            let sum = input.iter().zip(&row).map(|(a, b)| a * b).sum::<f32>();
            out[n] = if accumulate { out[n] + sum } else { sum };
        }
    }
}
