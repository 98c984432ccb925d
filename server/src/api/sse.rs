//! Streamed answers: server-sent events in OpenAI's shape.
//!
//! An opening chunk a choice, one chunk a piece with the pieces of different choices in the order they come, the
//! usage chunk if it was asked for, `[DONE]`. An error after the beginning is one event with the error object, and the
//! stream ends without `[DONE]`.
//!
//! A model that generates faster than its readers need has its tokens sent together: a write costs the server, the
//! system and the reader more than the token in it. Each stream waits an interval between two writes; the first piece
//! and the last one wait for nothing.

use std::convert::Infallible;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;

use super::generate::{Shape, next};
use super::wire::{ChunkUsage, Head};
use crate::frontend::{Collect, Delta, Generation, Usage};

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");
const CACHE_CONTROL: HeaderValue = HeaderValue::from_static("no-cache");

/// Least time between two writes of one stream: a reader sees no difference.
const MIN_WRITE_INTERVAL: Duration = Duration::from_millis(5);
/// Longest time between the common moments of writing, however many streams are open.
const MAX_WRITE_INTERVAL: Duration = Duration::from_millis(50);
/// What the writes of all streams may take of the machine: with 20 to 25 µs each, a hundredth of its time, and what
/// reading takes if the reader is there too.
const WRITES_PER_SECOND_AND_CORE: usize = 500;

/// The streams that are open in a server: their number decides how often each is written to.
#[derive(Clone)]
pub(super) struct Streams {
    num_open: Arc<AtomicUsize>,
    /// Of all streams together.
    writes_per_second: usize,
    /// Where the moments at which streams are written to begin.
    started: Instant,
}

impl Streams {
    pub(super) fn new() -> Streams {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Streams::with(cores * WRITES_PER_SECOND_AND_CORE)
    }

    fn with(writes_per_second: usize) -> Streams {
        Streams { num_open: Arc::default(), writes_per_second, started: Instant::now() }
    }

    fn open(&self) -> OpenStream {
        self.num_open.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.clone())
    }

    fn write_interval(&self) -> Duration {
        let share = self.num_open.load(Ordering::Relaxed) as f64 / self.writes_per_second as f64;
        Duration::from_secs_f64(share).clamp(MIN_WRITE_INTERVAL, MAX_WRITE_INTERVAL)
    }

    /// When a stream that was written to at `written` is again. Streams have their moments in common, an interval
    /// apart, so that a thread is woken once for all of them; the first comes after half an interval to one and a half.
    fn next_write(&self, written: Instant) -> Instant {
        let interval = self.write_interval();
        let earliest = written.saturating_duration_since(self.started) + interval / 2;
        let over = Duration::from_nanos((earliest.as_nanos() % interval.as_nanos()) as u64);
        self.started + earliest + (interval - over)
    }
}

/// A place among the open streams.
struct OpenStream(Streams);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.num_open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where a stream is.
struct State {
    head: Head,
    /// When the last events were handed to the connection.
    written: Instant,
    /// The piece that decided about the status, until it is sent.
    first: Option<Delta>,
    /// `None` once the last piece is sent. Dropping it earlier aborts the request.
    generation: Option<Generation>,
    stream: OpenStream,
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
    streams: &Streams,
) -> Response {
    let state = State {
        head,
        written: Instant::now(),
        first: Some(first),
        generation: Some(generation),
        stream: streams.open(),
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
        let mut next_delta = match self.first.take() {
            Some(first) => {
                for index in (0..).take(self.num_choices) {
                    if let Some(opening) = S::opening(&self.head, index, usage) {
                        events.push(&opening);
                    }
                }
                Ok(first)
            }
            None => next(generation, Collect::Until(self.stream.0.next_write(self.written))).await,
        };
        loop {
            let delta = match next_delta {
                Ok(delta) => delta,
                Err(error) => {
                    self.generation = None;
                    events.push(&error.body());
                    break;
                }
            };
            if let Some(finish) = &delta.finish {
                self.total.add_choice(delta.index, finish.usage);
            }
            let is_last = generation.is_finished() && delta.finish.is_some();
            events.push(&S::piece(&self.head, delta, usage));
            if is_last {
                self.generation = None;
                self.close::<S>(&mut events);
                break;
            }
            if !generation.is_ready() {
                break;
            }
            next_delta = next(generation, Collect::Nothing).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_all_streams_together_keep_to_what_the_machine_can_spare() {
        let streams = Streams::with(4000);
        let mut open: Vec<OpenStream> = (0..1000)
            .map(|_| {
                let open = streams.open();
                assert!((MIN_WRITE_INTERVAL..=MAX_WRITE_INTERVAL).contains(&streams.write_interval()));
                open
            })
            .collect();
        assert_eq!(streams.write_interval(), MAX_WRITE_INTERVAL);
        open.truncate(64);
        assert_eq!(streams.write_interval(), Duration::from_millis(16));
        open.clear();
        assert_eq!(streams.write_interval(), MIN_WRITE_INTERVAL);
    }

    #[test]
    fn streams_are_written_to_at_the_same_moments_an_interval_apart() {
        let streams = Streams::with(1);
        let interval = streams.write_interval();
        let at = |intervals: f64| streams.started + interval.mul_f64(intervals);
        assert_eq!(streams.next_write(at(0.0)), at(1.0));
        assert_eq!(streams.next_write(at(0.4)), at(1.0));
        assert_eq!(streams.next_write(at(0.6)), at(2.0));
        assert_eq!(
            streams.next_write(at(1.1)),
            at(2.0),
            "woken a little late, the next moment is the next one"
        );
    }
}
