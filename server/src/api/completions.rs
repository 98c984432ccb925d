//! `/v1/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use limpid_telemetry::{Message, Operation};
use serde::Serialize;
use serde_json::{Map, Value};

use super::App;
use super::error::ApiError;
use super::generate::{Answer, Shape};
use super::json::{Fields, quote};
use super::observe::RequestContext;
use super::params::{
    MAX_CHOICES, MAX_LOGPROBS, Params, Unsupported, absent, empty, integer, refuse_unsupported,
};
use super::wire::{ChunkUsage, Head, StopReason, finish_reason, log_probability, token_text};
use crate::frontend::{Delta, TokenLogprob, Usage};

/// OpenAI's default length of a completion.
const DEFAULT_MAX_TOKENS: usize = 16;

/// What text completions do not support, beyond what no endpoint does.
const UNSUPPORTED: &[Unsupported] = &[empty("suffix"), absent("prompt_embeds")];

/// One prompt, as text or as token ids.
#[derive(Debug, PartialEq)]
pub(super) enum Prompt {
    Text { text: String, add_special_tokens: bool },
    Tokens(Vec<u32>),
}

impl Prompt {
    pub(super) fn parse(fields: &mut Fields, vocabulary_size: usize) -> Result<Prompt, ApiError> {
        let add_special_tokens = fields.flag("add_special_tokens", true)?;
        let value = fields
            .take_value("prompt")
            .ok_or_else(|| ApiError::field("prompt", "absent", "a string or a list of token ids"))?;
        Prompt::of(value, add_special_tokens, vocabulary_size)
    }

    fn of(value: Value, add_special_tokens: bool, vocabulary_size: usize) -> Result<Prompt, ApiError> {
        match value {
            Value::String(text) => Ok(Prompt::Text { text, add_special_tokens }),
            // Tokens, or a batch of prompts.
            Value::Array(mut items) => match items.first() {
                Some(Value::Number(_)) => token_ids("prompt", &items, vocabulary_size).map(Prompt::Tokens),
                Some(Value::String(_) | Value::Array(_)) if items.len() == 1 => {
                    match items.pop().unwrap_or_default() {
                        Value::Array(ids) => token_ids("prompt", &ids, vocabulary_size).map(Prompt::Tokens),
                        single => Prompt::of(single, add_special_tokens, vocabulary_size),
                    }
                }
                Some(Value::String(_) | Value::Array(_)) => {
                    let found = format!("a list of {} prompts", items.len());
                    Err(ApiError::unsupported("prompt", found, "one prompt a request"))
                }
                Some(_) | None => {
                    Err(ApiError::field("prompt", quote(&items.into()), "a string or a list of token ids"))
                }
            },
            other => Err(ApiError::field("prompt", quote(&other), "a string or a list of token ids")),
        }
    }

    /// The prompt's ids. Control tokens in the text are read as such, as in vLLM.
    pub(super) async fn encode(self, app: &Arc<App>) -> Result<Vec<u32>, ApiError> {
        match self {
            Prompt::Tokens(tokens) => Ok(tokens),
            Prompt::Text { text, add_special_tokens } => {
                let model = Arc::clone(&app.text);
                app.blocking_if_long(text.len(), move || model.encode(&text, add_special_tokens, true)).await
            }
        }
    }
}

/// Token ids of the vocabulary.
pub(super) fn token_ids(name: &str, items: &[Value], vocabulary_size: usize) -> Result<Vec<u32>, ApiError> {
    let id = |item: &Value| {
        item.as_u64().filter(|id| *id < vocabulary_size as u64).map(|id| id as u32).ok_or_else(|| {
            let allowed = format!("a list of token ids, each from 0 to {}", vocabulary_size - 1);
            ApiError::field(name, format!("a list with {}", quote(item)), allowed)
        })
    };
    items.iter().map(id).collect()
}

/// How many choices to generate. Which are the best is known only when all have ended, so a stream cannot
/// leave any out.
fn best_of(fields: &mut Fields, params: &Params) -> Result<usize, ApiError> {
    let n = params.n;
    let Some(best_of) = integer(fields, "best_of", n as i64..=MAX_CHOICES)? else { return Ok(n) };
    if best_of as usize > n && params.stream {
        return Err(ApiError::field("best_of", best_of, format!("{n}, which is n, because stream is true")));
    }
    Ok(best_of as usize)
}

/// `POST /v1/completions`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    Extension(context): Extension<RequestContext>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.requested_model(&mut fields)?;
    refuse_unsupported(&fields, UNSUPPORTED)?;
    let logprobs = integer(&mut fields, "logprobs", 0..=MAX_LOGPROBS)?.map(|count| count as usize);
    let mut params = Params::parse(&mut fields, logprobs, &app.limits())?;
    params.best_of = best_of(&mut fields, &params)?;
    let prompt = Prompt::parse(&mut fields, app.text.vocabulary_size())?;
    if app.telemetry.captures_content() {
        let text = match &prompt {
            Prompt::Text { text, .. } => text.clone(),
            // What the model was given, for people.
            Prompt::Tokens(ids) => app.text.decode(ids),
        };
        params.recorded.messages = vec![Message { role: "user".to_owned(), text }];
    }
    app.check_engine()?;
    let prompt = prompt.encode(&app).await?;
    let answer = Answer {
        id: format!("cmpl-{}", context.request_id),
        model,
        operation: Operation::TextCompletion,
        default_max_tokens: DEFAULT_MAX_TOKENS,
    };
    app.answer::<Completions>(&context, answer, params, prompt).await
}

/// The shapes of a text completion.
pub(super) struct Completions;

#[derive(Serialize)]
struct Completion<'a, Choices> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Choices,
    #[serde(skip_serializing_if = "ChunkUsage::is_absent")]
    usage: ChunkUsage,
}

#[derive(Serialize)]
struct Choice {
    index: u32,
    text: String,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
}

/// One list per column, all of one length.
#[derive(Default, Serialize)]
struct Logprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<Map<String, Value>>,
    text_offset: Vec<usize>,
}

impl Logprobs {
    fn of(logprobs: &[TokenLogprob]) -> Logprobs {
        let mut columns = Logprobs::default();
        for logprob in logprobs {
            columns.tokens.push(token_text(&logprob.chosen).into_owned());
            columns.token_logprobs.push(log_probability(&logprob.chosen));
            // The chosen token is always among them, as in vLLM.
            let top = logprob.top.iter().chain([&logprob.chosen]);
            columns.top_logprobs.push(
                top.map(|token| (token_text(token).into_owned(), log_probability(token).into())).collect(),
            );
            columns.text_offset.push(logprob.text_offset);
        }
        columns
    }
}

impl Choice {
    fn of(delta: Delta, wants_logprobs: bool) -> Choice {
        Choice {
            index: delta.index,
            logprobs: wants_logprobs.then(|| Logprobs::of(&delta.logprobs)),
            finish_reason: finish_reason(delta.finish.as_ref()),
            stop_reason: delta.finish.as_ref().and_then(StopReason::of),
            text: delta.text,
        }
    }
}

impl Shape for Completions {
    const OBJECT: &'static str = "text_completion";
    const CHUNK_OBJECT: &'static str = "text_completion";

    fn whole(head: &Head, choices: Vec<Delta>, usage: Usage, wants_logprobs: bool) -> impl Serialize {
        let choices: Vec<_> = choices.into_iter().map(|whole| Choice::of(whole, wants_logprobs)).collect();
        Completion { head, choices, usage: ChunkUsage::Total(usage) }
    }

    fn opening(_head: &Head, _index: u32, _usage: ChunkUsage) -> Option<impl Serialize> {
        None::<()>
    }

    fn piece(head: &Head, delta: Delta, usage: ChunkUsage) -> impl Serialize {
        let has_logprobs = !delta.logprobs.is_empty();
        Completion { head, choices: [Choice::of(delta, has_logprobs)], usage }
    }

    fn closing(head: &Head, usage: Usage) -> impl Serialize {
        Completion { head, choices: [(); 0], usage: ChunkUsage::Total(usage) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_prompt_in_each_of_its_forms() {
        let text = Prompt::Text { text: "a".to_owned(), add_special_tokens: true };
        let tokens = Prompt::Tokens(vec![1, 2]);
        let table = [
            (json!("a"), Some(text)),
            (json!(["a"]), Some(Prompt::Text { text: "a".to_owned(), add_special_tokens: true })),
            (json!([1, 2]), Some(tokens)),
            (json!([[1, 2]]), Some(Prompt::Tokens(vec![1, 2]))),
            (json!(["a", "b"]), None),
            (json!([[1], [2]]), None),
            (json!([1, "a"]), None),
            (json!([1, 300]), None),
            (json!([-1]), None),
            (json!([1.5]), None),
            (json!([]), None),
            (json!([[["a"]]]), None),
            (json!({"a": 1}), None),
        ];
        for (value, expected) in table {
            let shown = value.to_string();
            let found = Prompt::of(value, true, 300);
            match (&found, &expected) {
                (Ok(found), Some(expected)) => assert_eq!(found, expected, "{shown}"),
                (Err(error), None) => assert_eq!(error.param.as_deref(), Some("prompt"), "{shown}"),
                _ => panic!("{shown}: {found:?}"),
            }
        }
    }
}
