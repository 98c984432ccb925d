//! Phi 3: queries, keys and values are rows of one matrix, gate and up of another.

use super::Built;
use super::decoder::{Buffers, Decoder, Rope};
use super::source::ModelSource;
use crate::program::RopeStyle;

pub(super) fn build(source: &dyn ModelSource, vocabulary: usize) -> Built {
    let mut decoder = Decoder::new(source, "phi3", vocabulary)?;
    let Buffers { query, key, value, attended, gate, up, .. } = decoder.buffers;
    let rope = Rope { style: RopeStyle::Halves, factors: None };
    let settings = decoder.settings;
    let query_end = settings.heads * settings.head_size;
    let key_end = query_end + settings.kv_heads * settings.head_size;
    let value_end = key_end + settings.kv_heads * settings.head_size;
    let (gate_end, up_end) = (settings.feed_forward, 2 * settings.feed_forward);
    for index in 0..settings.layers {
        let mut layer = decoder.layer(index);
        layer.norm("attention_norm", "attn_norm");
        layer.project_rows("query", "attn_qkv", 0..query_end, value_end, query);
        layer.project_rows("key", "attn_qkv", query_end..key_end, value_end, key);
        layer.project_rows("value", "attn_qkv", key_end..value_end, value_end, value);
        layer.attention(rope);
        layer.residual("attention_output", "attn_output", attended);
        layer.norm("feed_forward_norm", "ffn_norm");
        layer.project_rows("gate", "ffn_up", 0..gate_end, up_end, gate);
        layer.project_rows("up", "ffn_up", gate_end..up_end, up_end, up);
        layer.silu_mul();
        layer.residual("down", "ffn_down", gate);
    }
    decoder.finish()
}
