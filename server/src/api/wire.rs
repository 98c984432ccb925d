//! What both endpoints' answers have in common on the wire.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use limpid_telemetry::observation::FinishReason;
use serde::{Serialize, Serializer};

use crate::frontend::{Finish, Logprob, StopCause, Usage};

/// What is the same in every chunk of an answer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: String,
}

/// Seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// `usage`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct UsageBody {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> UsageBody {
        UsageBody {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
        }
    }
}

/// `usage` of a chunk: left out, null, or filled.
#[derive(Clone, Copy, Debug)]
pub(super) enum ChunkUsage {
    /// The client did not ask for usage.
    Absent,
    /// It did, and this is not the last chunk.
    Null,
    /// This is.
    Total(Usage),
}

impl ChunkUsage {
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, ChunkUsage::Absent)
    }
}

impl Serialize for ChunkUsage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            ChunkUsage::Absent | ChunkUsage::Null => serializer.serialize_none(),
            ChunkUsage::Total(usage) => UsageBody::from(*usage).serialize(serializer),
        }
    }
}

/// `finish_reason`, null until the last chunk.
pub(super) fn finish_reason(finish: Option<&Finish>) -> Option<&'static str> {
    finish.map(|finish| finish.reason.as_str())
}

/// vLLM's `stop_reason`: the stop string or stop token that ended the text, null for any other end.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum StopReason {
    Text(String),
    Token(u32),
}

impl StopReason {
    pub(super) fn of(finish: &Finish) -> Option<StopReason> {
        Some(match finish.stop.clone()? {
            StopCause::Text(text) => StopReason::Text(text),
            StopCause::Token(id) => StopReason::Token(id),
        })
    }
}

/// Whether an answer that ended like this is one, or an error.
pub(super) fn is_failure(finish: &Finish) -> bool {
    finish.reason == FinishReason::Error
}

/// JSON has no minus infinity; OpenAI and vLLM write -9999.
pub(super) fn log_probability(logprob: &Logprob) -> f32 {
    logprob.logprob.max(-9999.0)
}

/// A token as text; bytes that are no whole character become U+FFFD.
pub(super) fn token_text(logprob: &Logprob) -> Cow<'_, str> {
    String::from_utf8_lossy(&logprob.bytes)
}
