//! Qwen 3: no biases; the heads of queries and keys are normed before they turn.

use super::Built;
use super::decoder::{Buffers, Decoder};
use super::source::ModelSource;
use crate::program::RopeStyle;

pub(super) fn build(source: &dyn ModelSource, vocabulary: usize) -> Built {
    let mut decoder = Decoder::new(source, "qwen3", vocabulary)?;
    let Buffers { query, key, value, attended, gate, up, .. } = decoder.buffers;
    let attention = decoder.attention(RopeStyle::Halves);
    for index in 0..decoder.settings.layers {
        let mut layer = decoder.layer(index);
        layer.norm("attention_norm", "attn_norm");
        layer.project("query", "attn_q", query);
        layer.project("key", "attn_k", key);
        layer.project("value", "attn_v", value);
        layer.head_norm("query_norm", "attn_q_norm", query);
        layer.head_norm("key_norm", "attn_k_norm", key);
        layer.attention(attention);
        layer.residual("attention_output", "attn_output", attended);
        layer.norm("feed_forward_norm", "ffn_norm");
        layer.project("gate", "ffn_gate", gate);
        layer.project("up", "ffn_up", up);
        layer.silu_mul();
        layer.residual("down", "ffn_down", gate);
    }
    decoder.finish()
}
