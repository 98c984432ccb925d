//! Prefill and decode rates of one request or of a batch of equal length, measured straight on a device: no
//! scheduler, no sampling but greedy, no HTTP.
//!
//! Prefill computes the prompts one after the other, in chunks as the server's default does; decode continues all of
//! them together, token by token.
//! Both can be repeated at will, because they overwrite the same cache slots. Works with any [`Device`].

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use limpid_engine::device::{Batch, BatchSequence, Device, DeviceError, DeviceLimits, ExecuteDetail};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::kernels::{self, StepKernels};
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
    /// Requests, at least 1.
    pub(super) batch: usize,
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
        let blocks = self.blocks();
        DeviceLimits {
            // Block 0 is the null block.
            num_blocks: self.cache_groups * self.batch * blocks + 1,
            block_size: BLOCK_SIZE,
            max_tokens: self.prompt_tokens.min(MAX_CHUNK).max(self.batch),
            max_sequences: self.batch,
            max_blocks_per_sequence: blocks,
        }
    }

    /// The prompts: random tokens, the same for the same seed.
    pub(super) fn prompts(&self, vocabulary: usize) -> Vec<Vec<u32>> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let end = u32::try_from(vocabulary).expect("token ids are u32");
        let mut prompt = || (0..self.prompt_tokens).map(|_| random.random_range(0..end)).collect();
        (0..self.batch).map(|_| prompt()).collect()
    }

    /// Blocks of a request.
    fn blocks(&self) -> usize {
        (self.prompt_tokens + self.output_tokens).div_ceil(BLOCK_SIZE)
    }

    fn passes(&self) -> usize {
        self.warmup + self.repetitions
    }

    /// Steps of the progress bar for one phase.
    pub(super) fn progress_steps(&self, phase: Phase) -> u64 {
        let chunks = self.batch * self.prompt_tokens.div_ceil(MAX_CHUNK);
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
    /// Tokens of one pass, of all requests together.
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
        Phase::Prefill => workload.batch * workload.prompt_tokens,
        Phase::Decode => {
            // Fills the cache that every decode pass starts from.
            runner.prefill()?;
            workload.batch * workload.output_tokens
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
pub(super) struct Pass {
    wall: Duration,
    /// `None` as soon as one step had no time.
    forward: Option<Duration>,
}

impl Pass {
    fn seconds(&self) -> f64 {
        self.wall.max(Duration::from_nanos(1)).as_secs_f64()
    }
}

/// Runs the requests on the device.
pub(super) struct Runner<'a> {
    device: &'a mut dyn Device,
    vocabulary: usize,
    prompts: Vec<Vec<u32>>,
    /// Blocks of a request in each group of layers.
    blocks: usize,
    progress: &'a ProgressBar,
    cache_groups: usize,
    batch: Batch,
    logits: Vec<f32>,
    /// The greedy tokens after the prompts, from the last prefill.
    first_outputs: Vec<u32>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        device: &'a mut dyn Device,
        vocabulary: usize,
        workload: &Workload,
        progress: &'a ProgressBar,
    ) -> Runner<'a> {
        let prompts = workload.prompts(vocabulary);
        let (batch, logits, first_outputs) = (Batch::default(), Vec::new(), Vec::new());
        let blocks = workload.blocks();
        let cache_groups = workload.cache_groups;
        Runner { device, vocabulary, prompts, blocks, cache_groups, progress, batch, logits, first_outputs }
    }

    /// Computes the prompts, one after the other.
    pub(super) fn prefill(&mut self) -> Result<Pass, DeviceError> {
        let started = Instant::now();
        let mut forward = Some(Duration::ZERO);
        self.first_outputs.clear();
        for request in 0..self.prompts.len() {
            let length = self.prompts[request].len();
            for first in (0..length).step_by(MAX_CHUNK) {
                let end = length.min(first + MAX_CHUNK);
                self.batch.clear();
                let tokens = &self.prompts[request][first..end];
                add(&mut self.batch, request, self.cache_groups, self.blocks, tokens, first, end == length);
                forward = sum(forward, self.step()?);
            }
            self.first_outputs.extend(self.greedy()?);
        }
        Ok(Pass { wall: started.elapsed(), forward })
    }

    fn decode(&mut self, count: usize) -> Result<Pass, DeviceError> {
        let started = Instant::now();
        let mut forward = Some(Duration::ZERO);
        let mut tokens = self.first_outputs.clone();
        let length = self.prompts[0].len();
        for position in length..length + count {
            self.batch.clear();
            for (request, token) in tokens.iter().enumerate() {
                add(&mut self.batch, request, self.cache_groups, self.blocks, &[*token], position, true);
            }
            forward = sum(forward, self.step()?);
            tokens = self.greedy()?;
        }
        Ok(Pass { wall: started.elapsed(), forward })
    }

    /// Looks into steps that decode the first `requests` requests, each the first token after its prompt.
    pub(super) fn look_into(
        &mut self,
        requests: usize,
        repetitions: usize,
        what: &str,
    ) -> Result<StepKernels, DeviceError> {
        self.batch.clear();
        for request in 0..requests {
            let (token, position) = (self.first_outputs[request], self.prompts[request].len());
            add(&mut self.batch, request, self.cache_groups, self.blocks, &[token], position, true);
        }
        let context = self.prompts[0].len() + 1;
        self.look(format!("{what} of {requests}, {context} tokens of context"), repetitions)
    }

    /// Looks into steps that compute the beginning of the first prompt.
    pub(super) fn look_into_prefill(&mut self, repetitions: usize) -> Result<StepKernels, DeviceError> {
        let count = self.prompts[0].len().min(MAX_CHUNK);
        self.batch.clear();
        add(&mut self.batch, 0, self.cache_groups, self.blocks, &self.prompts[0][..count], 0, true);
        self.look(format!("prefill of {count}"), repetitions)
    }

    /// Looks into steps with the present batch.
    fn look(&mut self, step: String, repetitions: usize) -> Result<StepKernels, DeviceError> {
        self.complete_batch();
        let mut details = Vec::with_capacity(repetitions);
        for _ in 0..repetitions {
            let mut detail = ExecuteDetail::default();
            self.device.execute_detailed(&self.batch, &mut self.logits, &mut detail)?;
            self.progress.inc(1);
            details.push(detail);
        }
        kernels::sum_up(step, &details)
    }

    /// Computes the batch.
    fn step(&mut self) -> Result<Option<Duration>, DeviceError> {
        self.complete_batch();
        let times = self.device.execute(&self.batch, &mut self.logits)?;
        self.progress.inc(1);
        Ok(times.forward)
    }

    /// Fills in what depends on the batch as a whole. Like an engine's greedy requests it asks for no whole row of a
    /// device that picks candidates.
    fn complete_batch(&mut self) {
        fill_slots(&mut self.batch, self.cache_groups);
        if self.device.max_candidates() > 0 {
            self.batch.candidates.resize(self.batch.logits_rows.len(), 1);
        }
    }

    /// The most likely token of each row of logits.
    fn greedy(&self) -> Result<Vec<u32>, DeviceError> {
        if !self.batch.candidates.is_empty() {
            return Ok(self.device.candidates().iter().map(|candidate| candidate.id).collect());
        }
        let (found, wanted) = (self.logits.len(), self.batch.logits_rows.len() * self.vocabulary);
        if found != wanted {
            return Err(DeviceError::Failed(format!("it returned {found} logits instead of {wanted}")));
        }
        let best =
            |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(token, _)| token);
        Ok(self.logits.chunks_exact(self.vocabulary).map(|row| best(row).unwrap_or(0) as u32).collect())
    }
}

/// Adds tokens of a request from position `first` on, but for their slots. Requests have their blocks one after the
/// other, from 1 on, and so have the groups of layers of a request.
fn add(
    batch: &mut Batch,
    request: usize,
    groups: usize,
    blocks: usize,
    tokens: &[u32],
    first: usize,
    wants_logits: bool,
) {
    let end = first + tokens.len();
    batch.sequences.push(BatchSequence {
        first_row: batch.tokens.len() as u32,
        num_rows: tokens.len() as u32,
        context_len: end as u32,
        block_table_start: batch.block_tables.len() as u32,
    });
    batch.tokens.extend_from_slice(tokens);
    batch.positions.extend((first..end).map(|position| position as u32));
    for group in 0..groups {
        let first_block = (1 + (request * groups + group) * blocks) as u32;
        batch.block_tables.extend((first_block..).take(end.div_ceil(BLOCK_SIZE)));
    }
    if wants_logits {
        batch.logits_rows.push(batch.tokens.len() as u32 - 1);
    }
}

/// Puts the rows where the block tables say.
fn fill_slots(batch: &mut Batch, groups: usize) {
    for group in 0..groups {
        for sequence in &batch.sequences {
            let table = &batch.block_tables[sequence.table_start(group, BLOCK_SIZE)..];
            let rows = sequence.first_row as usize..(sequence.first_row + sequence.num_rows) as usize;
            batch.slots.extend(batch.positions[rows].iter().map(|position| {
                let (block, offset) = (*position as usize / BLOCK_SIZE, *position % BLOCK_SIZE as u32);
                table[block] * BLOCK_SIZE as u32 + offset
            }));
        }
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
            assert!(rows <= self.limits.max_tokens && batch.sequences.len() <= self.limits.max_sequences);
            assert_eq!((batch.positions.len(), batch.slots.len()), (rows, rows));
            for sequence in &batch.sequences {
                let of_rows = sequence.first_row as usize..(sequence.first_row + sequence.num_rows) as usize;
                assert_eq!(sequence.context_len, batch.positions[of_rows.end - 1] + 1);
                let blocks = (sequence.context_len as usize).div_ceil(BLOCK_SIZE);
                assert!(blocks <= self.limits.max_blocks_per_sequence);
                let table = &batch.block_tables[sequence.block_table_start as usize..][..blocks];
                let slot = |position: usize| {
                    table[position / BLOCK_SIZE] as usize * BLOCK_SIZE + position % BLOCK_SIZE
                };
                assert!(!table.contains(&0), "the null block");
                for row in of_rows {
                    assert_eq!(batch.slots[row] as usize, slot(batch.positions[row] as usize));
                    self.cache[batch.slots[row] as usize] = Some(batch.tokens[row]);
                }
                let stored =
                    (0..sequence.context_len as usize).all(|position| self.cache[slot(position)].is_some());
                assert!(stored, "attention reads what was stored");
            }
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
        Workload {
            prompt_tokens,
            output_tokens,
            batch: 1,
            warmup: 1,
            repetitions: 2,
            seed: 7,
            cache_groups: 1,
        }
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
    fn requests_of_a_batch_are_prefilled_one_by_one_and_decoded_together() {
        let workload = Workload { batch: 3, ..workload(20, 5) };
        let mut device = FakeDevice::new(&workload);
        let rate = run(&mut device, &workload, Phase::Decode).unwrap();
        assert_eq!(rate.tokens, 15);
        let rows: Vec<usize> = device.batches.iter().map(|batch| batch.sequences.len()).collect();
        assert_eq!(rows, [vec![1; 3], vec![3; 15]].concat());
        let prompts: Vec<_> = device.batches[..3].iter().map(|batch| batch.tokens.clone()).collect();
        assert!(prompts[0] != prompts[1] && prompts[1] != prompts[2]);
        let next = |prompt: &Vec<u32>| (prompt[19] + 1) % VOCABULARY as u32;
        assert_eq!(device.batches[3].tokens, prompts.iter().map(next).collect::<Vec<u32>>());
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
