//! Log-probabilities of the softmax over raw logits.

use super::choose::{best, exp_sum};
use crate::request::TokenLogprobs;

/// The best tokens of a row, and what turns a logit of it into a log-probability.
pub(super) struct RawLogprobs {
    log_sum: f64,
    max: f32,
    top: Vec<(u32, f32)>,
}

impl RawLogprobs {
    /// Reads the `count` most probable tokens, most probable first, the lower id among equals. `max` is the
    /// greatest logit.
    pub(super) fn read(logits: &[f32], max: f32, count: usize) -> RawLogprobs {
        let mut candidates = Vec::new();
        best(logits, count, &mut candidates);
        RawLogprobs {
            log_sum: exp_sum(logits, max).ln(),
            max,
            top: candidates.iter().map(|candidate| (candidate.id, candidate.value)).collect(),
        }
    }

    /// With the chosen token's raw logit, the answer.
    pub(super) fn with_chosen(self, chosen: f32) -> TokenLogprobs {
        let logprob = |logit: f32| (f64::from(logit - self.max) - self.log_sum) as f32;
        TokenLogprobs {
            chosen: logprob(chosen),
            top: self.top.iter().map(|(id, logit)| (*id, logprob(*logit))).collect(),
        }
    }
}
