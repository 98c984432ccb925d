//! `config.json` as GGUF's hyperparameters.
//!
//! What is out of range is for the reader of those to say; here it is only made sure that what GGUF has no key
//! for is refused rather than lost.

use serde_json::Value;

use super::HuggingFaceError;
use super::architecture::{Architecture, COUNTS};
use super::json::Settings;
use crate::gguf::Writer;

pub(super) const CONFIG: &str = "config.json";

/// Far above real models.
const MAX_HEAD_SIZE: u32 = 1 << 16;

/// What is needed of `config.json` beyond the hyperparameters.
pub(super) struct Config {
    pub(super) architecture: &'static Architecture,
    /// Tokens in the vocabulary, fillers included.
    pub(super) vocabulary: u32,
    /// Whether the embedding is also the output matrix.
    pub(super) tied: bool,
    /// Query and KV heads.
    pub(super) heads: [u32; 2],
    /// Factors of the rotation's frequencies, if they are scaled one by one.
    pub(super) rope_factors: Option<Vec<f32>>,
    pub(super) bos_token_id: Option<u32>,
    pub(super) eos_token_ids: Vec<u32>,
}

impl Config {
    /// Reads the file's settings and writes the hyperparameters.
    pub(super) fn convert(config: &Settings, out: &mut Writer) -> Result<Config, HuggingFaceError> {
        let supported = || format!("supported are {}", Architecture::supported());
        let model_type =
            config.text("model_type")?.ok_or_else(|| config.refuse("model_type", supported()))?;
        let architecture =
            Architecture::of(model_type).ok_or_else(|| config.refuse("model_type", supported()))?;
        if config.value("quantization_config").is_some() {
            let allowed = "weights that are quantised already are not supported; --quantization quantises F32, F16 \
                           and BF16 while loading";
            return Err(config.refuse("quantization_config", allowed));
        }
        let (activation_key, activation) = architecture.activation;
        if config.text(activation_key)?.is_some_and(|found| found != activation) {
            return Err(config.refuse(activation_key, format!("supported is {activation}")));
        }
        let key = |name: &str| format!("{}.{name}", architecture.name);
        let required = |name: &str| match config.count(name)? {
            Some(count) => Ok(count),
            None => Err(config.refuse(name, "an integer is needed")),
        };
        out.set("general.architecture", architecture.name);
        for (own, gguf) in COUNTS {
            let value = match (config.count(own)?, own) {
                (None, "num_key_value_heads") => required("num_attention_heads")?,
                (None, _) => required(own)?,
                (Some(value), _) => value,
            };
            out.set(&key(gguf), value);
        }
        let heads = required("num_attention_heads")?;
        let head_size = match config.count("head_dim")? {
            Some(size) => size,
            None => required("hidden_size")? / heads.max(1),
        };
        if head_size > MAX_HEAD_SIZE {
            return Err(
                config.refuse("head_dim", format!("at most {MAX_HEAD_SIZE} values a head are allowed"))
            );
        }
        // No architecture here has it; who writes it has other heads in mind than there would be.
        if config.count("v_head_dim")?.is_some_and(|found| found != head_size) {
            return Err(
                config.refuse("v_head_dim", format!("values have heads as keys have, of {head_size}"))
            );
        }
        out.set(&key("attention.key_length"), head_size).set(&key("attention.value_length"), head_size);
        let epsilon = config.number("rms_norm_eps")?;
        let epsilon = epsilon.ok_or_else(|| config.refuse("rms_norm_eps", "a number is needed"))?;
        out.set(&key("attention.layer_norm_rms_epsilon"), epsilon as f32);
        if config.flag("use_sliding_window")? != Some(false)
            && let Some(window) = config.count("sliding_window")?
        {
            out.set(&key("attention.sliding_window"), window);
        }
        if architecture.name == "gemma3" {
            gemma3(config, head_size, out)?;
        }
        let rotary = f64::from(head_size) * config.number("partial_rotary_factor")?.unwrap_or(1.0);
        let rotary = match rotary as u32 {
            rotary if rotary <= head_size => rotary,
            _ => return Err(config.refuse("partial_rotary_factor", "it must be above 0 and at most 1")),
        };
        out.set(&key("rope.dimension_count"), rotary);
        let rope_factors = rope(config, architecture, rotary, out)?;
        Ok(Config {
            architecture,
            vocabulary: required("vocab_size")?,
            tied: config.flag("tie_word_embeddings")?.unwrap_or(architecture.tied),
            heads: [heads, config.count("num_key_value_heads")?.unwrap_or(heads)],
            rope_factors,
            bos_token_id: config.count("bos_token_id")?,
            eos_token_ids: config.token_ids("eos_token_id")?,
        })
    }
}

/// Writes what Gemma 3 has beyond the others, and refuses what GGUF has no key for.
fn gemma3(config: &Settings, head_size: u32, out: &mut Writer) -> Result<(), HuggingFaceError> {
    const PATTERN: &str = "gemma3.attention.sliding_window_pattern";
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if config.value(key).is_some() {
            return Err(config.refuse(key, "soft caps are not supported; null means none"));
        }
    }
    if config.flag("use_bidirectional_attention")? == Some(true) {
        return Err(config.refuse("use_bidirectional_attention", "only causal attention is supported"));
    }
    let scalar = config.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    let (layers, heads) = (config.count("num_hidden_layers")?, config.count("num_attention_heads")?);
    let wanted = match (layers, config.count("hidden_size")?.zip(heads)) {
        // As GGUF's readers have it, the largest model differs from the others.
        (Some(62), Some((width, heads @ 1..))) => width / heads,
        _ => head_size,
    };
    if scalar != f64::from(wanted) {
        return Err(config.refuse("query_pre_attn_scalar", format!("supported is {wanted}")));
    }
    match (config.value("layer_types"), config.count("sliding_window_pattern")?) {
        (Some(types), _) => {
            let windowed = types.as_array().and_then(|types| types.iter().map(is_windowed).collect());
            let windowed: Vec<bool> = windowed.ok_or_else(|| {
                config.refuse("layer_types", "wanted is a list of `sliding_attention` and `full_attention`")
            })?;
            out.set(PATTERN, windowed);
        }
        (None, Some(period)) => {
            out.set(PATTERN, period);
        }
        (None, None) => {}
    }
    if let Some(base) = config.number("rope_local_base_freq")? {
        out.set("gemma3.rope.freq_base_swa", base as f32);
    }
    Ok(())
}

/// Whether a layer of this type attends to a window.
fn is_windowed(layer: &Value) -> Option<bool> {
    match layer.as_str()? {
        "sliding_attention" => Some(true),
        "full_attention" => Some(false),
        _ => None,
    }
}

/// Writes how positions turn, from `rope_theta` and `rope_scaling` or, as newer files have both,
/// `rope_parameters`. Returns factors of single frequencies.
fn rope(
    config: &Settings,
    architecture: &Architecture,
    rotary: u32,
    out: &mut Writer,
) -> Result<Option<Vec<f32>>, HuggingFaceError> {
    let key = |name: &str| format!("{}.{name}", architecture.name);
    let parameters = config.section("rope_parameters")?;
    let parameters = match parameters {
        // Each kind of layers may have its own.
        Some(parameters) if parameters.value("full_attention").is_some() => {
            if let Some(windowed) = parameters.section("sliding_attention")?
                && let Some(base) = windowed.number("rope_theta")?
            {
                out.set(&key("rope.freq_base_swa"), base as f32);
            }
            parameters.section("full_attention")?
        }
        parameters => parameters,
    };
    let base = match &parameters {
        Some(parameters) => parameters.number("rope_theta")?,
        None => config.number("rope_theta")?,
    };
    let base = base.unwrap_or(10_000.0);
    out.set(&key("rope.freq_base"), base as f32);
    let Some(scaling) = (match parameters {
        Some(parameters) => Some(parameters),
        None => config.section("rope_scaling")?,
    }) else {
        return Ok(None);
    };
    let name = if scaling.value("rope_type").is_some() { "rope_type" } else { "type" };
    let positive = |name: &str| match scaling.number(name)? {
        Some(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err(scaling.refuse(name, "a number above 0 is needed")),
    };
    match scaling.text(name)? {
        None | Some("default") => Ok(None),
        Some("llama3") => {
            let bounds = Llama3 {
                factor: positive("factor")?,
                low: positive("low_freq_factor")?,
                high: positive("high_freq_factor")?,
                original_context: positive("original_max_position_embeddings")?,
            };
            if bounds.low >= bounds.high {
                return Err(scaling.refuse("low_freq_factor", "it must be below `high_freq_factor`"));
            }
            Ok(Some((0..rotary / 2).map(|pair| bounds.factor(base, pair, rotary)).collect()))
        }
        Some(scaled @ ("linear" | "yarn")) => {
            out.set(&key("rope.scaling.type"), scaled)
                .set(&key("rope.scaling.factor"), positive("factor")? as f32);
            if scaling.value("original_max_position_embeddings").is_some() {
                let original = positive("original_max_position_embeddings")? as u32;
                out.set(&key("rope.scaling.original_context_length"), original);
            }
            for (name, gguf) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
                if scaling.value(name).is_some() {
                    out.set(&key(&format!("rope.scaling.{gguf}")), positive(name)? as f32);
                }
            }
            for name in ["attention_factor", "mscale", "mscale_all_dim"] {
                if scaling.value(name).is_some() {
                    return Err(scaling.refuse(name, "only the default is supported, with the key left out"));
                }
            }
            Ok(None)
        }
        Some(_) => Err(scaling.refuse(name, "supported are default, llama3, linear and yarn")),
    }
}

/// Llama 3.1's rule: slow rotations are slowed down by a factor, fast ones are left alone, and in between goes
/// smoothly.
struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    /// Tokens of the context that the model was first trained on.
    original_context: f64,
}

impl Llama3 {
    fn factor(&self, base: f64, pair: u32, rotary: u32) -> f32 {
        let turns = self.original_context * base.powf(-2.0 * f64::from(pair) / f64::from(rotary))
            / (2.0 * std::f64::consts::PI);
        let factor = if turns > self.high {
            1.0
        } else if turns < self.low {
            self.factor
        } else {
            let smooth = (turns - self.low) / (self.high - self.low);
            1.0 / ((1.0 - smooth) / self.factor + smooth)
        };
        factor as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the settings of Llama 3.2 1B.
    #[test]
    fn llama_3_keeps_fast_rotations_and_slows_the_others_down() {
        let rule = Llama3 { factor: 32.0, low: 1.0, high: 4.0, original_context: 8192.0 };
        let factors: Vec<f32> = (0..32).map(|pair| rule.factor(500_000.0, pair, 64)).collect();
        assert_eq!((factors[0], factors[14], factors[31]), (1.0, 1.0, 32.0));
        assert!(factors.is_sorted(), "{factors:?}");
        let between: Vec<f32> =
            factors.iter().copied().filter(|factor| (1.01..31.9).contains(factor)).collect();
        assert_eq!(between.len(), 3, "{factors:?}");
    }
}
