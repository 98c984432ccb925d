//! Reading hyperparameters: each getter bounds what it reads and names the key when it refuses.
//!
//! What a file asks for beyond what programs compute is refused by name, never ignored: a program that leaves
//! something out gives wrong texts, not errors.

use super::ModelProblem;
use super::source::ModelSource;
use crate::gguf::Metadata;

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

/// Hyperparameters of a decoder, checked.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    pub(super) layers: usize,
    pub(super) width: usize,
    pub(super) feed_forward: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_size: usize,
    pub(super) rotary: usize,
    pub(super) rope_base: f32,
    pub(super) epsilon: f32,
}

impl Settings {
    /// Reads the keys that begin with the architecture's name.
    pub(super) fn read(source: &dyn ModelSource, architecture: &str) -> Result<Settings, ModelProblem> {
        let metadata = source.metadata();
        let key = |name: &str| format!("{architecture}.{name}");
        if let Some(experts @ 1..) = metadata.get::<u32>(&key("expert_count"))? {
            return Err(refuse(&key("expert_count"), experts, "mixtures of experts are not supported"));
        }
        refuse_rope_scaling(metadata, &key)?;
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
        let head_size = head_size(metadata, &key, width, heads)?;
        let rotary_key = key("rope.dimension_count");
        let rotary = optional_count(metadata, &rotary_key, MAX_WIDTH)?.unwrap_or(head_size);
        if rotary > head_size || !rotary.is_multiple_of(2) {
            let allowed = format!("it must be even and at most the size of a head, which is {head_size}");
            return Err(refuse(&rotary_key, rotary, allowed));
        }
        let (base_key, epsilon_key) = (key("rope.freq_base"), key("attention.layer_norm_rms_epsilon"));
        Ok(Settings {
            layers,
            width,
            feed_forward: count(metadata, &key("feed_forward_length"), MAX_WIDTH)?,
            heads,
            kv_heads,
            head_size,
            rotary,
            rope_base: positive(&base_key, metadata.get(&base_key)?.unwrap_or(10_000.0))?,
            epsilon: positive(&epsilon_key, metadata.require(&epsilon_key)?)?,
        })
    }
}

fn head_size(
    metadata: Metadata<'_>,
    key: &impl Fn(&str) -> String,
    width: usize,
    heads: usize,
) -> Result<usize, ModelProblem> {
    let key_length = key("attention.key_length");
    let head_size = match optional_count(metadata, &key_length, MAX_WIDTH)? {
        Some(head_size) => head_size,
        None if width.is_multiple_of(heads) => width / heads,
        None => {
            let (heads_key, width_key) = (key("attention.head_count"), key("embedding_length"));
            let allowed = format!("without `{key_length}` it must divide `{width_key}`, which is {width}");
            return Err(refuse(&heads_key, heads, allowed));
        }
    };
    let value_length = key("attention.value_length");
    match optional_count(metadata, &value_length, MAX_WIDTH)? {
        Some(value_size) if value_size != head_size => Err(refuse(
            &value_length,
            value_size,
            format!("it must equal the size of a key, which is {head_size}"),
        )),
        _ => Ok(head_size),
    }
}

fn refuse_rope_scaling(metadata: Metadata<'_>, key: &impl Fn(&str) -> String) -> Result<(), ModelProblem> {
    const ALLOWED: &str = "supported are `none` and the factors of a tensor `rope_freqs.weight`";
    let scaling = key("rope.scaling.type");
    match metadata.get::<&str>(&scaling)? {
        Some("none") => {}
        Some(found) => return Err(refuse(&scaling, found, ALLOWED)),
        // Without a type a factor means linear scaling; 0 and 1 mean none.
        None => {
            for key in ["rope.scaling.factor", "rope.scale_linear"].map(key) {
                match metadata.get::<f32>(&key)? {
                    None | Some(0.0 | 1.0) => {}
                    Some(found) => return Err(refuse(&key, found, ALLOWED)),
                }
            }
        }
    }
    Ok(())
}

/// Longest sequence of a model. Where layers attend to a window of the context, that is as long as the
/// window: up to there the program, which attends to everything, computes the same.
pub(super) fn context_length(metadata: Metadata<'_>, architecture: &str) -> Result<usize, ModelProblem> {
    let context = count(metadata, &format!("{architecture}.context_length"), u32::MAX as usize)?;
    match metadata.get::<u32>(&format!("{architecture}.attention.sliding_window"))? {
        None | Some(0) => Ok(context),
        Some(window) => Ok(context.min(window as usize)),
    }
}
