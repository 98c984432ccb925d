//! Reading hyperparameters: each getter bounds what it reads and names the key when it refuses.
//!
//! What a file asks for beyond what programs compute is refused by name, never ignored: a program that leaves
//! something out gives wrong texts, not errors.

use super::ModelProblem;
use super::source::ModelSource;
use crate::gguf::{Metadata, Value};
use crate::program::{RopeScaling, Rotation, Yarn};

/// Largest width or number of heads: far above real models, and small enough that products of two do not
/// overflow.
pub(super) const MAX_WIDTH: usize = 1 << 20;

/// The error for a key with a value that is not acceptable.
pub(super) fn refuse(key: &str, found: impl ToString, allowed: impl Into<String>) -> ModelProblem {
    ModelProblem::Setting { key: key.to_owned(), found: found.to_string(), allowed: allowed.into() }
}

/// A number of things, from 1 to `limit`, that must be given.
pub(super) fn count(metadata: Metadata<'_>, key: &str, limit: usize) -> Result<usize, ModelProblem> {
    check_count(key, metadata.require::<u32>(key)?, limit)
}

/// A number of things, from 1 to `limit`, that may be missing.
pub(super) fn optional_count(
    metadata: Metadata<'_>,
    key: &str,
    limit: usize,
) -> Result<Option<usize>, ModelProblem> {
    metadata.get::<u32>(key)?.map(|found| check_count(key, found, limit)).transpose()
}

fn check_count(key: &str, found: u32, limit: usize) -> Result<usize, ModelProblem> {
    match found as usize {
        count if (1..=limit).contains(&count) => Ok(count),
        _ => Err(refuse(key, found, format!("1 to {limit} are allowed"))),
    }
}

/// A finite number above zero.
pub(super) fn positive(key: &str, found: f32) -> Result<f32, ModelProblem> {
    if found.is_finite() && found > 0.0 {
        Ok(found)
    } else {
        Err(refuse(key, found, "it must be a finite number above 0"))
    }
}

/// Which layers attend to a window: those that the file names, or all but every `period`th, where the file may
/// have another period.
pub(super) fn windowed_layers(
    metadata: Metadata<'_>,
    architecture: &str,
    layers: usize,
    period: usize,
) -> Result<Vec<bool>, ModelProblem> {
    let key = format!("{architecture}.attention.sliding_window_pattern");
    if let Some(Value::Array(_)) = metadata.value(&key) {
        let windowed: Vec<bool> = metadata.require(&key)?;
        return match windowed.len() {
            found if found == layers => Ok(windowed),
            found => Err(refuse(&key, format!("an array of {found}"), format!("there are {layers} layers"))),
        };
    }
    let period = optional_count(metadata, &key, MAX_WIDTH)?.unwrap_or(period);
    Ok((0..layers).map(|layer| layer % period < period - 1).collect())
}

/// Hyperparameters of a decoder, checked.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) layers: usize,
    pub(super) width: usize,
    pub(super) feed_forward: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Of queries and keys.
    pub(super) head_size: usize,
    pub(super) value_head_size: usize,
    pub(super) rotation: Rotation,
    pub(super) epsilon: f32,
    /// Positions that a token sees in layers that attend to a window.
    pub(super) window: Option<usize>,
}

impl Settings {
    /// Reads the keys that begin with the architecture's name.
    pub(super) fn read(source: &dyn ModelSource, architecture: &str) -> Result<Settings, ModelProblem> {
        let metadata = source.metadata();
        let key = |name: &str| format!("{architecture}.{name}");
        if let Some(experts @ 1..) = metadata.get::<u32>(&key("expert_count"))? {
            return Err(refuse(&key("expert_count"), experts, "mixtures of experts are not supported"));
        }
        // Every layer has tensors of its own, so a forged number of layers cannot make the program larger
        // than the file.
        let layers = count(metadata, &key("block_count"), source.tensors().len())?;
        let width = count(metadata, &key("embedding_length"), MAX_WIDTH)?;
        let heads_key = key("attention.head_count");
        let heads = count(metadata, &heads_key, MAX_WIDTH)?;
        let kv_heads_key = key("attention.head_count_kv");
        let kv_heads = optional_count(metadata, &kv_heads_key, MAX_WIDTH)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let allowed = format!("it must divide `{heads_key}`, which is {heads}");
            return Err(refuse(&kv_heads_key, kv_heads, allowed));
        }
        let size_of_heads = |length: &str| match optional_count(metadata, &key(length), MAX_WIDTH)? {
            Some(size) => Ok(size),
            None if width.is_multiple_of(heads) => Ok(width / heads),
            None => {
                let (length, width_key) = (key(length), key("embedding_length"));
                let allowed = format!("without `{length}` it must divide `{width_key}`, which is {width}");
                Err(refuse(&heads_key, heads, allowed))
            }
        };
        let head_size = size_of_heads("attention.key_length")?;
        let value_head_size = size_of_heads("attention.value_length")?;
        let rotary_key = key("rope.dimension_count");
        let rotary = optional_count(metadata, &rotary_key, MAX_WIDTH)?.unwrap_or(head_size);
        if rotary > head_size || !rotary.is_multiple_of(2) {
            let allowed = format!("it must be even and at most the size of a key, which is {head_size}");
            return Err(refuse(&rotary_key, rotary, allowed));
        }
        // Newer architectures have other heads in layers with a window.
        for (name, size) in [
            ("attention.key_length_swa", head_size),
            ("attention.value_length_swa", value_head_size),
            ("rope.dimension_count_swa", rotary),
        ] {
            let key = key(name);
            if let Some(found) = optional_count(metadata, &key, MAX_WIDTH)?.filter(|found| *found != size) {
                return Err(refuse(&key, found, format!("it must be as in the other layers, {size}")));
            }
        }
        let epsilon_key = key("attention.layer_norm_rms_epsilon");
        Ok(Settings {
            layers,
            width,
            feed_forward: count(metadata, &key("feed_forward_length"), MAX_WIDTH)?,
            heads,
            kv_heads,
            head_size,
            value_head_size,
            rotation: rotation(metadata, architecture, rotary)?,
            epsilon: positive(&epsilon_key, metadata.require(&epsilon_key)?)?,
            window: window(metadata, architecture)?.filter(|_| !UNCLEAR_WINDOWS.contains(&architecture)),
        })
    }
}

/// How positions turn the first `rotary` values of a head.
fn rotation(metadata: Metadata<'_>, architecture: &str, rotary: usize) -> Result<Rotation, ModelProblem> {
    let key = |name: &str| format!("{architecture}.rope.{name}");
    let number = |name: &str, default: f32| -> Result<f32, ModelProblem> {
        let key = key(name);
        positive(&key, metadata.get(&key)?.unwrap_or(default))
    };
    for (name, meaningless) in [
        ("scaling.alpha", 0.0),
        ("scaling.yarn_log_multiplier", 0.0),
        ("scaling.yarn_ext_factor", 1.0),
        ("scaling.yarn_attn_factor", 1.0),
    ] {
        let key = key(name);
        if let Some(found) = metadata.get::<f32>(&key)?.filter(|found| *found != meaningless) {
            return Err(refuse(&key, found, format!("{meaningless} and no such key are supported")));
        }
    }
    let base = number("freq_base", 10_000.0)?;
    // 0 means none; the second key is an older name.
    let factor = match metadata.get::<f32>(&key("scaling.factor"))? {
        Some(0.0) => 1.0,
        Some(_) => number("scaling.factor", 1.0)?,
        None => match metadata.get::<f32>(&key("scale_linear"))? {
            None | Some(0.0) => 1.0,
            Some(_) => number("scale_linear", 1.0)?,
        },
    };
    let (scaling, growth) = match metadata.get::<&str>(&key("scaling.type"))? {
        Some("none") => (RopeScaling::Linear(1.0), 1.0),
        None | Some("linear") => (RopeScaling::Linear(factor), 1.0),
        // Its factors are tensors.
        Some("longrope") if architecture == "phi3" => (RopeScaling::Linear(factor), 1.0),
        Some("yarn") => {
            let original = original_context(metadata, architecture)?;
            let (fast, slow) =
                (number("scaling.yarn_beta_fast", 32.0)?, number("scaling.yarn_beta_slow", 1.0)?);
            let yarn = Yarn::new(factor, rotary, base, original, fast, slow);
            (RopeScaling::Yarn(yarn), Yarn::magnitude(factor))
        }
        Some(found) => {
            let allowed = "supported are `none`, `linear`, `yarn`, in phi3 files `longrope`, and the factors of a \
                           tensor `rope_freqs.weight`";
            return Err(refuse(&key("scaling.type"), found, allowed));
        }
    };
    let magnitude = growth * number("scaling.attn_factor", 1.0)?;
    Ok(Rotation { scaling, magnitude, ..Rotation::plain(rotary, base) })
}

/// Longest sequence that a model was trained on before its context was extended.
pub(super) fn original_context(metadata: Metadata<'_>, architecture: &str) -> Result<usize, ModelProblem> {
    let key = format!("{architecture}.rope.scaling.original_context_length");
    match optional_count(metadata, &key, u32::MAX as usize)? {
        Some(original) => Ok(original),
        None => count(metadata, &format!("{architecture}.context_length"), u32::MAX as usize),
    }
}

/// Architectures in whose files a window is for some layers, and which ones is not said.
const UNCLEAR_WINDOWS: [&str; 2] = ["qwen2", "qwen3"];

/// Positions that a token sees in layers that attend to a window, if the model has any.
fn window(metadata: Metadata<'_>, architecture: &str) -> Result<Option<usize>, ModelProblem> {
    let window = metadata.get::<u32>(&format!("{architecture}.attention.sliding_window"))?;
    Ok(window.map(|window| window as usize).filter(|window| *window > 0))
}

/// Longest sequence of a model. Where it is unclear which layers a window is for, that is as long as the window:
/// up to there it makes no difference.
pub(super) fn context_length(metadata: Metadata<'_>, architecture: &str) -> Result<usize, ModelProblem> {
    let context = count(metadata, &format!("{architecture}.context_length"), u32::MAX as usize)?;
    let window = window(metadata, architecture)?.filter(|_| UNCLEAR_WINDOWS.contains(&architecture));
    Ok(context.min(window.unwrap_or(context)))
}
