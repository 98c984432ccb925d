use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{Lifecycle, RequestFinished};
use crate::observation::{FinishReason, RequestEvent, RequestEventKind, StepTimes};
use crate::request::{Operation, RequestOutcome, RequestParams, RequestProgress, RequestStarted};

fn started(arrival: Instant) -> RequestStarted {
    RequestStarted {
        arrival,
        operation: Operation::Chat,
        id: "chatcmpl-1".to_owned(),
        num_prompt_tokens: 20,
        max_tokens: 10,
        params: RequestParams::default(),
    }
}

fn at(base: Instant, milliseconds: u64) -> Instant {
    base + Duration::from_millis(milliseconds)
}

fn event(at: Instant, kind: RequestEventKind) -> RequestEvent {
    RequestEvent { at, kind }
}

fn progress<'a>(at: Instant, events: &'a [RequestEvent], num_new_tokens: u64) -> RequestProgress<'a> {
    RequestProgress { new_tokens_at: at, now: at, events, num_new_tokens, times: StepTimes::default() }
}

fn end(lifecycle: &Lifecycle, now: Instant, reason: FinishReason) -> RequestFinished {
    lifecycle.finish(&RequestOutcome { now, reason, error_type: None }, None)
}

#[test]
fn the_first_scheduled_counts_and_a_preemption_lengthens_decode_only() {
    let base = Instant::now();
    let mut life = Lifecycle::new(&started(base), true);
    let early = [
        event(at(base, 10), RequestEventKind::Queued),
        event(at(base, 30), RequestEventKind::Scheduled { num_cached_tokens: 16 }),
        event(at(base, 80), RequestEventKind::PrefillChunk { num_tokens: 4 }),
    ];
    let first = life.progress(&progress(at(base, 80), &early, 1), None).tokens.unwrap();
    assert_eq!(first.first.unwrap().num_cached_tokens, 16);
    assert_eq!(first.inter_token, None);
    let resumed = [
        event(at(base, 90), RequestEventKind::Preempted),
        event(at(base, 200), RequestEventKind::Scheduled { num_cached_tokens: 0 }),
        event(at(base, 260), RequestEventKind::PrefillChunk { num_tokens: 21 }),
    ];
    let second = life.progress(&progress(at(base, 260), &resumed, 1), None).tokens.unwrap();
    assert_eq!(second.inter_token, Some(Duration::from_millis(180)));
    let done = end(&life, at(base, 261), FinishReason::Length);
    assert_eq!(done.queue, Some(Duration::from_millis(20)));
    assert_eq!(done.prefill, Some(Duration::from_millis(50)));
    assert_eq!(done.decode, Some(Duration::from_millis(180)));
    assert_eq!(done.inference, Some(Duration::from_millis(230)));
    assert_eq!(done.time_per_output_token, Some(Duration::from_millis(180)));
    assert_eq!((done.num_preemptions, done.num_cached_tokens), (1, Some(16)));
    assert_eq!((done.num_processed_prompt_tokens, done.num_prefill_computed_tokens), (20, 4));
}

#[test]
fn a_request_aborted_in_its_queue_has_only_an_end_to_end_time() {
    let base = Instant::now();
    let mut life = Lifecycle::new(&started(base), true);
    let queued = [event(at(base, 1), RequestEventKind::Queued)];
    assert_eq!(life.progress(&progress(at(base, 5), &queued, 0), None).tokens, None);
    let done = end(&life, at(base, 9), FinishReason::Abort);
    assert_eq!(done.e2e, Duration::from_millis(9));
    assert_eq!((done.queue, done.prefill, done.decode, done.inference), (None, None, None, None));
    assert_eq!((done.time_to_first_token, done.time_per_output_token, done.times), (None, None, None));
    assert_eq!((done.num_processed_prompt_tokens, done.num_prefill_computed_tokens), (0, 0));
}

#[test]
fn a_request_aborted_in_its_prefill_has_a_queue_and_computed_tokens_but_no_prefill() {
    let base = Instant::now();
    let mut life = Lifecycle::new(&started(base), true);
    let events = [
        event(at(base, 1), RequestEventKind::Queued),
        event(at(base, 3), RequestEventKind::Scheduled { num_cached_tokens: 0 }),
        event(at(base, 6), RequestEventKind::PrefillChunk { num_tokens: 8 }),
    ];
    life.progress(&progress(at(base, 6), &events, 0), None);
    let done = end(&life, at(base, 7), FinishReason::Abort);
    assert_eq!(done.queue, Some(Duration::from_millis(2)));
    assert_eq!((done.prefill, done.inference), (None, None));
    assert_eq!((done.num_processed_prompt_tokens, done.num_prefill_computed_tokens), (0, 8));
}

#[test]
fn one_token_has_a_decode_of_zero_and_no_time_per_output_token() {
    let base = Instant::now();
    let mut life = Lifecycle::new(&started(base), false);
    life.progress(&progress(at(base, 4), &[], 1), None);
    let done = end(&life, at(base, 5), FinishReason::Stop);
    assert_eq!(done.decode, Some(Duration::ZERO));
    assert_eq!(done.time_per_output_token, None);
}

#[test]
fn tokens_minus_one_gaps_add_up_to_the_decode_time() {
    let base = Instant::now();
    let mut life = Lifecycle::new(&started(base), false);
    let stamps = [10, 13, 19, 40];
    let gaps: Vec<Duration> = stamps
        .iter()
        .filter_map(|&stamp| {
            life.progress(&progress(at(base, stamp), &[], 1), None).tokens.unwrap().inter_token
        })
        .collect();
    let done = end(&life, at(base, 41), FinishReason::Stop);
    assert_eq!(gaps.len(), stamps.len() - 1);
    assert_eq!(gaps.iter().sum::<Duration>(), done.decode.unwrap());
}

proptest! {
    /// Whatever order stamps come in, hostile or not: nothing panics, nothing is negative, parts fit the whole.
    #[test]
    fn intervals_never_exceed_what_contains_them(
        steps in prop::collection::vec((0u64..5_000, 0u8..5, 0u32..40, 0u64..4), 0..40),
        end_at in 0u64..6_000,
    ) {
        let base = Instant::now();
        let mut life = Lifecycle::new(&started(base), true);
        let mut generated = 0;
        for (stamp, kind, tokens, new) in steps {
            let kind = match kind {
                0 => RequestEventKind::Queued,
                1 => RequestEventKind::Scheduled { num_cached_tokens: tokens },
                2 => RequestEventKind::PrefillChunk { num_tokens: tokens },
                _ => RequestEventKind::Preempted,
            };
            life.progress(&progress(at(base, stamp), &[event(at(base, stamp), kind)], new), None);
            generated += new;
        }
        let done = end(&life, at(base, end_at), FinishReason::Stop);
        prop_assert_eq!(done.num_generation_tokens, generated);
        prop_assert!(done.num_cached_tokens.unwrap_or(0) <= 20);
        if generated > 0 {
            prop_assert_eq!(done.num_processed_prompt_tokens, 20);
            prop_assert!(done.decode.is_some());
        } else {
            prop_assert_eq!(done.num_processed_prompt_tokens, 0);
            prop_assert!(done.prefill.is_none() && done.decode.is_none() && done.inference.is_none());
        }
    }
}
