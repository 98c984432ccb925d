//! Gemma 3, its text part: embeddings as large as the width's root, normed queries and keys, norms before and
//! after attention and feed-forward, a GELU gate. Most layers attend to a window and have a rope base of their
//! own; every sixth attends to everything.

use super::decoder::{Attention, Buffers, Decoder};
use super::settings::{Settings, positive, refuse, windowed_layers};
use super::source::ModelSource;
use super::{Built, ModelProblem};
use crate::gguf::Metadata;
use crate::program::{RopeStyle, Rotation};

/// Layers from one that attends to everything to the next.
const PERIOD: usize = 6;

pub(super) fn build(source: &dyn ModelSource, vocabulary: usize) -> Built {
    let metadata = source.metadata();
    refuse_soft_caps(metadata)?;
    let mut decoder =
        Decoder::scaled(source, "gemma3", vocabulary, |settings| (settings.width as f32).sqrt())?;
    let Buffers { query, key, value, attended, gate, up, .. } = decoder.buffers;
    let settings = decoder.settings;
    let usual = decoder.attention(RopeStyle::Halves);
    let global = Attention { scale: query_scale(&settings), window: None, ..usual };
    let local = Rotation::plain(settings.rotation.rotary, local_base(metadata)?);
    let local = Attention { rotation: local, window: usual.window, ..global };
    let windowed = windowed_layers(metadata, "gemma3", settings.layers, PERIOD)?;
    for (index, windowed) in windowed.into_iter().enumerate() {
        let mut layer = decoder.layer(index);
        layer.norm("attention_norm", "attn_norm");
        layer.project("query", "attn_q", query);
        layer.project("key", "attn_k", key);
        layer.project("value", "attn_v", value);
        layer.head_norm("query_norm", "attn_q_norm", query);
        layer.head_norm("key_norm", "attn_k_norm", key);
        layer.attention(if windowed { local } else { global });
        layer.normed_residual("attention_output", "attn_output", attended, "post_attention_norm");
        layer.norm("feed_forward_norm", "ffn_norm");
        layer.project("gate", "ffn_gate", gate);
        layer.project("up", "ffn_up", up);
        layer.gelu_mul();
        layer.normed_residual("down", "ffn_down", gate, "post_ffw_norm");
    }
    decoder.finish()
}

/// The largest model divides by the root of a head's share of the width, the others by that of a head's size.
fn query_scale(settings: &Settings) -> f32 {
    const LAYERS_OF_27B: usize = 62;
    let values = match settings.layers {
        LAYERS_OF_27B => settings.width / settings.heads,
        _ => settings.head_size,
    };
    1.0 / (values as f32).sqrt()
}

/// Rope base of the layers that attend to a window.
fn local_base(metadata: Metadata<'_>) -> Result<f32, ModelProblem> {
    const KEY: &str = "gemma3.rope.freq_base_swa";
    positive(KEY, metadata.get(KEY)?.unwrap_or(10_000.0))
}

/// Gemma 2 bends its logits; files of its successors may still have the keys, at 0.
fn refuse_soft_caps(metadata: Metadata<'_>) -> Result<(), ModelProblem> {
    for key in ["gemma3.final_logit_softcapping", "gemma3.attn_logit_softcapping"] {
        if let Some(found) = metadata.get::<f32>(key)?.filter(|found| *found != 0.0) {
            return Err(refuse(key, found, "soft caps are not supported; 0 or no such key means none"));
        }
    }
    Ok(())
}
