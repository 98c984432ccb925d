//! The definition of `top_k`.

use std::cmp::Ordering;

use crate::device::Candidate;

/// The `k` best of a row of logits, or all if it has fewer: NaN before any number, then the greatest first; the lower
/// id among equals, which both zeros are.
pub fn top_k(logits: &[f32], k: usize) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> =
        (0..).zip(logits).map(|(id, logit)| Candidate { id, logit: *logit }).collect();
    // Stable, so that ids stay in order among equals.
    candidates.sort_by(|one, other| better_first(one.logit, other.logit));
    candidates.truncate(k);
    candidates
}

fn better_first(one: f32, other: f32) -> Ordering {
    match (one.is_nan(), other.is_nan()) {
        (false, false) => other.partial_cmp(&one).expect("numbers have an order"),
        (one, other) => other.cmp(&one),
    }
}
