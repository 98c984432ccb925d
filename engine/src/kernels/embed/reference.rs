//! The definition of `embed`.

use crate::program::Weight;

/// `out[t] = table[tokens[t]]`; `bytes` is the stored table.
pub fn embed(tokens: &[u32], table: &Weight, bytes: &[u8], out: &mut [f32]) {
    let row_bytes = bytes.len() / table.rows;
    for (token, out) in tokens.iter().zip(out.chunks_exact_mut(table.columns)) {
        let start = *token as usize * row_bytes;
        table.format.dequantize(&bytes[start..start + row_bytes], out);
    }
}
