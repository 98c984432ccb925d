//! The definition of `store_kv`.

/// Copies each row to its slot; call it once for keys and once for values.
pub fn store_kv(rows: &[f32], slots: &[u32], width: usize, cache: &mut [f32]) {
    for (row, slot) in rows.chunks_exact(width).zip(slots) {
        let start = *slot as usize * width;
        cache[start..start + width].copy_from_slice(row);
    }
}
