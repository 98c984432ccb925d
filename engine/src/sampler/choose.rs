//! From adjusted logits to one token id.
//!
//! A vocabulary has tens of thousands of tokens and every row of every step comes through here, so the passes
//! over all of it are written for vector instructions and nothing sorts all of it. Sums are `f64`: a large
//! vocabulary loses no probability.

use std::cell::RefCell;
use std::cmp::Ordering;

use super::SampleError;
use crate::device;
use crate::request::SamplingParams;

/// Values handled side by side: a multiple of what vector registers hold.
const LANES: usize = 16;

/// Logits after which the running maximum is compared.
const CHUNK: usize = 16 * LANES;

/// Up to this many, the best tokens are kept sorted while looking; above, they are selected and sorted.
const FEW: usize = 64;

/// Index of the greatest logit, the lowest among equals, in one pass that also sees every NaN.
pub(super) fn argmax(logits: &[f32]) -> Result<u32, SampleError> {
    let (mut best, mut best_chunk, mut nan) = (f32::NEG_INFINITY, 0, false);
    for (index, chunk) in logits.chunks(CHUNK).enumerate() {
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

/// A token and how good it is: its logit or its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) value: f32,
    pub(super) id: u32,
}

impl Candidate {
    /// Best first, the lower id among equals.
    fn compare(&self, other: &Candidate) -> Ordering {
        other.value.total_cmp(&self.value).then(self.id.cmp(&other.id))
    }
}

/// Writes the `count` greatest logits to `best`, best first, the lower id among equals.
pub(super) fn best(logits: &[f32], count: usize, best: &mut Vec<Candidate>) {
    best.clear();
    let all = logits.iter().enumerate().map(|(id, logit)| Candidate { value: *logit, id: id as u32 });
    if count == 0 {
        return;
    }
    if count > FEW {
        best.extend(all);
        if count < best.len() {
            best.select_nth_unstable_by(count - 1, Candidate::compare);
            best.truncate(count);
        }
        best.sort_unstable_by(Candidate::compare);
        return;
    }
    let mut least = f32::NEG_INFINITY;
    for candidate in all {
        if best.len() == count {
            // Ids rise, so a later equal is worse.
            if candidate.value <= least {
                continue;
            }
            best.pop();
        }
        let place = best.partition_point(|better| better.value >= candidate.value);
        best.insert(place, candidate);
        least = best[best.len() - 1].value;
    }
}

/// `e^x` for x ≤ 0 within a few parts in 10⁷, and 0 below −87, where `f32` has no more normal numbers.
/// Without calls or branches, so that loops over it become vector instructions.
fn exp(x: f32) -> f32 {
    /// Adding it leaves a whole number in the low bits of the sum: 1.5 · 2²³.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > -87.0 { x } else { -87.0 };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = (clamped - whole * LN_2_HIGH) - whole * LN_2_LOW;
    let mut series = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * rest + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let result = series * f32::from_bits(exponent << 23);
    if x > -87.0 { result } else { 0.0 }
}

/// Sum of `e^(logit − max)` over all logits.
pub(super) fn exp_sum(logits: &[f32], max: f32) -> f64 {
    let (groups, rest) = logits.as_chunks::<LANES>();
    let mut sums = [0.0_f64; LANES];
    for group in groups {
        let terms = group.map(|logit| exp(logit - max));
        for (sum, term) in sums.iter_mut().zip(terms) {
            *sum += f64::from(term);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|logit| f64::from(exp(logit - max))).sum::<f64>()
}

/// Replaces each logit by `e^((logit − max) · scale)` and answers the sum.
fn softmax_terms(logits: &mut [f32], max: f32, scale: f32) -> f64 {
    for logit in &mut *logits {
        *logit = exp((*logit - max) * scale);
    }
    let (groups, rest) = logits.as_chunks::<LANES>();
    let mut sums = [0.0_f64; LANES];
    for group in groups {
        for (sum, term) in sums.iter_mut().zip(group) {
            *sum += f64::from(*term);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|term| f64::from(*term)).sum::<f64>()
}

thread_local! {
    /// May be as long as the vocabulary, so kept from one row to the next.
    static CANDIDATES: RefCell<Vec<Candidate>> = const { RefCell::new(Vec::new()) };
}

/// Samples from what temperature, `min_p`, `top_k` and `top_p` leave of the softmax. `max` is the greatest
/// logit, `uniform` a random number in [0, 1). The logits are overwritten.
pub(super) fn sample(logits: &mut [f32], max: f32, params: &SamplingParams, uniform: f64) -> u32 {
    if let Some(k) = params.top_k.filter(|k| (1..logits.len()).contains(k)) {
        return CANDIDATES.with_borrow_mut(|candidates| {
            best(logits, k, candidates);
            sample_top_k(candidates, max, params, uniform)
        });
    }
    let scale = 1.0 / params.temperature;
    let mut total = softmax_terms(logits, max, scale);
    if params.min_p > 0.0 {
        total =
            logits.iter().filter(|weight| **weight >= params.min_p).map(|weight| f64::from(*weight)).sum();
    }
    let at_least = |least: f32| {
        let all = logits.iter().enumerate().map(|(id, weight)| Candidate { value: *weight, id: id as u32 });
        all.filter(move |candidate| candidate.value >= least)
    };
    if params.top_p >= 1.0 {
        return pick(at_least(params.min_p), uniform * total);
    }
    // All tokens below this weight together have less than 1 − top_p, so none of them is needed.
    let needless = (f64::from(1.0 - params.top_p) * total / logits.len() as f64) as f32;
    CANDIDATES.with_borrow_mut(|candidates| {
        candidates.clear();
        candidates.extend(at_least(params.min_p.max(needless)));
        let left = truncate_to_top_p(candidates, params.top_p, total);
        pick(candidates.iter().copied(), uniform * left)
    })
}

/// [`sample`] for a row of which the device has picked the `top_k` best.
pub(super) fn sample_picked(
    picked: &[device::Candidate],
    max: f32,
    params: &SamplingParams,
    uniform: f64,
) -> u32 {
    CANDIDATES.with_borrow_mut(|candidates| {
        candidates.clear();
        candidates.extend(picked.iter().map(|picked| Candidate { value: picked.logit, id: picked.id }));
        sample_top_k(candidates, max, params, uniform)
    })
}

/// Samples from the `top_k` best logits, best first.
fn sample_top_k(candidates: &mut Vec<Candidate>, max: f32, params: &SamplingParams, uniform: f64) -> u32 {
    let scale = 1.0 / params.temperature;
    for candidate in &mut *candidates {
        candidate.value = exp((candidate.value - max) * scale);
    }
    // Weights are relative to the greatest, like min_p.
    candidates.truncate(candidates.partition_point(|candidate| candidate.value >= params.min_p));
    let total = weight(candidates);
    let left = truncate_to_top_p(candidates, params.top_p, total);
    pick(candidates.iter().copied(), uniform * left)
}

fn weight(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| f64::from(candidate.value)).sum()
}

/// Cuts to the fewest best tokens that have `top_p` of the weight `total`; answers the weight left. Sorts
/// from the top only as far as needed.
fn truncate_to_top_p(candidates: &mut Vec<Candidate>, top_p: f32, total: f64) -> f64 {
    if top_p >= 1.0 {
        return total;
    }
    let wanted = f64::from(top_p) * total;
    let (mut sorted, mut sum, mut step) = (0, 0.0, FEW);
    while sorted < candidates.len() {
        let end = candidates.len().min(sorted + step);
        if end < candidates.len() {
            candidates[sorted..].select_nth_unstable_by(end - sorted - 1, Candidate::compare);
        }
        candidates[sorted..end].sort_unstable_by(Candidate::compare);
        for index in sorted..end {
            sum += f64::from(candidates[index].value);
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
fn pick(candidates: impl Iterator<Item = Candidate>, target: f64) -> u32 {
    let mut sum = 0.0;
    let mut last = 0;
    for Candidate { value, id } in candidates {
        if value > 0.0 {
            sum += f64::from(value);
            last = id;
            if sum > target {
                break;
            }
        }
    }
    // Rounding may leave the target at the very end: then it is the last token's.
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exp_where_it_is_used() {
        for step in 0..870_000 {
            let x = -(step as f32) * 1e-4;
            let (found, expected) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((found - expected).abs() <= 4e-7 * expected, "e^{x} is {expected}, not {found}");
        }
        assert_eq!((exp(0.0), exp(-87.5), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
    }
}
