//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use limpid_telemetry::{Message as RecordedMessage, Operation};
use serde::Serialize;
use serde_json::{Map, Value};

use super::App;
use super::error::ApiError;
use super::generate::{Answer, Shape};
use super::json::{Fields, quote};
use super::observe::RequestContext;
use super::params::{
    MAX_LOGPROBS, Params, Unsupported, absent, empty, integer, off, one, refuse_unsupported,
};
use super::wire::{ChunkUsage, Head, StopReason, UsageBody, finish_reason, log_probability, token_text};
use crate::frontend::{Delta, Logprob, TokenLogprob, Usage};

/// What chat does not support, beyond what no endpoint does.
const UNSUPPORTED: &[Unsupported] = &[
    empty("tools"),
    Unsupported {
        name: "tool_choice",
        is_neutral: |value| *value == "none" || *value == "auto",
        allowed: "\"none\" or \"auto\"",
    },
    empty("functions"),
    Unsupported { name: "function_call", is_neutral: |value| *value == "none", allowed: "\"none\"" },
    Unsupported {
        name: "modalities",
        is_neutral: |value| value.as_array().is_some_and(|list| list.iter().all(|item| item == "text")),
        allowed: "[\"text\"]",
    },
    absent("audio"),
    absent("prediction"),
    absent("web_search_options"),
    empty("documents"),
    absent("chat_template"),
    off("continue_final_message"),
    one("best_of"),
];

/// Messages that are ready for the chat template, and how to render them.
#[derive(Debug)]
pub(super) struct ChatPrompt {
    messages: Value,
    /// Bytes of text in the messages.
    size: usize,
    add_generation_prompt: bool,
    template_arguments: Option<Map<String, Value>>,
    add_special_tokens: bool,
}

impl ChatPrompt {
    pub(super) fn parse(fields: &mut Fields) -> Result<ChatPrompt, ApiError> {
        let (messages, size) = messages(fields)?;
        Ok(ChatPrompt {
            messages,
            size,
            add_generation_prompt: fields.flag("add_generation_prompt", true)?,
            template_arguments: fields.take("chat_template_kwargs", "an object")?,
            // Chat templates write the special tokens themselves.
            add_special_tokens: fields.flag("add_special_tokens", false)?,
        })
    }

    /// For traces whose operator asked for content.
    fn recorded(&self) -> Vec<RecordedMessage> {
        let text = |message: &Value, name: &str| message[name].as_str().unwrap_or_default().to_owned();
        let messages = self.messages.as_array().into_iter().flatten();
        messages
            .map(|message| RecordedMessage { role: text(message, "role"), text: text(message, "content") })
            .collect()
    }

    /// The prompt's ids. Control tokens in the messages' text are read as such, as in vLLM.
    pub(super) async fn encode(self, app: &Arc<App>) -> Result<Vec<u32>, ApiError> {
        let text = Arc::clone(&app.text);
        app.blocking_if_long(self.size, move || {
            let rendered = text
                .render_chat(&self.messages, self.add_generation_prompt, self.template_arguments.as_ref())
                .ok_or_else(|| {
                    ApiError::unsupported(
                        "messages",
                        "set, and the model has no chat template",
                        "a prompt for /v1/completions",
                    )
                })?
                .map_err(|error| ApiError::field("messages", "not renderable", error))?;
            Ok(text.encode(&rendered, self.add_special_tokens, true))
        })
        .await?
    }
}

/// Checks the messages and turns their content into plain strings, which is what templates expect. Returns
/// the size of the contents as well.
fn messages(fields: &mut Fields) -> Result<(Value, usize), ApiError> {
    let allowed = "a list of at least one message";
    let mut messages = match fields.take_value("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(other) => return Err(ApiError::field("messages", quote(&other), allowed)),
        None => return Err(ApiError::field("messages", "absent", allowed)),
    };
    let mut size = 0;
    for (index, message) in messages.iter_mut().enumerate() {
        let Value::Object(message) = message else {
            return Err(ApiError::field(&format!("messages[{index}]"), quote(message), "an object"));
        };
        let role = message.get("role").unwrap_or(&Value::Null);
        if role.as_str().is_none_or(str::is_empty) {
            let name = format!("messages[{index}].role");
            return Err(ApiError::field(&name, quote(role), "system, user, assistant or another role"));
        }
        let content = message.remove("content").unwrap_or(Value::Null);
        let content = content_text(content, &format!("messages[{index}].content"))?;
        size += content.len();
        message.insert("content".to_owned(), Value::String(content));
    }
    Ok((Value::Array(messages), size))
}

/// Text parts are joined by line breaks, as in vLLM; anything but text is refused.
fn content_text(content: Value, name: &str) -> Result<String, ApiError> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let mut texts = Vec::with_capacity(parts.len());
            for part in parts {
                let text = part.get("text").and_then(Value::as_str);
                match (part.get("type").and_then(Value::as_str), text) {
                    (Some("text"), Some(text)) => texts.push(text.to_owned()),
                    (Some("text"), None) | (None, _) => {
                        return Err(ApiError::field(name, quote(&part), "parts of type text"));
                    }
                    (Some(kind), _) => {
                        let found = format!("a part of type {}", quote(&kind.into()));
                        return Err(ApiError::unsupported(name, found, "parts of type text"));
                    }
                }
            }
            Ok(texts.join("\n"))
        }
        other => Err(ApiError::field(name, quote(&other), "a string or a list of text parts")),
    }
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs", false)?;
    let top = integer(fields, "top_logprobs", 0..=MAX_LOGPROBS)?.unwrap_or(0);
    if top > 0 && !wanted {
        return Err(ApiError::field("top_logprobs", top, "absent unless logprobs is true"));
    }
    Ok(wanted.then_some(top as usize))
}

/// `POST /v1/chat/completions`
pub(super) async fn create(
    State(app): State<Arc<App>>,
    Extension(context): Extension<RequestContext>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.requested_model(&mut fields)?;
    refuse_unsupported(&fields, UNSUPPORTED)?;
    let logprobs = logprobs(&mut fields)?;
    let mut params = Params::parse(&mut fields, logprobs, &app.limits())?;
    let prompt = ChatPrompt::parse(&mut fields)?;
    if app.telemetry.captures_content() {
        params.recorded.messages = prompt.recorded();
    }
    app.check_engine()?;
    let prompt = prompt.encode(&app).await?;
    let answer = Answer {
        id: format!("chatcmpl-{}", context.request_id),
        model,
        operation: Operation::Chat,
        default_max_tokens: usize::MAX,
    };
    app.answer::<Chat>(&context, answer, params, prompt).await
}

/// The shapes of a chat answer.
pub(super) struct Chat;

#[derive(Serialize)]
struct Completion<'a> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Vec<Choice>,
    usage: UsageBody,
}

#[derive(Serialize)]
struct Choice {
    index: u32,
    message: Message,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<StopReason>,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

#[derive(Serialize)]
struct Chunk<'a, Choices> {
    #[serde(flatten)]
    head: &'a Head,
    choices: Choices,
    #[serde(skip_serializing_if = "ChunkUsage::is_absent")]
    usage: ChunkUsage,
}

#[derive(Serialize)]
struct ChunkChoice {
    index: u32,
    delta: ChunkDelta,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<StopReason>,
}

#[derive(Default, Serialize)]
struct ChunkDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

#[derive(Serialize)]
struct Logprobs {
    content: Vec<LogprobsEntry>,
}

#[derive(Serialize)]
struct LogprobsEntry {
    #[serde(flatten)]
    chosen: TopLogprob,
    top_logprobs: Vec<TopLogprob>,
}

#[derive(Serialize)]
struct TopLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl TopLogprob {
    fn of(logprob: &Logprob) -> TopLogprob {
        TopLogprob {
            token: token_text(logprob).into_owned(),
            logprob: log_probability(logprob),
            bytes: logprob.bytes.clone(),
        }
    }
}

impl Logprobs {
    fn of(logprobs: &[TokenLogprob]) -> Logprobs {
        let entry = |logprob: &TokenLogprob| LogprobsEntry {
            chosen: TopLogprob::of(&logprob.chosen),
            top_logprobs: logprob.top.iter().map(TopLogprob::of).collect(),
        };
        Logprobs { content: logprobs.iter().map(entry).collect() }
    }
}

impl Shape for Chat {
    const OBJECT: &'static str = "chat.completion";
    const CHUNK_OBJECT: &'static str = "chat.completion.chunk";

    fn whole(head: &Head, choices: Vec<Delta>, usage: Usage, wants_logprobs: bool) -> impl Serialize {
        let choice = |whole: Delta| Choice {
            index: whole.index,
            logprobs: wants_logprobs.then(|| Logprobs::of(&whole.logprobs)),
            finish_reason: finish_reason(whole.finish.as_ref()),
            stop_reason: whole.finish.as_ref().and_then(StopReason::of),
            message: Message { role: "assistant", content: whole.text },
        };
        let choices = choices.into_iter().map(choice).collect();
        Completion { head, choices, usage: usage.into() }
    }

    fn opening(head: &Head, index: u32, usage: ChunkUsage) -> Option<impl Serialize> {
        let choice = ChunkChoice {
            index,
            delta: ChunkDelta { role: Some("assistant"), content: Some(String::new()) },
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
        };
        Some(Chunk { head, choices: [choice], usage })
    }

    fn piece(head: &Head, delta: Delta, usage: ChunkUsage) -> impl Serialize {
        let choice = ChunkChoice {
            index: delta.index,
            logprobs: (!delta.logprobs.is_empty()).then(|| Logprobs::of(&delta.logprobs)),
            finish_reason: finish_reason(delta.finish.as_ref()),
            stop_reason: delta.finish.as_ref().and_then(StopReason::of),
            delta: ChunkDelta { role: None, content: (!delta.text.is_empty()).then_some(delta.text) },
        };
        Chunk { head, choices: [choice], usage }
    }

    fn closing(head: &Head, usage: Usage) -> impl Serialize {
        Chunk { head, choices: [(); 0], usage: ChunkUsage::Total(usage) }
    }
}
