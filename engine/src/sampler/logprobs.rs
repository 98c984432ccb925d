//! Log-probabilities of the softmax over raw logits.

use crate::request::TokenLogprobs;

/// The best tokens of a row, and what turns a logit of it into a log-probability.
pub(super) struct Best {
    log_sum: f64,
    max: f32,
    top: Vec<(u32, f32)>,
}

/// Reads the `count` most probable tokens, most probable first, the lower id among equals. `greatest` is
/// the index of the greatest logit.
pub(super) fn best(logits: &[f32], greatest: u32, count: usize) -> Best {
    let max = logits[greatest as usize];
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(count.min(logits.len()) + 1);
    if count > 0 {
        for (id, logit) in logits.iter().enumerate() {
            if top.len() == count && *logit <= top[count - 1].1 {
                continue;
            }
            // Ids rise, so behind its equals is where a newcomer belongs.
            let place = top.partition_point(|(_, better)| better >= logit);
            top.insert(place, (id as u32, *logit));
            top.truncate(count);
        }
    }
    Best { log_sum: sum.ln(), max, top }
}

impl Best {
    /// With the chosen token's raw logit, the answer.
    pub(super) fn with_chosen(self, chosen: f32) -> TokenLogprobs {
        let logprob = |logit: f32| (f64::from(logit - self.max) - self.log_sum) as f32;
        TokenLogprobs {
            chosen: logprob(chosen),
            top: self.top.iter().map(|(id, logit)| (*id, logprob(*logit))).collect(),
        }
    }
}
