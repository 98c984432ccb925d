//! Reading hyperparameters: each getter bounds what it reads and names the key when it refuses.

use super::ModelProblem;
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
