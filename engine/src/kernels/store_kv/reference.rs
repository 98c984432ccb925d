//! The definition of `store_kv`.

/// Copies each row to its slot; call it once for keys and once for values.
pub fn store_kv(rows: &[f32], slots: &[u32], kv_width: usize, cache: &mut [f32]) {
    for (row, slot) in rows.chunks_exact(kv_width).zip(slots) {
        let start = *slot as usize * kv_width;
        cache[start..start + kv_width].copy_from_slice(row);
    }
}
