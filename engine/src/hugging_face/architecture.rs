//! What the architectures of Hugging Face are called in GGUF: they themselves, their tensors and their settings.
//!
//! The tables are read in both directions: forwards to present a directory as the GGUF file it would be
//! converted to, backwards to speak of problems in the words of the directory's files.

use crate::model::architectures;

/// An architecture.
pub(super) struct Architecture {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// Values of `model_type`.
    pub(super) model_types: &'static [&'static str],
    /// The key that names the activation, and the only value it may have.
    pub(super) activation: (&'static str, &'static str),
    /// Whether the embedding is also the output matrix if nothing says.
    pub(super) tied: bool,
    /// Whether q and k rows are permuted in GGUF files, so that values that turn together are neighbours.
    pub(super) permutes_heads: bool,
    /// Whether norms are stored as their distance from one.
    pub(super) norms_from_one: bool,
    /// Names of layers' tensors that the common table lacks or that mean something else here.
    parts: &'static [(&'static str, &'static str)],
}

pub(super) const ARCHITECTURES: [Architecture; 5] = [
    Architecture {
        name: "llama",
        model_types: &["llama", "mistral"],
        activation: ("hidden_act", "silu"),
        tied: false,
        permutes_heads: true,
        norms_from_one: false,
        parts: &[],
    },
    Architecture {
        name: "qwen2",
        model_types: &["qwen2"],
        activation: ("hidden_act", "silu"),
        tied: false,
        permutes_heads: false,
        norms_from_one: false,
        parts: &[],
    },
    Architecture {
        name: "qwen3",
        model_types: &["qwen3"],
        activation: ("hidden_act", "silu"),
        tied: false,
        permutes_heads: false,
        norms_from_one: false,
        parts: &[],
    },
    Architecture {
        name: "gemma3",
        model_types: &["gemma3_text"],
        activation: ("hidden_activation", "gelu_pytorch_tanh"),
        tied: true,
        permutes_heads: false,
        norms_from_one: true,
        parts: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        ],
    },
    Architecture {
        name: "phi3",
        model_types: &["phi3"],
        activation: ("hidden_act", "silu"),
        tied: false,
        permutes_heads: false,
        norms_from_one: false,
        parts: &[("self_attn.qkv_proj", "attn_qkv"), ("mlp.gate_up_proj", "ffn_up")],
    },
];

/// Tensors outside of layers.
const TENSORS: [(&str, &str); 3] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("lm_head.weight", "output.weight"),
];

/// Tensors of layers, without their number and `.weight` or `.bias`.
const PARTS: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// Settings of `config.json` that are numbers, and what they are called after the architecture's name.
pub(super) const COUNTS: [(&str, &str); 6] = [
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
];

/// Keys that are not simply carried over, for messages.
const OTHER_KEYS: [(&str, &str); 10] = [
    ("head_dim", "attention.key_length"),
    ("head_dim", "attention.value_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("partial_rotary_factor", "rope.dimension_count"),
    ("rope_local_base_freq", "rope.freq_base_swa"),
    ("sliding_window", "attention.sliding_window"),
    ("layer_types", "attention.sliding_window_pattern"),
    ("rope_scaling.rope_type", "rope.scaling.type"),
    ("rope_scaling.factor", "rope.scaling.factor"),
];

/// Keys of the tokenizer, with the file they are made from.
const TOKENIZER_KEYS: [(&str, &str, &str); 6] = [
    ("tokenizer.json", "model.vocab", "tokenizer.ggml.tokens"),
    ("tokenizer.json", "model.merges", "tokenizer.ggml.merges"),
    ("tokenizer.json", "pre_tokenizer", "tokenizer.ggml.pre"),
    ("tokenizer_config.json", "bos_token", "tokenizer.ggml.bos_token_id"),
    ("tokenizer_config.json", "eos_token", "tokenizer.ggml.eos_token_id"),
    ("generation_config.json", "eos_token_id", "limpid.tokenizer.end_token_ids"),
];

impl Architecture {
    /// The architecture of a `model_type`.
    pub(super) fn of(model_type: &str) -> Option<&'static Architecture> {
        Architecture::known().find(|architecture| architecture.model_types.contains(&model_type))
    }

    /// All values of `model_type`, for a message.
    pub(super) fn supported() -> String {
        let types: Vec<&str> = Architecture::known().flat_map(|known| known.model_types).copied().collect();
        types.join(", ")
    }

    /// Those that there are programs for.
    fn known() -> impl Iterator<Item = &'static Architecture> {
        ARCHITECTURES.iter().filter(|known| architectures().any(|name| name == known.name))
    }

    fn parts(&self) -> impl Iterator<Item = (&'static str, &'static str)> + use<'_> {
        self.parts.iter().chain(&PARTS).copied()
    }

    /// GGUF's name of a tensor.
    pub(super) fn tensor_in_gguf(&self, name: &str) -> Option<String> {
        if let Some((_, gguf)) = TENSORS.into_iter().find(|(own, _)| *own == name) {
            return Some(gguf.to_owned());
        }
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (part, what) = rest.rsplit_once('.')?;
        let (_, gguf) = self.parts().find(|(own, _)| *own == part)?;
        is_number(layer).then(|| format!("blk.{layer}.{gguf}.{what}"))
    }

    /// Hugging Face's name of a tensor.
    pub(super) fn tensor_here(&self, gguf: &str) -> Option<String> {
        if let Some((own, _)) = TENSORS.into_iter().find(|(_, other)| *other == gguf) {
            return Some(own.to_owned());
        }
        let (layer, rest) = gguf.strip_prefix("blk.")?.split_once('.')?;
        let (part, what) = rest.rsplit_once('.')?;
        let (own, _) = self.parts().find(|(_, other)| *other == part)?;
        Some(format!("model.layers.{layer}.{own}.{what}"))
    }

    /// Hugging Face's name of a key, with its file, as they stand between the quotes of a message.
    fn key_here(&self, gguf: &str) -> Option<String> {
        let quoted = |key: &str, file: &str| format!("{key}` in `{file}");
        if let Some((file, key, _)) = TOKENIZER_KEYS.into_iter().find(|(_, _, other)| *other == gguf) {
            return Some(quoted(key, file));
        }
        if gguf == "tokenizer.chat_template" {
            // It may be in two files.
            return Some("chat_template".to_owned());
        }
        let setting = gguf.strip_prefix(self.name)?.strip_prefix('.')?;
        let (key, _) = COUNTS.into_iter().chain(OTHER_KEYS).find(|(_, other)| *other == setting)?;
        Some(quoted(key, "config.json"))
    }

    /// A message about GGUF's names, which it has between backquotes, in the words of the directory.
    pub(super) fn in_own_words(&self, message: &str) -> String {
        let words = message.split('`').enumerate().map(|(index, word)| match index % 2 {
            1 => self.tensor_here(word).or_else(|| self.key_here(word)).unwrap_or_else(|| word.to_owned()),
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join("`")
    }
}

fn is_number(text: &str) -> bool {
    // Without leading zeros, or two tensors could come by the same name.
    text.parse::<u32>().is_ok_and(|number| number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_comes_back_under_its_own_name() {
        for architecture in &ARCHITECTURES {
            let layers = architecture.parts().map(|(own, _)| format!("model.layers.17.{own}.weight"));
            let names = TENSORS.into_iter().map(|(own, _)| own.to_owned()).chain(layers);
            for name in names {
                let gguf = architecture.tensor_in_gguf(&name).expect("it is in the tables");
                let back = architecture.tensor_here(&gguf).expect("it is in the tables");
                // Where an architecture has a name of its own, the common one is never in its files.
                let own = architecture.parts.iter().any(|(_, other)| gguf.contains(other));
                assert!(back == name || own, "{}: {name} → {gguf} → {back}", architecture.name);
            }
        }
    }

    #[test]
    fn messages_speak_of_the_directorys_files() {
        let llama = Architecture::of("mistral").expect("a llama");
        assert_eq!(
            llama.in_own_words("missing `blk.3.ffn_up.weight`; `llama.block_count` is 0; `other` stays"),
            "missing `model.layers.3.mlp.up_proj.weight`; `num_hidden_layers` in `config.json` is 0; `other` stays"
        );
    }

    #[test]
    fn only_plain_numbers_are_layers() {
        let llama = Architecture::of("llama").expect("a llama");
        for name in
            ["model.layers.01.mlp.up_proj.weight", "model.layers.+1.mlp.up_proj.weight", "model.layers.1"]
        {
            assert_eq!(llama.tensor_in_gguf(name), None, "{name}");
        }
    }
}
