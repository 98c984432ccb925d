//! The definition of `gather_rows`.

/// `out[i] = input[rows[i]]`, rows `width` wide.
pub fn gather_rows(input: &[f32], rows: &[u32], width: usize, out: &mut [f32]) {
    for (row, out) in rows.iter().zip(out.chunks_exact_mut(width)) {
        let start = *row as usize * width;
        out.copy_from_slice(&input[start..start + width]);
    }
}
