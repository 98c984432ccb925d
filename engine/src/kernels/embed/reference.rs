//! The definition of `embed`.

use crate::program::Weight;

/// `out[t] = table[tokens[t]] · scale`; `bytes` is the stored table.
pub fn embed(tokens: &[u32], table: &Weight, bytes: &[u8], scale: f32, out: &mut [f32]) {
    let row_bytes = bytes.len() / table.rows;
    for (token, out) in tokens.iter().zip(out.chunks_exact_mut(table.columns)) {
        let start = *token as usize * row_bytes;
        table.format.dequantize(&bytes[start..start + row_bytes], out);
        out.iter_mut().for_each(|value| *value *= scale);
    }
}
