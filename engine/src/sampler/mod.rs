//! Chooses a token from a row of logits, or from its best candidates where those are all that matters.
//!
//! A [`Sampler`] belongs to one request and has all that its choices depend on: the parameters, the random
//! numbers, and which tokens it has seen. So a text does not change with its company. The order is vLLM's:
//!
//! 1. log-probabilities are read from the logits as the model gave them;
//! 2. end tokens are masked while fewer than `min_tokens` were generated, `logit_bias` is added;
//! 3. repetition penalty over prompt and output, then frequency and presence penalties over output;
//! 4. greedy: the greatest logit, the lowest id among equals. Otherwise temperature, `min_p`, `top_k`,
//!    `top_p`, and one uniform random number picks from what is left.
//!
//! `top_k` keeps exactly k tokens, the lower id among equals (vLLM keeps all that tie with the k-th). A
//! request without `seed` gets one from whoever builds its sampler.
//!
//! Invariant: one random number is drawn for each sampled token that is not greedy, whatever the filters; and the
//! candidates that [`Sampler::num_candidates`] asks for give the token, or the error, that the whole row gives.

mod choose;
mod logprobs;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use logprobs::RawLogprobs;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::device::Candidate;
use crate::request::{SampledToken, SamplingParams};

/// Below this temperature sampling is greedy: the division would leave the range of `f32`.
const GREEDY_TEMPERATURE: f32 = 1e-5;

/// Why no token could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The model computed something that is no number, or plus infinity, of which softmax makes none.
    #[error("the model's logits are not numbers (NaN or infinite)")]
    NotFinite,
    /// Every token has probability 0.
    #[error("no token is left to choose: every logit is masked or minus infinity")]
    NothingLeft,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
    /// Empty unless a repetition penalty needs it.
    prompt_tokens: HashSet<u32>,
    /// How often each token was generated; empty unless a penalty needs it.
    output_counts: HashMap<u32, u32>,
    num_output_tokens: usize,
}

impl Sampler {
    /// A sampler for one request; `entropy` seeds it if the request does not.
    pub fn new(params: SamplingParams, prompt: &[u32], entropy: u64) -> Sampler {
        let repeats = params.repetition_penalty != 1.0;
        Sampler {
            rng: ChaCha8Rng::seed_from_u64(params.seed.unwrap_or(entropy)),
            prompt_tokens: if repeats { prompt.iter().copied().collect() } else { HashSet::new() },
            output_counts: HashMap::new(),
            num_output_tokens: 0,
            params,
        }
    }

    /// Chooses the next token. The row is scratch space afterwards.
    ///
    /// # Errors
    /// [`SampleError`]; the request cannot go on.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<SampledToken, SampleError> {
        let greatest = choose::argmax(logits)?;
        let wanted =
            self.params.logprobs.map(|count| RawLogprobs::read(logits, logits[greatest as usize], count));
        let raw = wanted.is_some().then(|| logits.to_vec());
        let greatest = if self.adjust(logits) { choose::argmax(logits)? } else { greatest };
        let id = self.choose(logits, greatest)?;
        self.num_output_tokens += 1;
        if self.counts_output() {
            *self.output_counts.entry(id).or_default() += 1;
        }
        let logprobs = match (wanted, raw) {
            (Some(wanted), Some(raw)) => Some(wanted.with_chosen(raw[id as usize])),
            _ => None,
        };
        Ok(SampledToken { id, logprobs })
    }

    /// How many of its row's best candidates the next choice needs, if it needs no more of the row and no more than
    /// `most`, which are fewer than the row has.
    pub fn num_candidates(&self, most: usize) -> Option<usize> {
        if self.params.logprobs.is_some() || self.adjusts() {
            return None;
        }
        let needed = if self.is_greedy() { Some(1) } else { self.params.top_k };
        needed.filter(|needed| (1..=most).contains(needed))
    }

    /// Chooses the next token from the candidates it asked for, in the order of [`Candidate`]s of a device.
    ///
    /// # Errors
    /// [`SampleError`]; the request cannot go on.
    pub fn sample_picked(&mut self, picked: &[Candidate]) -> Result<SampledToken, SampleError> {
        let best = picked.first().ok_or(SampleError::NothingLeft)?;
        if best.logit.is_nan() || best.logit == f32::INFINITY {
            return Err(SampleError::NotFinite);
        }
        if best.logit == f32::NEG_INFINITY {
            return Err(SampleError::NothingLeft);
        }
        let id = match self.is_greedy() {
            true => best.id,
            false => choose::sample_picked(picked, best.logit, &self.params, self.rng.random()),
        };
        self.num_output_tokens += 1;
        Ok(SampledToken { id, logprobs: None })
    }

    fn is_greedy(&self) -> bool {
        self.params.temperature < GREEDY_TEMPERATURE
    }

    fn counts_output(&self) -> bool {
        let params = &self.params;
        params.repetition_penalty != 1.0 || params.frequency_penalty != 0.0 || params.presence_penalty != 0.0
    }

    fn masks(&self) -> bool {
        self.num_output_tokens < self.params.min_tokens
    }

    /// Whether mask, bias or penalties apply to the next choice.
    fn adjusts(&self) -> bool {
        self.masks() || !self.params.logit_bias.is_empty() || self.counts_output()
    }

    /// Mask, bias and penalties; whether any of them applied.
    fn adjust(&self, logits: &mut [f32]) -> bool {
        let params = &self.params;
        if self.masks() {
            for id in &params.stop_token_ids {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        for (id, bias) in &params.logit_bias {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        if params.repetition_penalty != 1.0 {
            let generated = self.output_counts.keys().filter(|id| !self.prompt_tokens.contains(id));
            for id in self.prompt_tokens.iter().chain(generated) {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    let penalty = params.repetition_penalty;
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
        }
        for (id, count) in &self.output_counts {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit -= params.frequency_penalty * *count as f32;
                *logit -= params.presence_penalty;
            }
        }
        self.adjusts()
    }

    /// Chooses from adjusted logits, of which `greatest` is the greatest.
    fn choose(&mut self, logits: &mut [f32], greatest: u32) -> Result<u32, SampleError> {
        let max = logits[greatest as usize];
        if max == f32::NEG_INFINITY {
            return Err(SampleError::NothingLeft);
        }
        if self.is_greedy() {
            return Ok(greatest);
        }
        let uniform: f64 = self.rng.random();
        Ok(choose::sample(logits, max, &self.params, uniform))
    }
}
