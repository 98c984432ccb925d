//! The definition of `attention`.

use crate::device::Batch;

/// Sizes of an attention op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub num_heads: usize,
    /// KV heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Values per head.
    pub head_size: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Multiplies the dot products.
    pub scale: f32,
    /// Positions that a row sees, its own included; `None`: all.
    pub window: Option<usize>,
    /// The layer's group: whose block tables count.
    pub cache_group: usize,
}

/// Causal attention over the paged cache: the row at position p sees positions 0..=p of its sequence, or the last
/// `window` of them.
pub fn attention(
    query: &[f32],
    keys: &[f32],
    values: &[f32],
    batch: &Batch,
    shape: AttentionShape,
    out: &mut [f32],
) {
    let AttentionShape { num_heads, num_kv_heads, head_size, block_size, scale, window, cache_group } = shape;
    let (width, kv_width) = (num_heads * head_size, num_kv_heads * head_size);
    for sequence in &batch.sequences {
        let table = &batch.block_tables[sequence.table_start(cache_group, block_size)..];
        let slot =
            |position: usize| table[position / block_size] as usize * block_size + position % block_size;
        for row in sequence.first_row as usize..(sequence.first_row + sequence.num_rows) as usize {
            let end = batch.positions[row] as usize + 1;
            let visible = end.saturating_sub(window.unwrap_or(end))..end;
            for head in 0..num_heads {
                let offset = head / (num_heads / num_kv_heads) * head_size;
                let start = row * width + head * head_size;
                let query = &query[start..start + head_size];
                let at =
                    |cache: &[f32], position: usize, i: usize| cache[slot(position) * kv_width + offset + i];
                let scores: Vec<f32> = visible
                    .clone()
                    .map(|p| scale * (0..head_size).map(|i| query[i] * at(keys, p, i)).sum::<f32>())
                    .collect();
                let max = scores.iter().copied().fold(f32::MIN, f32::max);
                let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
                let total: f32 = weights.iter().sum();
                for i in 0..head_size {
                    let sum: f32 = weights
                        .iter()
                        .zip(visible.clone())
                        .map(|(weight, p)| weight * at(values, p, i))
                        .sum();
                    out[start + i] = sum / total;
                }
            }
        }
    }
}
