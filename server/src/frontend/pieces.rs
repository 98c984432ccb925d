//! An answer's pieces on their way from the frontend's task to the one that answers the client.
//!
//! What waits of one choice is one piece, so a reader that is slow, or that collects, finds at most a piece for each
//! choice, and its task is not woken for every token: a reader that waits for anything is woken by the first piece,
//! one that collects by a choice's last piece only.
//!
//! Invariant: no piece is lost, pieces of one choice keep their order, and nobody waits longer than it asked to.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::{Delta, TokenLogprob};

/// How long pieces are collected before they are read as one. The end of a choice ends any collecting.
#[derive(Clone, Copy, Debug)]
pub enum Collect {
    /// Not at all: the first piece will do.
    Nothing,
    /// Until a moment, and after it as [`Collect::Nothing`].
    Until(Instant),
    /// Until a choice ends.
    ToTheEnd,
}

/// The two ends of one answer. The writer is cloned for each choice.
pub(super) fn pieces() -> (Writer, Reader) {
    let shared = Arc::new(Shared {
        waiting: Mutex::new(Waiting { pieces: VecDeque::new(), is_collecting: false, num_writers: 1 }),
        news: Notify::new(),
    });
    (Writer(Arc::clone(&shared)), Reader { shared, ready: VecDeque::new() })
}

struct Shared {
    waiting: Mutex<Waiting>,
    /// For the one reader.
    news: Notify,
}

struct Waiting {
    /// One of each choice, and behind it the one that says that the choice failed.
    pieces: VecDeque<Delta>,
    /// The reader waits, but only for what cannot wait.
    is_collecting: bool,
    num_writers: usize,
}

impl Waiting {
    /// What waits of a choice.
    fn piece(&mut self, index: u32) -> &mut Delta {
        let place = self.pieces.iter().position(|piece| piece.index == index).unwrap_or_else(|| {
            self.pieces.push_back(Delta { index, ..Delta::default() });
            self.pieces.len() - 1
        });
        &mut self.pieces[place]
    }

    /// Whether there is something that a collecting reader is woken for.
    fn is_urgent(&self) -> bool {
        self.num_writers == 0 || self.pieces.iter().any(|piece| piece.finish.is_some())
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the pieces of a choice go in.
pub(super) struct Writer(Arc<Shared>);

impl Writer {
    /// Hands a piece over that is not the last, and empties `logprobs`. Never waits for the reader.
    pub(super) fn send(&self, index: u32, text: &str, logprobs: &mut Vec<TokenLogprob>) {
        let mut waiting = self.0.waiting();
        let wakes = waiting.pieces.is_empty() && !waiting.is_collecting;
        let piece = waiting.piece(index);
        piece.text.push_str(text);
        piece.logprobs.append(logprobs);
        drop(waiting);
        if wakes {
            self.0.news.notify_one();
        }
    }

    /// Hands the last piece over.
    pub(super) fn finish(&self, last: Delta) {
        let mut waiting = self.0.waiting();
        if last.has_failed() {
            waiting.pieces.push_back(last);
        } else {
            let piece = waiting.piece(last.index);
            piece.text.push_str(&last.text);
            piece.logprobs.extend(last.logprobs);
            piece.finish = last.finish;
        }
        drop(waiting);
        self.0.news.notify_one();
    }
}

impl Clone for Writer {
    fn clone(&self) -> Writer {
        self.0.waiting().num_writers += 1;
        Writer(Arc::clone(&self.0))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        waiting.num_writers -= 1;
        let is_last = waiting.num_writers == 0;
        drop(waiting);
        if is_last {
            self.0.news.notify_one();
        }
    }
}

/// Where they come out.
pub(super) struct Reader {
    shared: Arc<Shared>,
    /// What was taken out together with the latest piece.
    ready: VecDeque<Delta>,
}

impl Reader {
    /// Whether [`next`](Reader::next) would wait for nothing.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next piece; `None` once all writers are gone and all pieces are read. Collects unless one is ready.
    pub(super) async fn next(&mut self, collect: Collect) -> Option<Delta> {
        if self.ready.is_empty() {
            match collect {
                Collect::Nothing => {}
                Collect::Until(moment) => drop(timeout_at(moment.into(), self.urgent()).await),
                Collect::ToTheEnd => self.urgent().await,
            }
            self.refill().await;
        }
        self.ready.pop_front()
    }

    /// Returns as soon as there is something that cannot wait.
    async fn urgent(&self) {
        loop {
            {
                let mut waiting = self.shared.waiting();
                if waiting.is_urgent() {
                    return;
                }
                waiting.is_collecting = true;
            }
            self.shared.news.notified().await;
        }
    }

    /// Takes everything out, as soon as there is anything.
    async fn refill(&mut self) {
        loop {
            {
                let mut waiting = self.shared.waiting();
                waiting.is_collecting = false;
                std::mem::swap(&mut self.ready, &mut waiting.pieces);
                if !self.ready.is_empty() || waiting.num_writers == 0 {
                    return;
                }
            }
            self.shared.news.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct CountWakes(AtomicUsize);

    impl Wake for CountWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends three pieces and the last to a reader that waits; how often it was woken before and in all, and its piece.
    fn wakes(collect: Collect) -> (usize, usize, String) {
        let (writer, mut reader) = pieces();
        let count = Arc::new(CountWakes::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let mut next = pin!(reader.next(collect));
        assert!(next.as_mut().poll(&mut context).is_pending());
        ["a", "b", "c"].iter().for_each(|text| writer.send(0, text, &mut Vec::new()));
        let before = count.0.load(Ordering::Relaxed);
        let finish = crate::frontend::Finish {
            reason: limpid_telemetry::observation::FinishReason::Stop,
            stop: None,
            usage: Default::default(),
            cumulative_logprob: 0.0,
            error: None,
            engine_gone: false,
        };
        writer.finish(Delta { text: "d".to_owned(), finish: Some(finish), ..Delta::default() });
        let Poll::Ready(Some(piece)) = next.poll(&mut context) else { panic!("the end is there") };
        (before, count.0.load(Ordering::Relaxed), piece.text)
    }

    #[test]
    fn a_reader_that_collects_is_woken_by_the_end_and_one_that_does_not_by_the_first_piece() {
        assert_eq!(wakes(Collect::ToTheEnd), (0, 1, "abcd".to_owned()));
        assert_eq!(wakes(Collect::Nothing), (1, 1, "abcd".to_owned()));
    }

    #[tokio::test]
    async fn a_reader_whose_writers_are_gone_gets_what_is_left_and_then_the_end() {
        let (writer, mut reader) = pieces();
        let second = writer.clone();
        writer.send(0, "a", &mut Vec::new());
        drop(writer);
        second.send(1, "b", &mut Vec::new());
        drop(second);
        assert_eq!(reader.next(Collect::ToTheEnd).await.map(|piece| piece.text), Some("a".to_owned()));
        assert!(reader.is_ready());
        assert_eq!(reader.next(Collect::ToTheEnd).await.map(|piece| piece.text), Some("b".to_owned()));
        assert_eq!(reader.next(Collect::ToTheEnd).await, None);
    }
}
