//! Qwen 2 and 2.5: queries, keys and values have biases.

use super::Built;
use super::decoder::{Buffers, Decoder};
use super::source::ModelSource;
use crate::program::RopeStyle;

pub(super) fn build(source: &dyn ModelSource, vocabulary: usize) -> Built {
    let mut decoder = Decoder::new(source, "qwen2", vocabulary)?;
    let Buffers { query, key, value, attended, gate, up, .. } = decoder.buffers;
    let attention = decoder.attention(RopeStyle::Halves);
    for index in 0..decoder.settings.layers {
        let mut layer = decoder.layer(index);
        layer.norm("attention_norm", "attn_norm");
        layer.project("query", "attn_q", query);
        layer.project("key", "attn_k", key);
        layer.project("value", "attn_v", value);
        layer.bias("query_bias", "attn_q", query);
        layer.bias("key_bias", "attn_k", key);
        layer.bias("value_bias", "attn_v", value);
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
