//! Prefill and decode rates of one request, measured straight on a device: no scheduler, no sampling but
//! greedy, no HTTP.
//!
//! Prefill computes the prompt in chunks as the server's default does; decode continues it token by token.
//! Both can be repeated at will, because they overwrite the same cache slots. Works with any [`Device`].

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use limpid_engine::device::{Batch, BatchSequence, Device, DeviceError, DeviceLimits};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::stats::Summary;

/// Tokens per KV block.
const BLOCK_SIZE: usize = 16;

/// Most prompt tokens in one batch, as `--max-num-batched-tokens` has it by default.
const MAX_CHUNK: usize = 512;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    /// Prompt tokens per second.
    Prefill,
    /// Generated tokens per second.
    Decode,
}

/// Sizes of the request and of the measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    /// Prompt length, at least 1.
    pub(super) prompt_tokens: usize,
    /// Tokens to generate, at least 1.
    pub(super) output_tokens: usize,
    /// Passes before the measured ones.
    pub(super) warmup: usize,
    /// Measured passes, at least 1.
    pub(super) repetitions: usize,
    /// Draws the prompt.
    pub(super) seed: u64,
    /// Groups of the model's layers that have block tables of their own.
    pub(super) cache_groups: usize,
}

impl Workload {
    /// What the device must hold.
    pub(super) fn limits(&self) -> DeviceLimits {
        let blocks = (self.prompt_tokens + self.output_tokens).div_ceil(BLOCK_SIZE);
        DeviceLimits {
            // Block 0 is the null block.
            num_blocks: self.cache_groups * blocks + 1,
            block_size: BLOCK_SIZE,
            max_tokens: self.prompt_tokens.min(MAX_CHUNK),
            max_sequences: 1,
            max_blocks_per_sequence: blocks,
        }
    }

    fn passes(&self) -> usize {
        self.warmup + self.repetitions
    }

    /// Steps of the progress bar for one phase.
    pub(super) fn progress_steps(&self, phase: Phase) -> u64 {
        let chunks = self.prompt_tokens.div_ceil(MAX_CHUNK);
        let steps = match phase {
            Phase::Prefill => self.passes() * chunks,
            Phase::Decode => chunks + self.passes() * self.output_tokens,
        };
        steps as u64
    }
}

/// One phase's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Rate {
    /// What was measured.
    pub(super) phase: Phase,
    /// Tokens of one pass.
    pub(super) tokens: usize,
    /// Tokens per second over the measured passes.
    pub(super) tokens_per_second: Summary,
    /// Median share of a pass that the forward passes took by the device's own clock, if it has one.
    pub(super) forward_share: Option<f64>,
}

/// Measures one phase.
///
/// # Errors
/// What the device reports.
pub(super) fn measure(
    device: &mut dyn Device,
    vocabulary: usize,
    workload: &Workload,
    phase: Phase,
    progress: &ProgressBar,
) -> Result<Rate, DeviceError> {
    let mut runner = Runner::new(device, vocabulary, workload, progress);
    let tokens = match phase {
        Phase::Prefill => workload.prompt_tokens,
        Phase::Decode => {
            // Fills the cache that every decode pass starts from.
            runner.prefill()?;
            workload.output_tokens
        }
    };
    let mut passes = Vec::with_capacity(workload.repetitions);
    for number in 0..workload.passes() {
        let pass = match phase {
            Phase::Prefill => runner.prefill()?,
            Phase::Decode => runner.decode(workload.output_tokens)?,
        };
        if number >= workload.warmup {
            passes.push(pass);
        }
    }
    let rate = |pass: &Pass| tokens as f64 / pass.seconds();
    let share = |pass: &Pass| pass.forward.map(|forward| forward.as_secs_f64() / pass.seconds());
    Ok(Rate {
        phase,
        tokens,
        tokens_per_second: Summary::of(passes.iter().map(rate)).expect("at least one finite rate"),
        forward_share: Summary::of(passes.iter().filter_map(share)).map(|summary| summary.p50),
    })
}

/// What one pass took.
struct Pass {
    wall: Duration,
    /// `None` as soon as one step had no time.
    forward: Option<Duration>,
}

impl Pass {
    fn seconds(&self) -> f64 {
        self.wall.max(Duration::from_nanos(1)).as_secs_f64()
    }
}

struct Runner<'a> {
    device: &'a mut dyn Device,
    vocabulary: usize,
    prompt: Vec<u32>,
    progress: &'a ProgressBar,
    cache_groups: usize,
    /// Blocks of the sequence at its full length, in each group.
    blocks: usize,
    batch: Batch,
    logits: Vec<f32>,
    /// The greedy token after the prompt, from the last prefill.
    first_output: u32,
}

impl<'a> Runner<'a> {
    fn new(
        device: &'a mut dyn Device,
        vocabulary: usize,
        workload: &Workload,
        progress: &'a ProgressBar,
    ) -> Runner<'a> {
        let mut random = ChaCha8Rng::seed_from_u64(workload.seed);
        let vocabulary_end = u32::try_from(vocabulary).expect("token ids are u32");
        let prompt = (0..workload.prompt_tokens).map(|_| random.random_range(0..vocabulary_end)).collect();
        let (batch, logits) = (Batch::default(), Vec::new());
        let blocks = workload.limits().max_blocks_per_sequence;
        let cache_groups = workload.cache_groups;
        Runner { device, vocabulary, prompt, progress, cache_groups, blocks, batch, logits, first_output: 0 }
    }

    fn prefill(&mut self) -> Result<Pass, DeviceError> {
        let started = Instant::now();
        let mut forward = Some(Duration::ZERO);
        let length = self.prompt.len();
        for first in (0..length).step_by(MAX_CHUNK) {
            let end = length.min(first + MAX_CHUNK);
            let tokens = self.prompt[first..end].to_vec();
            forward = sum(forward, self.step(&tokens, first, end == length)?);
        }
        self.first_output = self.greedy()?;
        Ok(Pass { wall: started.elapsed(), forward })
    }

    fn decode(&mut self, count: usize) -> Result<Pass, DeviceError> {
        let started = Instant::now();
        let mut forward = Some(Duration::ZERO);
        let mut token = self.first_output;
        for position in self.prompt.len()..self.prompt.len() + count {
            forward = sum(forward, self.step(&[token], position, true)?);
            token = self.greedy()?;
        }
        Ok(Pass { wall: started.elapsed(), forward })
    }

    /// Computes `tokens` from position `first` on.
    fn step(
        &mut self,
        tokens: &[u32],
        first: usize,
        wants_logits: bool,
    ) -> Result<Option<Duration>, DeviceError> {
        let end = first + tokens.len();
        let batch = &mut self.batch;
        batch.clear();
        batch.tokens.extend_from_slice(tokens);
        batch.positions.extend((first..end).map(|position| position as u32));
        // The sequence has the blocks from 1 on, in order, one group after the other.
        for group in 0..self.cache_groups {
            let block = 1 + group * self.blocks;
            batch.slots.extend((first..end).map(|position| (block * BLOCK_SIZE + position) as u32));
            batch.block_tables.extend((block..block + end.div_ceil(BLOCK_SIZE)).map(|block| block as u32));
        }
        batch.sequences.push(BatchSequence {
            first_row: 0,
            num_rows: tokens.len() as u32,
            context_len: end as u32,
            block_table_start: 0,
        });
        if wants_logits {
            batch.logits_rows.push(tokens.len() as u32 - 1);
        }
        let times = self.device.execute(batch, &mut self.logits)?;
        self.progress.inc(1);
        Ok(times.forward)
    }

    fn greedy(&self) -> Result<u32, DeviceError> {
        if self.logits.len() != self.vocabulary {
            let (found, wanted) = (self.logits.len(), self.vocabulary);
            return Err(DeviceError::Failed(format!("it returned {found} logits instead of {wanted}")));
        }
        let best = self.logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        Ok(best.map_or(0, |(token, _)| token as u32))
    }
}

fn sum(total: Option<Duration>, step: Option<Duration>) -> Option<Duration> {
    Some(total? + step?)
}

#[cfg(test)]
mod tests {
    use limpid_engine::device::{DeviceInfo, ExecuteTimes};

    use super::*;

    const VOCABULARY: usize = 100;

    /// Remembers what it was given, checks it against its limits, and says that token + 1 comes next.
    struct FakeDevice {
        info: DeviceInfo,
        limits: DeviceLimits,
        forward: Option<Duration>,
        /// Token of each cache slot.
        cache: Vec<Option<u32>>,
        batches: Vec<Batch>,
        fails_at: Option<usize>,
    }

    impl FakeDevice {
        fn new(workload: &Workload) -> FakeDevice {
            let limits = workload.limits();
            FakeDevice {
                info: DeviceInfo {
                    kind: "fake",
                    name: String::new(),
                    device_type: String::new(),
                    backend: String::new(),
                    driver: String::new(),
                },
                limits,
                forward: Some(Duration::ZERO),
                cache: vec![None; limits.num_blocks * limits.block_size],
                batches: Vec::new(),
                fails_at: None,
            }
        }
    }

    impl Device for FakeDevice {
        fn info(&self) -> &DeviceInfo {
            &self.info
        }

        fn execute(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> {
            if self.fails_at == Some(self.batches.len()) {
                return Err(DeviceError::Lost("unplugged".to_owned()));
            }
            let rows = batch.tokens.len();
            let [sequence] = batch.sequences[..] else { panic!("one sequence") };
            assert!(rows <= self.limits.max_tokens);
            assert!(batch.block_tables.len() <= self.limits.max_blocks_per_sequence);
            assert_eq!((batch.positions.len(), batch.slots.len()), (rows, rows));
            assert_eq!(sequence.context_len, batch.positions[rows - 1] + 1);
            for ((token, position), slot) in batch.tokens.iter().zip(&batch.positions).zip(&batch.slots) {
                let block = batch.block_tables[*position as usize / BLOCK_SIZE];
                assert_ne!(block, 0, "the null block");
                assert_eq!(*slot, block * BLOCK_SIZE as u32 + position % BLOCK_SIZE as u32);
                self.cache[*slot as usize] = Some(*token);
            }
            let context = BLOCK_SIZE..BLOCK_SIZE + sequence.context_len as usize;
            assert!(self.cache[context].iter().all(Option::is_some), "attention reads what was stored");
            logits.clear();
            for row in &batch.logits_rows {
                let next = (batch.tokens[*row as usize] as usize + 1) % VOCABULARY;
                logits.extend((0..VOCABULARY).map(|token| if token == next { 1.0 } else { 0.0 }));
            }
            self.batches.push(batch.clone());
            Ok(ExecuteTimes { forward: self.forward })
        }
    }

    fn workload(prompt_tokens: usize, output_tokens: usize) -> Workload {
        Workload { prompt_tokens, output_tokens, warmup: 1, repetitions: 2, seed: 7, cache_groups: 1 }
    }

    fn run(device: &mut FakeDevice, workload: &Workload, phase: Phase) -> Result<Rate, DeviceError> {
        let progress = ProgressBar::hidden();
        let result = measure(device, VOCABULARY, workload, phase, &progress);
        if result.is_ok() {
            assert_eq!(progress.position(), workload.progress_steps(phase));
        }
        result
    }

    #[test]
    fn prefill_computes_each_prompt_token_once_a_pass_and_wants_the_last_rows_logits_only() {
        let workload = workload(MAX_CHUNK + 5, 1);
        let mut device = FakeDevice::new(&workload);
        let rate = run(&mut device, &workload, Phase::Prefill).unwrap();
        assert_eq!((rate.tokens, rate.tokens_per_second.count), (MAX_CHUNK + 5, 2));
        let shapes: Vec<_> =
            device.batches.iter().map(|batch| (batch.tokens.len(), batch.logits_rows.clone())).collect();
        let pass = [(MAX_CHUNK, vec![]), (5, vec![4])];
        assert_eq!(shapes, [pass.clone(), pass.clone(), pass].concat());
    }

    #[test]
    fn decode_feeds_each_token_back_and_every_pass_starts_after_the_prompt() {
        let workload = workload(20, 30);
        let mut device = FakeDevice::new(&workload);
        let rate = run(&mut device, &workload, Phase::Decode).unwrap();
        assert_eq!((rate.tokens, rate.tokens_per_second.count), (30, 2));
        let last_of_prompt = device.batches[0].tokens[19];
        let expected: Vec<(u32, u32)> =
            (0..30).map(|step| (20 + step, (last_of_prompt + 1 + step) % VOCABULARY as u32)).collect();
        for pass in device.batches[1..].chunks(30) {
            let seen: Vec<_> = pass.iter().map(|batch| (batch.positions[0], batch.tokens[0])).collect();
            assert_eq!(seen, expected);
        }
        assert_eq!(device.batches.len(), 1 + 3 * 30);
    }

    #[test]
    fn equal_seeds_give_equal_prompts() {
        let prompt = |seed| {
            let workload = Workload { seed, ..workload(64, 1) };
            let mut device = FakeDevice::new(&workload);
            run(&mut device, &workload, Phase::Prefill).unwrap();
            device.batches[0].tokens.clone()
        };
        assert_eq!(prompt(1), prompt(1));
        assert_ne!(prompt(1), prompt(2));
    }

    #[test]
    fn a_device_without_a_clock_has_no_forward_share() {
        let workload = workload(3, 3);
        let mut device = FakeDevice::new(&workload);
        assert!(run(&mut device, &workload, Phase::Decode).unwrap().forward_share.is_some());
        device.forward = None;
        assert_eq!(run(&mut device, &workload, Phase::Decode).unwrap().forward_share, None);
    }

    #[test]
    fn a_lost_device_ends_the_measurement() {
        let workload = workload(3, 3);
        let mut device = FakeDevice::new(&workload);
        device.fails_at = Some(2);
        assert!(matches!(run(&mut device, &workload, Phase::Decode), Err(DeviceError::Lost(_))));
    }
}
