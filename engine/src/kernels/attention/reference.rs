//! The definition of `attention`.

use crate::device::Batch;

/// Sizes of an attention op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads.
    pub num_heads: usize,
    /// KV heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Values per head of queries and keys.
    pub head_size: usize,
    /// Values per head of values and of the output.
    pub value_head_size: usize,
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
    let AttentionShape { num_heads, num_kv_heads, head_size, value_head_size, .. } = shape;
    let AttentionShape { block_size, scale, window, cache_group, .. } = shape;
    for sequence in &batch.sequences {
        let table = &batch.block_tables[sequence.table_start(cache_group, block_size)..];
        let slot =
            |position: usize| table[position / block_size] as usize * block_size + position % block_size;
        for row in sequence.first_row as usize..(sequence.first_row + sequence.num_rows) as usize {
            let end = batch.positions[row] as usize + 1;
            let visible = end.saturating_sub(window.unwrap_or(end))..end;
            for head in 0..num_heads {
                let kv_head = head / (num_heads / num_kv_heads);
                let key = |position| &keys[(slot(position) * num_kv_heads + kv_head) * head_size..];
                let value = |position| &values[(slot(position) * num_kv_heads + kv_head) * value_head_size..];
                let query = &query[(row * num_heads + head) * head_size..][..head_size];
                let scores: Vec<f32> = visible
                    .clone()
                    .map(|p| scale * query.iter().zip(key(p)).map(|(query, key)| query * key).sum::<f32>())
                    .collect();
                let max = scores.iter().copied().fold(f32::MIN, f32::max);
                let weights: Vec<f32> = scores.iter().map(|score| (score - max).exp()).collect();
                let total: f32 = weights.iter().sum();
                let out = &mut out[(row * num_heads + head) * value_head_size..][..value_head_size];
                for (i, out) in out.iter_mut().enumerate() {
                    let weighted = weights.iter().zip(visible.clone());
                    *out = weighted.map(|(weight, p)| weight * value(p)[i]).sum::<f32>() / total;
                }
            }
        }
    }
}
