//! Llama: the decoder that the others are variants of. SmolLM2, TinyLlama and Mistral are of this shape too;
//! Llama 3.1 and later stretch the slower rotations by factors that come as a tensor.

use super::Built;
use super::decoder::{Attention, Buffers, Decoder};
use super::source::ModelSource;
use crate::program::{RopeStyle, Rotation};

pub(super) fn build(source: &dyn ModelSource, vocabulary: usize) -> Built {
    let mut decoder = Decoder::new(source, "llama", vocabulary)?;
    let Buffers { query, key, value, attended, gate, up, .. } = decoder.buffers;
    // The q and k weights of these files are permuted for pairs.
    const FACTORS: &str = "rope_freqs.weight";
    let factors = decoder.has(FACTORS).then(|| decoder.rope_factors(FACTORS));
    let rotation = Rotation { factors, ..decoder.settings.rotation };
    let attention = Attention { rotation, ..decoder.attention(RopeStyle::Pairs) };
    for index in 0..decoder.settings.layers {
        let mut layer = decoder.layer(index);
        layer.norm("attention_norm", "attn_norm");
        layer.project("query", "attn_q", query);
        layer.project("key", "attn_k", key);
        layer.project("value", "attn_v", value);
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
