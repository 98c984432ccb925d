//! Streamed answers: server-sent events in OpenAI's shape.
//!
//! An opening chunk a choice, one chunk a piece with the pieces of different choices in the order they come, the
//! usage chunk if it was asked for, `[DONE]`. Pieces in quick succession are one piece. An error after the beginning
//! is one event with the error object, and the stream ends without `[DONE]`.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;

use super::generate::{Shape, next};
use super::wire::{ChunkUsage, Head};
use crate::frontend::{Delta, Generation, Usage};

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const CACHE_CONTROL: HeaderValue = HeaderValue::from_static("no-cache");

/// Least time between two writes of one stream. A model that generates faster than this has its tokens sent
/// together: a reader sees no difference, and with many streams the writes would cost more than the model. The
/// first piece and the last one wait for nothing.
const WRITE_INTERVAL: Duration = Duration::from_millis(5);

/// Where a stream is.
struct State {
    head: Head,
    /// When the last events were handed to the connection.
    written: Instant,
    /// The piece that decided about the status, until it is sent.
    first: Option<Delta>,
    /// `None` once the last piece is sent. Dropping it earlier aborts the request.
    generation: Option<Generation>,
    num_choices: usize,
    /// Of the choices that have ended.
    total: Usage,
    include_usage: bool,
}

/// Streams an answer whose first piece is there.
pub(super) fn response<S: Shape>(
    head: Head,
    first: Delta,
    generation: Generation,
    num_choices: usize,
    include_usage: bool,
) -> Response {
    let state = State {
        head,
        written: Instant::now(),
        first: Some(first),
        generation: Some(generation),
        num_choices,
        total: Usage::default(),
        include_usage,
    };
    let events = stream::unfold(state, |mut state| async move {
        let bytes = state.next::<S>().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    });
    let headers = [(header::CONTENT_TYPE, CONTENT_TYPE), (header::CACHE_CONTROL, CACHE_CONTROL)];
    (headers, Body::from_stream(events)).into_response()
}

impl State {
    /// The next events; `None` at the end.
    async fn next<S: Shape>(&mut self) -> Option<Bytes> {
        let generation = self.generation.as_mut()?;
        let usage = if self.include_usage { ChunkUsage::Null } else { ChunkUsage::Absent };
        let mut events = Events::default();
        let delta = match self.first.take() {
            Some(first) => {
                for index in (0..).take(self.num_choices) {
                    if let Some(opening) = S::opening(&self.head, index, usage) {
                        events.push(&opening);
                    }
                }
                first
            }
            None => match next(generation, self.written + WRITE_INTERVAL).await {
                Ok(delta) => delta,
                Err(error) => {
                    self.generation = None;
                    events.push(&error.body());
                    return Some(events.into());
                }
            },
        };
        if let Some(finish) = &delta.finish {
            self.total.add_choice(delta.index, finish.usage);
        }
        let is_last = generation.is_finished() && delta.finish.is_some();
        events.push(&S::piece(&self.head, delta, usage));
        if is_last {
            self.generation = None;
            self.close::<S>(&mut events);
        }
        self.written = Instant::now();
        Some(events.into())
    }

    fn close<S: Shape>(&self, events: &mut Events) {
        if self.include_usage {
            events.push(&S::closing(&self.head, self.total));
        }
        events.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}

/// Events as bytes. JSON never contains a line break, so an event is one line.
#[derive(Default)]
struct Events(Vec<u8>);

impl Events {
    fn push(&mut self, data: &impl Serialize) {
        self.0.extend_from_slice(b"data: ");
        // Writing plain data to memory cannot fail.
        serde_json::to_writer(&mut self.0, data).unwrap_or_default();
        self.0.extend_from_slice(b"\n\n");
    }
}

impl From<Events> for Bytes {
    fn from(events: Events) -> Bytes {
        events.0.into()
    }
}
