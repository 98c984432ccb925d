//! From checked parameters and token ids to an answer: whole, or as a stream of events.
//!
//! An unary answer is the stream folded, so the two cannot differ. Which JSON either of them is made of is
//! the endpoint's [`Shape`].

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use limpid_telemetry::Operation;
use serde_json::Value;

use super::App;
use super::error::{ApiError, ErrorKind};
use super::observe::RequestContext;
use super::params::Params;
use super::sse;
use super::wire::{ChunkUsage, Head, is_failure, unix_seconds};
use crate::frontend::{Delta, Finish, Generation, NewRequest, Usage};

/// The JSON of one endpoint's answers.
pub(super) trait Shape: Send + 'static {
    /// `object` of a whole answer.
    const OBJECT: &'static str;
    /// `object` of a chunk.
    const CHUNK_OBJECT: &'static str;

    /// A whole answer.
    fn whole(head: &Head, whole: Delta, usage: Usage, wants_logprobs: bool) -> Value;
    /// The chunk before the first piece, if there is one.
    fn opening(head: &Head, usage: ChunkUsage) -> Option<Value>;
    /// The chunk of one piece.
    fn piece(head: &Head, delta: Delta, usage: ChunkUsage) -> Value;
    /// The chunk with the usage, behind the last piece.
    fn closing(head: &Head, usage: Usage) -> Value;
}

/// What an answer is called and how long it may be.
pub(super) struct Answer {
    /// `chatcmpl-…` or `cmpl-…`.
    pub(super) id: String,
    /// The served name that the client used.
    pub(super) model: String,
    pub(super) operation: Operation,
    /// Length if the client sets no limit.
    pub(super) default_max_tokens: usize,
}

impl App {
    /// Generates and answers.
    ///
    /// # Errors
    /// Everything that goes wrong before the first byte of the answer, in either mode.
    pub(super) async fn answer<S: Shape>(
        self: &Arc<App>,
        context: &RequestContext,
        answer: Answer,
        mut params: Params,
        prompt: Vec<u32>,
    ) -> Result<Response, ApiError> {
        if prompt.is_empty() {
            return Err(ApiError::field("prompt", "of 0 tokens", "at least 1 token"));
        }
        params.fit(prompt.len(), self.max_model_len, answer.default_max_tokens)?;
        let (stream, include_usage) = (params.stream, params.include_usage);
        let wants_logprobs = params.sampling.logprobs.is_some();
        let head = Head {
            id: answer.id.clone(),
            object: if stream { S::CHUNK_OBJECT } else { S::OBJECT },
            created: unix_seconds(),
            model: answer.model,
        };
        let mut generation = self.frontend.open(NewRequest {
            id: answer.id,
            operation: answer.operation,
            arrival: context.arrival,
            http_span: context.span.clone(),
            prompt,
            sampling: params.sampling,
            stop: params.stop,
            skip_special_tokens: params.skip_special_tokens,
            priority: params.priority,
            cache_salt: params.cache_salt,
            recorded: params.recorded,
        });
        if stream {
            // The status waits for the first piece: a request that fails before it gets an honest one.
            let first = next(&mut generation).await?;
            return Ok(sse::response::<S>(head, first, generation, include_usage));
        }
        let (whole, usage) = fold(&mut generation).await?;
        Ok(Json(S::whole(&head, whole, usage, wants_logprobs)).into_response())
    }
}

/// The next piece of an answer that has not ended yet.
///
/// # Errors
/// The engine gave the request up, or is gone.
pub(super) async fn next(generation: &mut Generation) -> Result<Delta, ApiError> {
    match generation.next().await {
        Some(delta) => match delta.finish.as_ref().filter(|finish| is_failure(finish)) {
            None => Ok(delta),
            Some(finish) => Err(failure(finish)),
        },
        None => Err(ApiError::new(ErrorKind::EngineGone, "the request was given up")),
    }
}

fn failure(finish: &Finish) -> ApiError {
    let kind = if finish.engine_gone { ErrorKind::EngineGone } else { ErrorKind::EngineFailed };
    ApiError::new(kind, finish.error.as_deref().unwrap_or("the engine gave the request up"))
}

/// All pieces as one.
async fn fold(generation: &mut Generation) -> Result<(Delta, Usage), ApiError> {
    let mut whole = Delta::default();
    loop {
        let delta = next(generation).await?;
        whole.text.push_str(&delta.text);
        whole.logprobs.extend(delta.logprobs);
        if let Some(finish) = delta.finish {
            let usage = finish.usage;
            whole.finish = Some(finish);
            return Ok((whole, usage));
        }
    }
}
