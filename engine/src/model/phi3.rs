//! Phi 3: queries, keys and values are rows of one matrix, gate and up of another. Variants for long contexts have two
//! sets of factors for the rotation's frequencies, one for contexts beyond those of the first training.

use super::decoder::{Attention, Buffers, Decoder};
use super::settings::original_context;
use super::source::ModelSource;
use super::{Built, ModelProblem};
use crate::program::{RopeStyle, Rotation, ShortFactors};

pub(super) fn build(source: &dyn ModelSource, vocabulary: usize) -> Built {
    let mut decoder = Decoder::new(source, "phi3", vocabulary)?;
    let Buffers { query, key, value, attended, gate, up, .. } = decoder.buffers;
    let rotation = long_rotation(source, &mut decoder)?;
    let attention = Attention { rotation, ..decoder.attention(RopeStyle::Halves) };
    let settings = decoder.settings;
    let query_end = settings.heads * settings.head_size;
    let key_end = query_end + settings.kv_heads * settings.head_size;
    let value_end = key_end + settings.kv_heads * settings.value_head_size;
    let (gate_end, up_end) = (settings.feed_forward, 2 * settings.feed_forward);
    for index in 0..settings.layers {
        let mut layer = decoder.layer(index);
        layer.norm("attention_norm", "attn_norm");
        layer.project_rows("query", "attn_qkv", 0..query_end, value_end, query);
        layer.project_rows("key", "attn_qkv", query_end..key_end, value_end, key);
        layer.project_rows("value", "attn_qkv", key_end..value_end, value_end, value);
        layer.attention(attention);
        layer.residual("attention_output", "attn_output", attended);
        layer.norm("feed_forward_norm", "ffn_norm");
        layer.project_rows("gate", "ffn_up", 0..gate_end, up_end, gate);
        layer.project_rows("up", "ffn_up", gate_end..up_end, up_end, up);
        layer.silu_mul();
        layer.residual("down", "ffn_down", gate);
    }
    decoder.finish()
}

fn long_rotation(source: &dyn ModelSource, decoder: &mut Decoder<'_>) -> Result<Rotation, ModelProblem> {
    const NAMES: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];
    let rotation = decoder.settings.rotation;
    if !NAMES.iter().any(|name| decoder.has(name)) {
        return Ok(rotation);
    }
    let [long, short] = NAMES.map(|name| decoder.rope_factors(name));
    let max_len = original_context(source.metadata(), "phi3")?;
    Ok(Rotation { factors: Some(long), short: Some(ShortFactors { factors: short, max_len }), ..rotation })
}
