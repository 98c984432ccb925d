//! From adjusted logits to one token id. Sums are `f64`, so that a large vocabulary loses no probability.

use std::cell::RefCell;
use std::cmp::Ordering;

use super::SampleError;
use crate::request::SamplingParams;

/// Logits looked at together: enough lanes for the compiler to use vector instructions.
const CHUNK: usize = 256;

/// Tokens sorted at first when `top_p` is looked for; most of the time the set is smaller.
const FIRST_SORTED: usize = 64;

/// Index of the greatest logit, the lowest among equals, in one pass that also sees every NaN.
pub(super) fn argmax(logits: &[f32]) -> Result<u32, SampleError> {
    let (mut best, mut best_chunk, mut nan) = (f32::NEG_INFINITY, 0, false);
    for (index, chunk) in logits.chunks(CHUNK).enumerate() {
        const LANES: usize = 16;
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let mut nan_lanes = [false; LANES];
        let groups = chunk.chunks_exact(LANES);
        for (lane, logit) in groups.remainder().iter().enumerate() {
            lanes[lane] = *logit;
            nan_lanes[lane] = logit.is_nan();
        }
        for group in groups {
            for lane in 0..LANES {
                nan_lanes[lane] |= group[lane].is_nan();
                lanes[lane] = if group[lane] > lanes[lane] { group[lane] } else { lanes[lane] };
            }
        }
        nan |= nan_lanes.contains(&true);
        let max = lanes.iter().fold(f32::NEG_INFINITY, |max, lane| if *lane > max { *lane } else { max });
        if max > best {
            (best, best_chunk) = (max, index);
        }
    }
    if nan || best == f32::INFINITY {
        return Err(SampleError::NotFinite);
    }
    let start = best_chunk * CHUNK;
    let place = logits[start..].iter().position(|logit| *logit == best);
    place.map(|place| (start + place) as u32).ok_or(SampleError::NothingLeft)
}

/// Samples from the softmax over all tokens. Overwrites the logits.
pub(super) fn from_all(logits: &mut [f32], max: f32, temperature: f32, uniform: f64) -> u32 {
    let scale = 1.0 / temperature;
    let mut total = 0.0;
    for logit in &mut *logits {
        *logit = ((*logit - max) * scale).exp();
        total += f64::from(*logit);
    }
    let weights = logits.iter().enumerate().map(|(id, weight)| (id as u32, *weight));
    pick(weights, uniform * total)
}

/// Samples after `min_p`, `top_k` and `top_p` took the improbable tokens away.
pub(super) fn from_filtered(logits: &[f32], max: f32, params: &SamplingParams, uniform: f64) -> u32 {
    thread_local! {
        /// As long as the vocabulary, so kept from one row to the next.
        static CANDIDATES: RefCell<Vec<Candidate>> = const { RefCell::new(Vec::new()) };
    }
    CANDIDATES.with_borrow_mut(|candidates| {
        collect(logits, max, params, candidates);
        let total = truncate_to_top_p(candidates, params.top_p);
        pick(candidates.iter().map(|candidate| (candidate.id, candidate.weight)), uniform * total)
    })
}

/// A token that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    /// Its logit, then its weight: probability relative to the most probable token's.
    weight: f32,
    id: u32,
}

impl Candidate {
    /// Most probable first, the lower id among equals.
    fn compare(&self, other: &Candidate) -> Ordering {
        other.weight.total_cmp(&self.weight).then(self.id.cmp(&other.id))
    }
}

/// The tokens that `min_p` and `top_k` leave, with their weights, in no particular order.
fn collect(logits: &[f32], max: f32, params: &SamplingParams, candidates: &mut Vec<Candidate>) {
    // weight >= min_p, written for logits; ln 0 is minus infinity and excludes nothing.
    let least = max + params.temperature * params.min_p.ln();
    candidates.clear();
    candidates.extend(
        logits
            .iter()
            .enumerate()
            .filter(|(_, logit)| **logit >= least)
            .map(|(id, logit)| Candidate { weight: *logit, id: id as u32 }),
    );
    if let Some(k) = params.top_k.filter(|k| (1..candidates.len()).contains(k)) {
        candidates.select_nth_unstable_by(k - 1, Candidate::compare);
        candidates.truncate(k);
    }
    let scale = 1.0 / params.temperature;
    for candidate in candidates {
        candidate.weight = ((candidate.weight - max) * scale).exp();
    }
}

/// Cuts to the fewest most probable tokens that have `top_p` of the weight; answers the weight left. Sorts
/// from the top only as far as needed.
fn truncate_to_top_p(candidates: &mut Vec<Candidate>, top_p: f32) -> f64 {
    let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.weight)).sum();
    if top_p >= 1.0 {
        return total;
    }
    let wanted = f64::from(top_p) * total;
    let (mut sorted, mut sum, mut step) = (0, 0.0, FIRST_SORTED);
    while sorted < candidates.len() {
        let end = candidates.len().min(sorted + step);
        if end < candidates.len() {
            candidates[sorted..].select_nth_unstable_by(end - sorted - 1, Candidate::compare);
        }
        candidates[sorted..end].sort_unstable_by(Candidate::compare);
        for index in sorted..end {
            sum += f64::from(candidates[index].weight);
            if sum >= wanted {
                candidates.truncate(index + 1);
                return sum;
            }
        }
        sorted = end;
        step *= 4;
    }
    sum
}

/// The token at `target` on the line on which tokens lie end to end, each as long as its weight.
fn pick(weights: impl Iterator<Item = (u32, f32)>, target: f64) -> u32 {
    let mut sum = 0.0;
    let mut last = 0;
    for (id, weight) in weights {
        if weight > 0.0 {
            sum += f64::from(weight);
            last = id;
            if sum > target {
                break;
            }
        }
    }
    // Rounding may leave the target at the very end: then it is the last token's.
    last
}
