//! The parameters that chat and text completions share: read, checked, and turned into the engine's.
//!
//! Names, defaults and limits are vLLM's. A parameter that is known and not supported is refused, never
//! ignored, unless its value asks for nothing ([`refuse_unsupported`]).
//!
//! Invariant: sampling parameters that come out of here need no more checks.

use std::sync::Arc;

use limpid_engine::request::SamplingParams;
use limpid_telemetry::RequestParams;
use serde_json::Value;

use super::error::{ApiError, ErrorKind};
use super::json::{Fields, quote};

/// Most alternatives per position, vLLM's `--max-logprobs` default.
pub(super) const MAX_LOGPROBS: i64 = 20;
/// Most choices of one request, OpenAI's limit.
pub(super) const MAX_CHOICES: i64 = 128;
const MAX_STOP_STRINGS: usize = 16;
const MAX_STOP_STRING_BYTES: usize = 512;
const MAX_STOP_TOKENS: usize = 256;
const MAX_LOGIT_BIASES: usize = 1024;
const MAX_CACHE_SALT_BYTES: usize = 512;

/// What the checks depend on besides the request.
pub(super) struct Limits<'a> {
    /// Tokens in the vocabulary.
    pub(super) vocabulary_size: usize,
    /// The model's own end tokens.
    pub(super) end_token_ids: &'a [u32],
    /// Whether requests may have priorities.
    pub(super) has_priorities: bool,
}

/// The shared parameters.
#[derive(Debug)]
pub(super) struct Params {
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// Choices to answer with.
    pub(super) n: usize,
    /// Choices to generate; the best `n` of them are the answer.
    pub(super) best_of: usize,
    /// `max_tokens` is set once the prompt's length is known.
    pub(super) sampling: SamplingParams,
    /// As the client asked for it.
    pub(super) max_tokens: Option<usize>,
    pub(super) stop: Vec<String>,
    pub(super) skip_special_tokens: bool,
    pub(super) priority: i32,
    pub(super) cache_salt: Option<Arc<str>>,
    /// What the client set, for the trace.
    pub(super) recorded: RequestParams,
}

impl Params {
    /// Reads the shared parameters; `logprobs` has another shape on each endpoint and is the caller's.
    pub(super) fn parse(
        fields: &mut Fields,
        logprobs: Option<usize>,
        limits: &Limits<'_>,
    ) -> Result<Params, ApiError> {
        let stream = fields.flag("stream", false)?;
        let include_usage = stream_options(fields, stream)?;
        let mut recorded = RequestParams { stream, ..RequestParams::default() };
        let n = integer(fields, "n", 1..=MAX_CHOICES)?;
        recorded.n = n.map(|n| n as u64);
        let n = n.unwrap_or(1) as usize;

        let old_limit = integer(fields, "max_tokens", 1..=i64::MAX)?;
        let new_limit = integer(fields, "max_completion_tokens", 1..=i64::MAX)?;
        let max_tokens = new_limit.or(old_limit);
        recorded.max_tokens = max_tokens.map(|limit| limit as u64);

        recorded.temperature = number(fields, "temperature", "at least 0", |value| value >= 0.0)?;
        recorded.top_p =
            number(fields, "top_p", "more than 0, at most 1", |value| value > 0.0 && value <= 1.0)?;
        recorded.top_k = integer(fields, "top_k", -1..=i64::from(u32::MAX))?;
        recorded.min_p = number(fields, "min_p", "0 to 1", |value| (0.0..=1.0).contains(&value))?;
        let from_minus_two = |value: f64| (-2.0..=2.0).contains(&value);
        recorded.frequency_penalty = number(fields, "frequency_penalty", "-2 to 2", from_minus_two)?;
        recorded.presence_penalty = number(fields, "presence_penalty", "-2 to 2", from_minus_two)?;
        recorded.repetition_penalty =
            number(fields, "repetition_penalty", "more than 0", |value| value as f32 > 0.0)?;
        recorded.seed = integer(fields, "seed", i64::MIN..=i64::MAX)?;
        let stop = stop_strings(fields)?;
        recorded.stop_sequences.clone_from(&stop);

        let ignore_eos = fields.flag("ignore_eos", false)?;
        let mut stop_token_ids = token_ids(fields, "stop_token_ids", limits)?;
        if !ignore_eos {
            stop_token_ids.extend_from_slice(limits.end_token_ids);
        }
        let min_tokens = integer(fields, "min_tokens", 0..=i64::MAX)?.unwrap_or(0);
        let default = SamplingParams::default();
        let or = |value: Option<f64>, default: f32| value.map_or(default, |value| value as f32);
        let sampling = SamplingParams {
            temperature: or(recorded.temperature, default.temperature),
            // 0 and -1 keep all tokens.
            top_k: recorded.top_k.filter(|k| *k > 0).map(|k| k as usize),
            top_p: or(recorded.top_p, default.top_p),
            min_p: or(recorded.min_p, default.min_p),
            // -1 is no seed, as in vLLM.
            seed: recorded.seed.filter(|seed| *seed != -1).map(|seed| seed as u64),
            repetition_penalty: or(recorded.repetition_penalty, default.repetition_penalty),
            presence_penalty: or(recorded.presence_penalty, default.presence_penalty),
            frequency_penalty: or(recorded.frequency_penalty, default.frequency_penalty),
            logit_bias: logit_bias(fields, limits)?,
            max_tokens: default.max_tokens,
            min_tokens: min_tokens as usize,
            stop_token_ids,
            logprobs,
        };
        Ok(Params {
            stream,
            include_usage,
            n,
            best_of: n,
            sampling,
            max_tokens: max_tokens.map(|limit| limit as usize),
            stop,
            skip_special_tokens: fields.flag("skip_special_tokens", true)?,
            priority: priority(fields, limits)?,
            cache_salt: cache_salt(fields)?,
            recorded,
        })
    }

    /// Fits the answer into the context, or refuses. `default` is the length of an answer that nobody limited.
    pub(super) fn fit(
        &mut self,
        num_prompt_tokens: usize,
        max_model_len: usize,
        default: usize,
    ) -> Result<(), ApiError> {
        let too_long = |message: String, param: &str| ApiError {
            param: Some(param.to_owned()),
            ..ApiError::new(ErrorKind::ContextLength, message)
        };
        if num_prompt_tokens >= max_model_len {
            let message = format!(
                "the prompt has {num_prompt_tokens} tokens; allowed: at most {}, because the context of \
                 {max_model_len} tokens has to hold at least one generated token as well",
                max_model_len - 1
            );
            return Err(too_long(message, "prompt"));
        }
        let room = max_model_len - num_prompt_tokens;
        if let Some(max_tokens) = self.max_tokens.filter(|limit| *limit > room) {
            let message = format!(
                "max_tokens is {max_tokens}; allowed: at most {room}, because the context holds \
                 {max_model_len} tokens and the prompt has {num_prompt_tokens}"
            );
            return Err(too_long(message, "max_tokens"));
        }
        self.sampling.max_tokens = self.max_tokens.unwrap_or(default).min(room);
        if self.sampling.min_tokens > self.sampling.max_tokens {
            let allowed = format!("0 to {}, which is max_tokens", self.sampling.max_tokens);
            return Err(ApiError::field("min_tokens", self.sampling.min_tokens, allowed));
        }
        Ok(())
    }
}

/// A whole number; `5.0` is one too, because JSON knows only numbers.
pub(super) fn integer(
    fields: &mut Fields,
    name: &str,
    range: std::ops::RangeInclusive<i64>,
) -> Result<Option<i64>, ApiError> {
    /// Beyond it, a double no longer tells neighbouring whole numbers apart.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let Some(value) = fields.take_value(name) else { return Ok(None) };
    let whole = |value: f64| (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64);
    let number = value.as_i64().or_else(|| value.as_f64().and_then(whole));
    match number.filter(|number| range.contains(number)) {
        Some(number) => Ok(Some(number)),
        None => {
            let allowed = match (*range.start(), *range.end()) {
                (i64::MIN, _) => "a whole number of 64 bits".to_owned(),
                (low, i64::MAX) => format!("a whole number, at least {low}"),
                (low, high) if low == high => low.to_string(),
                (low, high) => format!("a whole number, {low} to {high}"),
            };
            Err(ApiError::field(name, quote(&value), allowed))
        }
    }
}

/// A finite number that fits into 32 bits and passes `check`.
fn number(
    fields: &mut Fields,
    name: &str,
    allowed: &str,
    check: impl Fn(f64) -> bool,
) -> Result<Option<f64>, ApiError> {
    let Some(value) = fields.take_value(name) else { return Ok(None) };
    match value.as_f64().filter(|number| (*number as f32).is_finite() && check(*number)) {
        Some(number) => Ok(Some(number)),
        None => Err(ApiError::field(name, quote(&value), format!("a number, {allowed}"))),
    }
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.take_value("stream_options") else { return Ok(false) };
    let Value::Object(options) = options else {
        return Err(ApiError::field("stream_options", quote(&options), "an object"));
    };
    if !stream {
        return Err(ApiError::field("stream_options", "set", "absent unless stream is true"));
    }
    let mut options = Fields::from(options);
    if options.flag("continuous_usage_stats", false)? {
        return Err(ApiError::unsupported("stream_options.continuous_usage_stats", true, false));
    }
    options.flag("include_usage", false)
}

fn stop_strings(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let Some(value) = fields.take_value("stop") else { return Ok(Vec::new()) };
    let found = quote(&value);
    let stops = match value {
        Value::String(stop) => Some(vec![stop]),
        Value::Array(stops) if stops.len() <= MAX_STOP_STRINGS => stops
            .into_iter()
            .map(|stop| if let Value::String(stop) = stop { Some(stop) } else { None })
            .collect(),
        _ => None,
    };
    stops
        .filter(|stops| stops.iter().all(|stop| (1..=MAX_STOP_STRING_BYTES).contains(&stop.len())))
        .ok_or_else(|| {
            let allowed = format!(
                "a string or up to {MAX_STOP_STRINGS} strings, each of 1 to {MAX_STOP_STRING_BYTES} bytes"
            );
            ApiError::field("stop", found, allowed)
        })
}

/// A list of token ids of the vocabulary.
fn token_ids(fields: &mut Fields, name: &str, limits: &Limits<'_>) -> Result<Vec<u32>, ApiError> {
    let Some(value) = fields.take_value(name) else { return Ok(Vec::new()) };
    let found = quote(&value);
    serde_json::from_value::<Vec<u32>>(value)
        .ok()
        .filter(|ids| ids.len() <= MAX_STOP_TOKENS)
        .filter(|ids| ids.iter().all(|id| (*id as usize) < limits.vocabulary_size))
        .ok_or_else(|| {
            let allowed = format!("up to {MAX_STOP_TOKENS} token ids, each below {}", limits.vocabulary_size);
            ApiError::field(name, found, allowed)
        })
}

fn logit_bias(fields: &mut Fields, limits: &Limits<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(value) = fields.take_value("logit_bias") else { return Ok(Vec::new()) };
    let entry = |(id, bias): (&String, &Value)| {
        let id: u32 = id.parse().ok().filter(|id| (*id as usize) < limits.vocabulary_size)?;
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        Some((id, bias as f32))
    };
    let biases = value
        .as_object()
        .filter(|map| map.len() <= MAX_LOGIT_BIASES)
        .and_then(|map| map.iter().map(entry).collect());
    biases.ok_or_else(|| {
        let allowed = format!(
            "an object of up to {MAX_LOGIT_BIASES} entries, token id below {} to a number, -100 to 100",
            limits.vocabulary_size
        );
        ApiError::field("logit_bias", quote(&value), allowed)
    })
}

fn priority(fields: &mut Fields, limits: &Limits<'_>) -> Result<i32, ApiError> {
    let range = i64::from(i32::MIN)..=i64::from(i32::MAX);
    let priority = integer(fields, "priority", range)?.unwrap_or(0) as i32;
    if priority != 0 && !limits.has_priorities {
        let allowed = "0, unless the server was started with --scheduling-policy priority";
        return Err(ApiError::field("priority", priority, allowed));
    }
    Ok(priority)
}

fn cache_salt(fields: &mut Fields) -> Result<Option<Arc<str>>, ApiError> {
    let allowed = format!("a string of 1 to {MAX_CACHE_SALT_BYTES} bytes");
    let salt: Option<String> = fields.take("cache_salt", &allowed)?;
    match salt {
        Some(salt) if !(1..=MAX_CACHE_SALT_BYTES).contains(&salt.len()) => {
            Err(ApiError::field("cache_salt", format!("a string of {} bytes", salt.len()), allowed))
        }
        salt => Ok(salt.map(Arc::from)),
    }
}

/// A parameter that is known but not supported, and the values of it that ask for nothing.
pub(super) struct Unsupported {
    pub(super) name: &'static str,
    pub(super) is_neutral: fn(&Value) -> bool,
    pub(super) allowed: &'static str,
}

/// Not supported at all.
pub(super) const fn absent(name: &'static str) -> Unsupported {
    Unsupported { name, is_neutral: |_| false, allowed: "null" }
}

/// A flag that cannot be set.
pub(super) const fn off(name: &'static str) -> Unsupported {
    Unsupported { name, is_neutral: |value| *value == false, allowed: "false" }
}

/// A list, object or string that has to be empty.
pub(super) const fn empty(name: &'static str) -> Unsupported {
    let is_neutral = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    Unsupported { name, is_neutral, allowed: "empty" }
}

/// A number that has to be 1.
pub(super) const fn one(name: &'static str) -> Unsupported {
    Unsupported { name, is_neutral: |value| value.as_f64() == Some(1.0), allowed: "1" }
}

/// What neither endpoint supports.
const UNSUPPORTED: &[Unsupported] = &[
    off("use_beam_search"),
    one("length_penalty"),
    off("echo"),
    absent("prompt_logprobs"),
    Unsupported {
        name: "response_format",
        is_neutral: |value| value.get("type").and_then(Value::as_str) == Some("text"),
        allowed: r#"{"type": "text"}"#,
    },
    absent("structured_outputs"),
    absent("guided_json"),
    absent("guided_regex"),
    absent("guided_choice"),
    absent("guided_grammar"),
    absent("structural_tag"),
    absent("allowed_token_ids"),
    empty("bad_words"),
    empty("logits_processors"),
    off("include_stop_str_in_output"),
    absent("truncate_prompt_tokens"),
    off("return_token_ids"),
    off("return_tokens_as_token_ids"),
    absent("kv_transfer_params"),
    empty("vllm_xargs"),
];

/// Refuses what is known and not supported, here and in the endpoint's own list.
pub(super) fn refuse_unsupported(fields: &Fields, own: &[Unsupported]) -> Result<(), ApiError> {
    for Unsupported { name, is_neutral, allowed } in UNSUPPORTED.iter().chain(own) {
        if let Some(value) = fields.get(name)
            && !is_neutral(value)
        {
            return Err(ApiError::unsupported(name, quote(value), allowed));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
