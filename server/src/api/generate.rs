//! From checked parameters and token ids to an answer: whole, or as a stream of events.
//!
//! An unary answer is the stream folded, so the two cannot differ. With `best_of` more choices are generated than
//! the answer has: those with the highest log-probability per token are kept, best first. Which JSON either of them is made of is
//! the endpoint's [`Shape`].

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use limpid_telemetry::Operation;
use serde::Serialize;

use super::App;
use super::error::{ApiError, ErrorKind};
use super::observe::{DATA_PARALLEL_RANK, RequestContext};
use super::params::Params;
use super::sse;
use super::wire::{ChunkUsage, Head, is_failure, unix_seconds};
use crate::frontend::{Collect, Delta, Finish, Generation, NewRequest, Usage};

/// The JSON of one endpoint's answers.
pub(super) trait Shape: Send + 'static {
    /// `object` of a whole answer.
    const OBJECT: &'static str;
    /// `object` of a chunk.
    const CHUNK_OBJECT: &'static str;

    /// A whole answer.
    fn whole(head: &Head, choices: Vec<Delta>, usage: Usage, wants_logprobs: bool) -> impl Serialize;
    /// The chunk before the first piece of a choice, if there is one.
    fn opening(head: &Head, index: u32, usage: ChunkUsage) -> Option<impl Serialize>;
    /// The chunk of one piece.
    fn piece(head: &Head, delta: Delta, usage: ChunkUsage) -> impl Serialize;
    /// The chunk with the usage, behind the last piece.
    fn closing(head: &Head, usage: Usage) -> impl Serialize;
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
        let Params { stream, include_usage, n, best_of, .. } = params;
        let wants_logprobs = params.sampling.logprobs.is_some();
        if best_of > n {
            params.sampling.logprobs.get_or_insert(0);
        }
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
            num_choices: best_of,
            stop: params.stop,
            skip_special_tokens: params.skip_special_tokens,
            priority: params.priority,
            cache_salt: params.cache_salt,
            data_parallel_rank: self.data_parallel_rank(context)?,
            recorded: params.recorded,
        })?;
        if stream {
            // The status waits for the first piece: a request that fails before it gets an honest one.
            let first = next(&mut generation, Collect::Nothing).await?;
            return Ok(sse::response::<S>(head, first, generation, n, include_usage, &self.streams));
        }
        let (choices, usage) = fold(&mut generation, best_of).await?;
        Ok(Json(S::whole(&head, best(choices, n), usage, wants_logprobs)).into_response())
    }
}

impl App {
    /// The engine that the client chose, if it did.
    fn data_parallel_rank(&self, context: &RequestContext) -> Result<Option<usize>, ApiError> {
        let Some(rank) = &context.data_parallel_rank else { return Ok(None) };
        let found = String::from_utf8_lossy(rank.as_bytes());
        let engines = self.frontend.num_engines();
        match found.parse::<usize>().ok().filter(|rank| *rank < engines) {
            Some(rank) => Ok(Some(rank)),
            None => {
                let shown: String = found.chars().take(100).collect();
                Err(ApiError::field(DATA_PARALLEL_RANK.as_str(), shown, format!("0 to {}", engines - 1)))
            }
        }
    }
}

/// The next piece of an answer that has not ended yet, with what there is to collect.
///
/// # Errors
/// The engine gave the request up, or is gone.
pub(super) async fn next(generation: &mut Generation, collect: Collect) -> Result<Delta, ApiError> {
    match generation.next(collect).await {
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

/// All pieces of each choice as one, and what they took together.
async fn fold(generation: &mut Generation, num_choices: usize) -> Result<(Vec<Delta>, Usage), ApiError> {
    let mut choices: Vec<Delta> =
        (0..).map(|index| Delta { index, ..Delta::default() }).take(num_choices).collect();
    let mut usage = Usage::default();
    while !generation.is_finished() {
        let delta = next(generation, Collect::ToTheEnd).await?;
        let choice = &mut choices[delta.index as usize];
        choice.text.push_str(&delta.text);
        choice.logprobs.extend(delta.logprobs);
        if let Some(finish) = delta.finish {
            usage.add_choice(delta.index, finish.usage);
            choice.finish = Some(finish);
        }
    }
    Ok((choices, usage))
}

/// The `n` choices with the highest log-probability per token, best first; all of them as they are if there are
/// no more.
fn best(mut choices: Vec<Delta>, n: usize) -> Vec<Delta> {
    if choices.len() == n {
        return choices;
    }
    let score = |choice: &Delta| {
        let finish = choice.finish.as_ref();
        finish.map_or(f64::NEG_INFINITY, |finish| {
            finish.cumulative_logprob / finish.usage.completion_tokens.max(1) as f64
        })
    };
    choices.sort_by(|a, b| score(b).total_cmp(&score(a)));
    choices.truncate(n);
    for (index, choice) in (0..).zip(&mut choices) {
        choice.index = index;
    }
    choices
}

#[cfg(test)]
mod tests {
    use limpid_telemetry::observation::FinishReason;

    use super::*;

    #[test]
    fn the_best_choices_are_the_most_probable_per_token_and_are_numbered_anew() {
        let choice = |index, cumulative_logprob, completion_tokens| Delta {
            index,
            text: index.to_string(),
            finish: Some(Finish {
                reason: FinishReason::Stop,
                stop: None,
                usage: Usage { completion_tokens, ..Usage::default() },
                cumulative_logprob,
                error: None,
                engine_gone: false,
            }),
            ..Delta::default()
        };
        // Per token: -2, -1, -0.5, minus infinity.
        let choices =
            vec![choice(0, -2.0, 1), choice(1, -2.0, 2), choice(2, -4.0, 8), choice(3, f64::NEG_INFINITY, 1)];
        let texts = |n| {
            let best = best(choices.clone(), n);
            assert!(best.iter().enumerate().all(|(index, choice)| choice.index as usize == index));
            best.into_iter().map(|choice| choice.text).collect::<Vec<_>>()
        };
        assert_eq!(texts(1), ["2"]);
        assert_eq!(texts(3), ["2", "1", "0"]);
        assert_eq!(texts(4), ["0", "1", "2", "3"], "nothing to choose, nothing to sort");
    }
}
