//! Which engine gets a request: the one that has seen the beginning of its prompt, unless another has clearly less
//! to do.
//!
//! What an engine has to do is vLLM's score: one for each request that runs, four for each that waits, those on
//! their way to the engine and preempted ones included. What it has seen is remembered as hashes of prompts cut after
//! 1, 2, 4, 8 … blocks of the prefix cache, so that a conversation that goes on finds its engine at whatever length,
//! and one that shares only the system prompt is found by that. It is a guess: the engine may have evicted the
//! blocks, which costs time and nothing else.
//!
//! Invariant: a request counts from the moment an engine is chosen for it until it has ended, so requests that come at
//! once do not all see the same idle engine.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Frontend, Lane, NewRequest};

/// What a waiting request weighs, where a running one weighs 1.
const WAITING_WEIGHT: usize = 4;

/// How much more than the least an engine may have to do and still get a prompt that it knows: one waiting request.
const AFFINITY_SLACK: usize = WAITING_WEIGHT;

/// Beginnings of prompts after which the older half is forgotten.
const MAX_BEGINNINGS: usize = 1 << 15;

/// What an engine has to do.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Choices that were handed to it and have not ended.
    open: AtomicUsize,
    /// Requests that ran at the end of its latest step.
    running: AtomicUsize,
}

impl Load {
    /// Takes in the state at the end of a step.
    pub(super) fn set_running(&self, num_running: u64) {
        self.running.store(num_running as usize, Ordering::Relaxed);
    }

    fn score(&self) -> usize {
        let open = self.open.load(Ordering::Relaxed);
        let running = self.running.load(Ordering::Relaxed).min(open);
        running + WAITING_WEIGHT * (open - running)
    }
}

/// A choice that counts as its engine's load until this is dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<Load>);

impl Place {
    fn take(load: &Arc<Load>) -> Place {
        load.open.fetch_add(1, Ordering::Relaxed);
        Place(Arc::clone(load))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Chooses engines.
#[derive(Debug)]
pub(super) struct Router {
    /// Tokens in a block of the prefix caches, if there are any.
    block_size: Option<usize>,
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whose turn it is among equals.
    turn: usize,
    /// The engine that saw a beginning last.
    recent: HashMap<u64, usize>,
    /// Those from before `recent` was last full.
    older: HashMap<u64, usize>,
}

impl Router {
    pub(super) fn new(block_size: Option<usize>) -> Router {
        Router { block_size, hasher: RandomState::new(), state: Mutex::default() }
    }

    /// The prompt's beginnings, shortest first.
    fn beginnings(&self, prompt: &[u32], salt: Option<&str>) -> Vec<u64> {
        let Some(block_size) = self.block_size else { return Vec::new() };
        let mut hasher = self.hasher.build_hasher();
        salt.hash(&mut hasher);
        let mut beginnings = Vec::new();
        let (mut start, mut end) = (0, block_size);
        while let Some(tokens) = prompt.get(start..end) {
            tokens.hash(&mut hasher);
            beginnings.push(hasher.finish());
            (start, end) = (end, 2 * end);
        }
        beginnings
    }
}

impl State {
    /// The index of the best engine; `scores` has `None` for those that take no requests.
    fn choose(&mut self, scores: &[Option<usize>], beginnings: &[u64]) -> Option<usize> {
        let turns = (0..scores.len()).map(|offset| (self.turn + offset) % scores.len());
        let (least, score) =
            turns.filter_map(|index| Some((index, scores[index]?))).min_by_key(|(_, score)| *score)?;
        let known = beginnings.iter().rev().find_map(|beginning| {
            let index = *self.recent.get(beginning).or_else(|| self.older.get(beginning))?;
            scores[index].filter(|own| *own <= score + AFFINITY_SLACK).map(|_| index)
        });
        Some(known.unwrap_or_else(|| {
            self.turn = (least + 1) % scores.len();
            least
        }))
    }

    fn remember(&mut self, beginnings: Vec<u64>, engine: usize) {
        self.recent.extend(beginnings.into_iter().map(|beginning| (beginning, engine)));
        if self.recent.len() > MAX_BEGINNINGS / 2 {
            self.older = std::mem::take(&mut self.recent);
        }
    }
}

impl Frontend {
    /// Chooses the engine of a request and counts its choices there.
    pub(super) fn assign(&self, request: &NewRequest, num_choices: usize) -> (&Lane, Vec<Place>) {
        let places = |lane: &Lane| (0..num_choices).map(|_| Place::take(&lane.load)).collect();
        if let [lane] = &*self.lanes {
            return (lane, places(lane));
        }
        let beginnings = self.router.beginnings(&request.prompt, request.cache_salt.as_deref());
        let mut state = self.router.state.lock().unwrap_or_else(PoisonError::into_inner);
        let scores = |takes: fn(&Lane) -> bool| -> Vec<Option<usize>> {
            self.lanes.iter().map(|lane| takes(lane).then(|| lane.load.score())).collect()
        };
        let engine = request
            .data_parallel_rank
            .or_else(|| {
                state.choose(&scores(|lane| lane.is_healthy() && !lane.engine.is_sleeping()), &beginnings)
            })
            .or_else(|| state.choose(&scores(Lane::is_healthy), &beginnings))
            // Any of them says that it is gone.
            .unwrap_or(0);
        state.remember(beginnings, engine);
        let lane = &self.lanes[engine];
        (lane, places(lane))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The engine chosen for a prompt, which is then remembered.
    fn choose(router: &Router, scores: &[Option<usize>], prompt: &[u32]) -> Option<usize> {
        let beginnings = router.beginnings(prompt, None);
        let mut state = router.state.lock().unwrap();
        let engine = state.choose(scores, &beginnings)?;
        state.remember(beginnings, engine);
        Some(engine)
    }

    #[test]
    fn equals_take_turns_and_whoever_has_less_to_do_comes_first() {
        let router = Router::new(Some(4));
        let turns: Vec<_> = (0..4).map(|_| choose(&router, &[Some(0), Some(0), Some(0)], &[])).collect();
        assert_eq!(turns, [Some(0), Some(1), Some(2), Some(0)]);
        assert_eq!(choose(&router, &[Some(3), Some(2), Some(3)], &[]), Some(1));
        assert_eq!(choose(&router, &[Some(3), None, Some(4)], &[]), Some(0));
        assert_eq!(choose(&router, &[None, None], &[]), None);
    }

    #[test]
    fn a_known_beginning_finds_its_engine_as_long_as_that_is_not_much_busier() {
        let router = Router::new(Some(4));
        let idle = [Some(0), Some(0)];
        let prompt: Vec<u32> = (0..20).collect();
        let first = choose(&router, &idle, &prompt).unwrap();
        let mut scores = idle;
        for busy in [0, AFFINITY_SLACK] {
            scores[first] = Some(busy);
            assert_eq!(choose(&router, &scores, &prompt), Some(first));
        }
        scores[first] = Some(AFFINITY_SLACK + 1);
        assert_eq!(choose(&router, &scores, &prompt), Some(1 - first));
        assert_eq!(choose(&router, &idle, &prompt), Some(1 - first), "who saw it last");
    }

    #[test]
    fn a_conversation_goes_on_where_it_began_and_only_the_longest_known_beginning_counts() {
        let router = Router::new(Some(4));
        let talk = |own: u32, turns: usize| -> Vec<u32> {
            let system = 0..16u32;
            system.chain((0..turns as u32 * 16).map(|token| 1000 * own + token)).collect()
        };
        // Its engine is busy when the second one begins, so they are kept apart.
        assert_eq!(choose(&router, &[Some(0), Some(9)], &talk(1, 1)), Some(0));
        assert_eq!(choose(&router, &[Some(9), Some(0)], &talk(2, 1)), Some(1));
        for turns in 2..6 {
            for (own, engine) in [(1, 0), (2, 1)] {
                assert_eq!(choose(&router, &[Some(0), Some(0)], &talk(own, turns)), Some(engine));
            }
        }
    }

    #[test]
    fn prompts_shorter_than_a_block_other_salts_and_no_cache_are_not_recognised() {
        let router = Router::new(Some(4));
        assert!(router.beginnings(&[1, 2, 3], None).is_empty());
        assert_eq!(router.beginnings(&[1; 17], None).len(), 3, "after 4, 8 and 16 tokens");
        assert_ne!(router.beginnings(&[1; 4], None), router.beginnings(&[1; 4], Some("a")));
        assert!(Router::new(None).beginnings(&[1; 100], None).is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut state = State::default();
        for beginning in 0..10 * MAX_BEGINNINGS as u64 {
            state.remember(vec![beginning], 1);
            assert!(state.recent.len() + state.older.len() <= MAX_BEGINNINGS + 1);
        }
        let latest = 10 * MAX_BEGINNINGS as u64 - 1;
        assert_eq!(state.choose(&[Some(0), Some(0)], &[latest]), Some(1));
    }

    #[test]
    fn waiting_weighs_four_and_running_one() {
        let load = Arc::new(Load::default());
        let mut places: Vec<_> = (0..5).map(|_| Place::take(&load)).collect();
        assert_eq!(load.score(), 20, "not seen by the engine yet");
        load.set_running(3);
        assert_eq!(load.score(), 3 + 8);
        // The engine still says three when two of five are left.
        places.truncate(2);
        assert_eq!(load.score(), 2);
        drop(places);
        assert_eq!(load.score(), 0);
    }
}
