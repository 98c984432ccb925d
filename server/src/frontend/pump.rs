//! The frontend's task for one engine: the owner of every request that is open there.
//!
//! [`Pump::handle`] takes one event in and is synchronous, so tests drive it without a runtime or an engine.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use limpid_engine::request::{FinishReason, RequestEventKind, RequestId, RequestOutput, StepOutput};
use limpid_telemetry::{ModelTelemetry, RequestProgress};
use tokio::sync::{mpsc, watch};

use super::decoder::Decoded;
use super::heartbeat::Heartbeat;
use super::{Delta, ENGINE_ERROR, Engine, Event, Finish, Lane, Load, OpenRequest, TextModel};

pub(super) struct Pump {
    engine: Arc<dyn Engine>,
    telemetry: ModelTelemetry,
    text: Arc<dyn TextModel>,
    alive: Arc<AtomicBool>,
    load: Arc<Load>,
    heartbeat: Arc<Heartbeat>,
    open: HashMap<RequestId, Box<OpenRequest>>,
    /// Requests that are open in the whole frontend, and how many of them were counted for this task.
    num_open: Arc<watch::Sender<usize>>,
    num_counted: usize,
    engine_ended: bool,
    /// Of the latest output.
    decoded: Decoded,
}

impl Pump {
    pub(super) fn new(lane: &Lane, text: Arc<dyn TextModel>, num_open: Arc<watch::Sender<usize>>) -> Pump {
        Pump {
            engine: Arc::clone(&lane.engine),
            telemetry: lane.telemetry.clone(),
            text,
            alive: Arc::clone(&lane.alive),
            load: Arc::clone(&lane.load),
            heartbeat: Arc::clone(&lane.heartbeat),
            open: HashMap::new(),
            num_open,
            num_counted: 0,
            engine_ended: false,
            decoded: Decoded::default(),
        }
    }

    /// Runs until the engine has ended and the last event is handled.
    pub(super) async fn run(mut self, mut events: mpsc::UnboundedReceiver<Event>) {
        while let Some(event) = events.recv().await {
            self.handle(event);
            if self.engine_ended {
                // Openings that are under way are still answered; later ones find the channel closed.
                events.close();
            }
        }
    }

    /// Takes one event in.
    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Open(request) if self.engine_ended => request.engine_gone(Instant::now()),
            Event::Open(request) => {
                if self.open.is_empty() {
                    self.heartbeat.beat();
                }
                self.open.insert(request.id, request);
            }
            Event::Step(step) => {
                self.heartbeat.beat();
                self.step(step);
            }
            Event::AbortAll => self.open.keys().for_each(|id| self.engine.abort(*id)),
            Event::EngineEnded => {
                self.engine_ended = true;
                self.alive.store(false, Ordering::Release);
                let now = Instant::now();
                self.open.drain().for_each(|(_, request)| request.engine_gone(now));
            }
        }
        self.count_open();
    }

    fn count_open(&mut self) {
        if self.open.is_empty() {
            self.heartbeat.idle();
        }
        let counted = std::mem::replace(&mut self.num_counted, self.open.len());
        if counted != self.open.len() {
            self.num_open.send_modify(|num_open| *num_open = *num_open + self.open.len() - counted);
        }
    }

    fn step(&mut self, step: StepOutput) {
        let now = Instant::now();
        // Before the requests that end in this step are gone.
        let traced = step.trace.map(|trace| {
            let guard = |id| self.open.get(id).and_then(|request| request.guard.link());
            (trace.requests.iter().filter_map(guard).collect(), trace.detail)
        });
        self.telemetry.step_finished(&step.step);
        self.load.set_running(step.step.scheduler.num_running);
        if !step.evicted.is_empty() {
            self.telemetry.blocks_evicted(&step.evicted);
        }
        for output in step.outputs {
            self.output(output, step.step.finished, now);
        }
        if let Some((requests, detail)) = traced {
            self.telemetry.step_traced(&detail, requests);
        }
    }

    fn output(&mut self, output: RequestOutput, new_tokens_at: Instant, now: Instant) {
        // Outputs of a request that a stop string ended may still come; its books are closed.
        let Some(request) = self.open.get_mut(&output.id) else { return };
        request.guard.progress(RequestProgress {
            new_tokens_at,
            now,
            events: &output.events,
            num_new_tokens: output.tokens.len() as u64,
            times: output.times,
        });
        for event in &output.events {
            if let RequestEventKind::Scheduled { num_cached_tokens } = event.kind
                && !request.was_scheduled
            {
                request.was_scheduled = true;
                request.usage.cached_tokens = num_cached_tokens as usize;
            }
        }
        if !output.tokens.is_empty() {
            request.ticket.prefilled();
        }
        request.usage.completion_tokens += output.tokens.len();
        let logprobs = output.tokens.iter().filter_map(|token| token.logprobs.as_ref());
        request.cumulative_logprob += logprobs.map(|logprobs| f64::from(logprobs.chosen)).sum::<f64>();
        let decoded = &mut self.decoded;
        request.decoder.push(&output.tokens, output.finish, &*self.text, decoded);
        request.guard.text(&decoded.text);
        if decoded.stopped && output.finish.is_none() {
            self.engine.abort(output.id);
        }
        let reason = if decoded.stopped { Some(FinishReason::Stop) } else { output.finish };
        let Some(reason) = reason else {
            if !(decoded.text.is_empty() && decoded.logprobs.is_empty()) {
                request.deltas.send(request.index, &decoded.text, &mut decoded.logprobs);
            }
            return;
        };
        let finish = Some(Finish {
            reason,
            stop: decoded.cause.take(),
            usage: request.usage,
            cumulative_logprob: request.cumulative_logprob,
            error: output.error,
            engine_gone: false,
        });
        let (text, logprobs) = (std::mem::take(&mut decoded.text), std::mem::take(&mut decoded.logprobs));
        let delta = Delta { index: request.index, text, logprobs, finish };
        let error_type = (reason == FinishReason::Error).then_some(ENGINE_ERROR);
        if let Some(request) = self.open.remove(&output.id) {
            request.end(now, error_type, delta);
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.alive.store(false, Ordering::Release);
        self.open.clear();
        self.count_open();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use limpid_engine::request::{RequestEvent, SampledToken, SamplingParams, StepFinished, StepTimes};
    use limpid_telemetry::Operation;

    use super::*;
    use crate::frontend::{
        AdmissionLimits, Collect, EngineParts, Frontend, Generation, NewRequest, StepSink, channel,
    };
    use crate::testing::{ByteModel, RecordingEngine, telemetry};

    /// How long the engine may make no step.
    const PATIENCE: Duration = Duration::from_millis(20);

    struct World {
        engine: Arc<RecordingEngine>,
        frontend: Frontend,
        sink: Option<StepSink>,
    }

    impl World {
        fn new() -> World {
            let (sink, events) = channel();
            let engine = Arc::new(RecordingEngine::default());
            let limits = AdmissionLimits { max_num_queued_reqs: Some(3), max_num_queued_tokens: None };
            let parts = EngineParts { engine: Arc::clone(&engine) as _, events, telemetry: telemetry().1 };
            let (frontend, _tasks) =
                Frontend::start(vec![parts], &(Arc::new(ByteModel) as _), limits, None, PATIENCE);
            World { engine, frontend, sink: Some(sink) }
        }

        fn open(&self, stop: &[&str]) -> (RequestId, Generation) {
            let generation = self.frontend.open(World::request(stop, 1)).expect("there is room");
            (generation.open[0].1, generation)
        }

        fn request(stop: &[&str], num_choices: usize) -> NewRequest {
            NewRequest {
                id: "cmpl-1".to_owned(),
                operation: Operation::TextCompletion,
                arrival: Instant::now(),
                http_span: None,
                prompt: vec![1, 2, 3],
                sampling: SamplingParams { seed: Some(u64::MAX), ..SamplingParams::default() },
                num_choices,
                stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
                skip_special_tokens: true,
                priority: 0,
                cache_salt: None,
                data_parallel_rank: None,
                recorded: Default::default(),
            }
        }

        fn step(&self, id: RequestId, text: &str, finish: Option<FinishReason>) {
            let now = Instant::now();
            let scheduled = RequestEventKind::Scheduled { num_cached_tokens: 2 };
            let output = RequestOutput {
                id,
                events: vec![RequestEvent { at: now, kind: scheduled }],
                tokens: text
                    .bytes()
                    .map(|byte| SampledToken { id: u32::from(byte), logprobs: None })
                    .collect(),
                finish,
                times: StepTimes::default(),
                error: None,
            };
            let step = StepFinished {
                started: now,
                finished: now,
                scheduler: Default::default(),
                times: StepTimes::default(),
                num_prompt_tokens: 0,
                num_generation_tokens: text.len() as u64,
                work: Default::default(),
                apply: Default::default(),
            };
            self.sink.as_ref().expect("the engine runs").step(StepOutput {
                step,
                outputs: vec![output],
                evicted: Vec::new(),
                trace: None,
            });
        }
    }

    async fn rest(generation: &mut Generation) -> (String, Option<Finish>) {
        let mut text = String::new();
        while let Some(delta) = generation.next(Collect::Nothing).await {
            text.push_str(&delta.text);
            if delta.finish.is_some() {
                return (text, delta.finish);
            }
        }
        (text, None)
    }

    #[tokio::test]
    async fn the_last_delta_has_reason_and_usage() {
        let world = World::new();
        let (id, mut generation) = world.open(&[]);
        world.step(id, "he", None);
        world.step(id, "llo", Some(FinishReason::Length));
        let (text, finish) = rest(&mut generation).await;
        let finish = finish.expect("finished");
        assert_eq!(text, "hello");
        assert_eq!(finish.reason, FinishReason::Length);
        let usage = crate::frontend::Usage { prompt_tokens: 3, completion_tokens: 5, cached_tokens: 2 };
        assert_eq!(finish.usage, usage);
        drop(generation);
        assert!(world.engine.aborted().is_empty(), "a finished request is not aborted");
    }

    #[tokio::test]
    async fn pieces_of_a_choice_that_have_piled_up_are_read_as_one() {
        let world = World::new();
        let mut generation = world.frontend.open(World::request(&[], 2)).expect("there is room");
        let (first, second) = (generation.open[0].1, generation.open[1].1);
        world.step(first, "a", None);
        assert_eq!(
            generation.next(Collect::Nothing).await.expect("a piece").text,
            "a",
            "it does not wait for more"
        );
        for (id, text, finish) in [
            (first, "b", None),
            (first, "c", None),
            (second, "x", None),
            (first, "d", None),
            (first, "e", Some(FinishReason::Length)),
            (second, "y", Some(FinishReason::Length)),
        ] {
            world.step(id, text, finish);
        }
        // The frontend's task has handled every step once its books are closed.
        world.frontend.drained().await;
        let mut seen = Vec::new();
        while let Some(delta) = generation.next(Collect::Nothing).await {
            seen.push((delta.index, delta.text, delta.finish.is_some()));
        }
        let piece = |index, text: &str, ends| (index, text.to_owned(), ends);
        assert_eq!(seen, [piece(0, "bcde", true), piece(1, "xy", true)]);
        assert!(generation.is_finished());
    }

    #[tokio::test]
    async fn what_was_said_before_a_failure_is_a_piece_of_its_own() {
        let world = World::new();
        let (id, mut generation) = world.open(&[]);
        world.step(id, "a", None);
        world.step(id, "b", Some(FinishReason::Error));
        world.frontend.drained().await;
        let said = generation.next(Collect::ToTheEnd).await.expect("a piece");
        assert_eq!((said.text.as_str(), said.finish.is_some()), ("a", false));
        assert!(generation.is_ready());
        let failed = generation.next(Collect::ToTheEnd).await.expect("a piece");
        assert!(failed.has_failed());
        assert!(generation.next(Collect::ToTheEnd).await.is_none(), "and no other");
    }

    #[tokio::test]
    async fn pieces_are_collected_until_the_moment_or_the_last_one() {
        let world = World::new();
        let mut generation = world.frontend.open(World::request(&[], 1)).expect("there is room");
        let id = generation.open[0].1;
        let late = Instant::now() + Duration::from_secs(60);
        world.step(id, "a", None);
        let (collected, ()) = tokio::join!(generation.next(Collect::Until(late)), async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            world.step(id, "b", None);
            tokio::time::sleep(Duration::from_millis(1)).await;
            world.step(id, "c", Some(FinishReason::Length));
        });
        let collected = collected.expect("a piece");
        assert_eq!((collected.text.as_str(), collected.finish.is_some()), ("abc", true));
        assert!(Instant::now() < late, "the last piece waits for nothing");
    }

    #[tokio::test]
    async fn a_stop_string_ends_the_request_and_aborts_it_in_the_engine() {
        let world = World::new();
        let (id, mut generation) = world.open(&["END"]);
        world.step(id, "a EN", None);
        world.step(id, "D b", None);
        world.step(id, "", Some(FinishReason::Abort));
        let (text, finish) = rest(&mut generation).await;
        let finish = finish.expect("finished");
        assert_eq!((text.as_str(), finish.reason), ("a ", FinishReason::Stop));
        assert_eq!(finish.usage.completion_tokens, 7, "tokens behind the stop string count");
        assert_eq!(world.engine.aborted(), [id]);
    }

    #[tokio::test]
    async fn dropping_the_answer_aborts_the_request_and_the_engines_answer_closes_it() {
        let world = World::new();
        let (id, generation) = world.open(&[]);
        world.step(id, "a", None);
        drop(generation);
        assert_eq!(world.engine.aborted(), [id]);
        world.step(id, "", Some(FinishReason::Abort));
        world.frontend.drained().await;
        assert_eq!(world.frontend.failed_engine(), None);
    }

    #[tokio::test]
    async fn the_end_of_the_engine_ends_every_request_as_an_error() {
        let mut world = World::new();
        let (_, mut before) = world.open(&[]);
        world.sink.take();
        let finish = rest(&mut before).await.1.expect("finished");
        assert_eq!((finish.reason, finish.engine_gone), (FinishReason::Error, true));
        assert_eq!(world.frontend.failed_engine(), Some(0));
        let (_, mut after) = world.open(&[]);
        assert_eq!(rest(&mut after).await.1.expect("finished").reason, FinishReason::Error);
    }

    #[tokio::test]
    async fn choices_are_requests_of_one_group_with_seeds_of_their_own() {
        let world = World::new();
        let generation = world.frontend.open(World::request(&[], 3)).expect("there is room");
        let submitted = world.engine.submitted();
        let ids: Vec<_> = generation.open.iter().map(|(_, id)| *id).collect();
        assert_eq!(submitted.iter().map(|request| request.id).collect::<Vec<_>>(), ids);
        let seeds: Vec<_> = submitted.iter().map(|request| request.params.seed).collect();
        assert_eq!(seeds, [Some(u64::MAX), Some(0), Some(1)]);
        assert!(submitted[0].siblings.is_some());
        assert!(submitted.iter().all(|request| request.siblings == submitted[0].siblings));
        assert!(submitted.iter().all(|request| Arc::ptr_eq(&request.prompt, &submitted[0].prompt)));
    }

    #[tokio::test]
    async fn pieces_carry_the_index_of_their_choice_and_leaving_aborts_the_unfinished_ones() {
        let world = World::new();
        let mut generation = world.frontend.open(World::request(&[], 3)).expect("there is room");
        let ids: Vec<_> = generation.open.iter().map(|(_, id)| *id).collect();
        world.step(ids[2], "c", None);
        world.step(ids[0], "a", Some(FinishReason::Length));
        world.step(ids[1], "b", None);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let delta = generation.next(Collect::Nothing).await.expect("a piece");
            seen.push((delta.index, delta.text, delta.finish.is_some()));
        }
        let piece = |index, text: &str, ends| (index, text.to_owned(), ends);
        assert_eq!(seen, [piece(2, "c", false), piece(0, "a", true), piece(1, "b", false)]);
        assert!(!generation.is_finished());
        drop(generation);
        assert_eq!(world.engine.aborted(), ids[1..]);
    }

    #[tokio::test]
    async fn a_place_is_free_again_once_the_client_has_the_last_piece() {
        let world = World::new();
        let (id, mut first) = world.open(&[]);
        let _second = world.frontend.open(World::request(&[], 2)).expect("three of three");
        let refused = world.frontend.open(World::request(&[], 1)).err().expect("four of three");
        assert_eq!((refused.found, refused.allowed), (3, 3));
        world.step(id, "a", Some(FinishReason::Stop));
        rest(&mut first).await;
        assert!(world.frontend.open(World::request(&[], 1)).is_ok());
    }

    #[tokio::test]
    async fn an_engine_is_stalled_if_requests_are_open_and_no_step_comes() {
        let world = World::new();
        let stalls = async || {
            // Waiting can only make it true, so a slow machine changes nothing.
            tokio::time::sleep(2 * PATIENCE).await;
            world.frontend.stalled()
        };
        assert_eq!(stalls().await, None, "an idle engine has nothing to do");
        let (id, mut generation) = world.open(&[]);
        assert!(stalls().await.is_some_and(|(engine, silence)| engine == 0 && silence > PATIENCE));
        world.step(id, "a", None);
        generation.next(Collect::Nothing).await.expect("the step came");
        assert!(stalls().await.is_some(), "and no other");
        world.engine.fall_asleep();
        assert_eq!(stalls().await, None, "asleep, requests wait");
        world.frontend.wake_up().await.expect("the engine answers").expect("it wakes up");
        assert!(stalls().await.is_some());
        world.step(id, "b", Some(FinishReason::Stop));
        rest(&mut generation).await;
        world.frontend.drained().await;
        assert_eq!(stalls().await, None, "idle again");
    }

    #[tokio::test]
    async fn abort_all_asks_for_the_end_of_each_open_request() {
        let world = World::new();
        let (first, mut generation) = world.open(&[]);
        let (second, _kept) = world.open(&[]);
        world.step(first, "a", Some(FinishReason::Stop));
        rest(&mut generation).await;
        world.frontend.abort_all();
        world.step(second, "", Some(FinishReason::Abort));
        world.frontend.drained().await;
        assert_eq!(world.engine.aborted(), [second]);
    }
}
