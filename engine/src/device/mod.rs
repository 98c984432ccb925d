//! A device runs a [`Program`] on a batch of tokens.
//!
//! It owns the weights in its own layout, the paged KV cache and the activations, all allocated when it is
//! opened. It knows tokens, positions, slots and block tables; it knows no request, no queue and no
//! sampling. At most it picks a row's best candidates, if the logits would have a long way. [`cpu`] runs the ops in
//! Rust, [`wgpu`] as WGSL dispatches.
//!
//! Invariant: what a row computes depends only on its own sequence, never on what else is in the batch,
//! so a text does not change with its company.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use limpid_telemetry::observation::{OpDetail, Phase};

use crate::program::{BatchShape, Program, WeightId};

#[cfg(test)]
mod agreement_tests;
pub mod batch_check;
pub mod cpu;
mod turns;
pub mod wgpu;

/// The tokens of one step, from any number of sequences. Rows of one sequence are adjacent and in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids, one per row.
    pub tokens: Vec<u32>,
    /// Position of each row's token in its sequence.
    pub positions: Vec<u32>,
    /// Where each row's key and value go: `block · block_size + position % block_size`. All rows' slots in the
    /// cache's first group of layers, then all rows' slots in the second, and so on.
    pub slots: Vec<u32>,
    /// The sequences, in row order.
    pub sequences: Vec<BatchSequence>,
    /// Block numbers of all sequences, one run after the other. A run has the tables of all groups of layers, each
    /// as long as the context needs. Position p of a sequence is in its block number `p / block_size`; where a
    /// window has passed the number means nothing.
    pub block_tables: Vec<u32>,
    /// Rows whose logits are wanted, rising.
    pub logits_rows: Vec<u32>,
    /// For each of them how many of its best candidates are enough, at most [`Device::max_candidates`]; 0 where the
    /// whole row is wanted. Empty if all are wanted whole.
    pub candidates: Vec<u32>,
}

/// One sequence's share of a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSequence {
    /// First row.
    pub first_row: u32,
    /// Rows.
    pub num_rows: u32,
    /// Tokens in the cache once these rows are stored: the last row's position + 1.
    pub context_len: u32,
    /// Start of its run in `block_tables`.
    pub block_table_start: u32,
}

impl BatchSequence {
    /// Entries of its run for one group of layers.
    pub fn num_blocks(&self, block_size: usize) -> usize {
        (self.context_len as usize).div_ceil(block_size)
    }

    /// Where its table for a group of layers begins in `block_tables`.
    pub fn table_start(&self, group: usize, block_size: usize) -> usize {
        self.block_table_start as usize + group * self.num_blocks(block_size)
    }
}

impl Batch {
    /// Empties the batch, keeping its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.sequences.clear();
        self.block_tables.clear();
        self.logits_rows.clear();
        self.candidates.clear();
    }

    /// How many candidates the wanted row number `index` is asked for; 0 if it is wanted whole.
    pub fn num_candidates(&self, index: usize) -> usize {
        self.candidates.get(index).map_or(0, |count| *count as usize)
    }

    /// Wanted rows that are wanted whole.
    pub fn num_whole_rows(&self) -> usize {
        self.logits_rows.len() - self.candidates.iter().filter(|count| **count > 0).count()
    }

    /// What the ops' costs depend on, for a program with this window.
    pub fn shape(&self, window: Option<usize>) -> BatchShape {
        let window = window.map_or(u64::MAX, |window| window as u64);
        let attended = |window: u64| self.positions.iter().map(|p| (u64::from(*p) + 1).min(window)).sum();
        let context = |window: u64| {
            let of = |sequence: &BatchSequence| {
                let seen = (window - 1).saturating_add(sequence.num_rows.into());
                u64::from(sequence.context_len).min(seen)
            };
            self.sequences.iter().map(of).sum()
        };
        BatchShape {
            tokens: self.tokens.len() as u64,
            logits_rows: self.logits_rows.len() as u64,
            attended: attended(u64::MAX),
            context: context(u64::MAX),
            window_attended: attended(window),
            window_context: context(window),
        }
    }
}

/// A token that may come next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

/// Sizes a device is opened with. Nothing grows afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// KV blocks in the pool; block numbers are below it.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Most rows in one batch.
    pub max_tokens: usize,
    /// Most sequences, and most logits rows, in one batch.
    pub max_sequences: usize,
    /// Most blocks one sequence can have.
    pub max_blocks_per_sequence: usize,
}

/// Where the stored bytes of a program's weights come from.
pub trait WeightSource: Sync {
    /// `rows · row_bytes` bytes in the weight's format. A device keeps its own copy, so bytes that have to be made
    /// are made when they are asked for and need not be remembered.
    fn weight(&self, id: WeightId) -> Cow<'_, [u8]>;
}

/// Which device to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A hardware adapter if there is one, else the CPU.
    #[default]
    Auto,
    /// Any wgpu adapter, software ones included.
    Wgpu,
    /// The CPU.
    Cpu,
}

/// What a device is, for the log, `/version`, the info metric and the resource attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `wgpu` or `cpu`.
    pub kind: &'static str,
    /// Name as the driver or the operating system gives it.
    pub name: String,
    /// `DiscreteGpu`, `IntegratedGpu`, `VirtualGpu`, `Cpu` or `Other`.
    pub device_type: String,
    /// `vulkan`, `metal`, `dx12`, or `rust` for the CPU device.
    pub backend: String,
    /// Driver name and version; empty if there is none.
    pub driver: String,
}

/// Memory that a device offers, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceMemory {
    /// The device's own: nobody else needs it.
    Own(u64),
    /// The host's, which other programs need too.
    Shared(u64),
    /// The host's, and what is asked for is filled with zeros at once by its cores: it takes time and memory even if
    /// it is never used.
    SharedAndFilled(u64),
    /// It cannot be known.
    Unknown,
}

/// Who else uses what an adapter gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Engines that compute on the device, this one included.
    pub engines: usize,
    /// Whether the weights are in its memory once, for all of them.
    pub weights: bool,
}

impl Sharing {
    /// The device is one engine's.
    pub const NONE: Sharing = Sharing { engines: 1, weights: false };
}

/// An adapter found and chosen, before memory is committed. It is for one engine and one model.
pub trait Adapter: Send {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// What the models, activations and caches of all engines on the device may use together.
    fn memory(&self) -> DeviceMemory;

    /// Who else has to get along with that memory.
    fn sharing(&self) -> Sharing;

    /// Uploads the weights, allocates the cache and the activations, builds every pipeline. It can be called again
    /// when the device is gone.
    ///
    /// # Errors
    /// The device refuses something, or is there no more.
    fn open(
        &self,
        program: &Program,
        weights: &dyn WeightSource,
        limits: DeviceLimits,
    ) -> Result<Box<dyn Device>, DeviceError>;
}

/// Opens the same device for the same model as often as it is asked to.
pub trait DeviceSource: Send {
    /// Uploads the weights and allocates everything anew.
    ///
    /// # Errors
    /// As [`Adapter::open`].
    fn open(&mut self) -> Result<Box<dyn Device>, DeviceError>;

    /// Gives up what of the weights is in the host's memory; they are read again when they are needed.
    fn discard(&mut self);
}

/// A device ready to compute.
pub trait Device: Send {
    /// What it is.
    fn info(&self) -> &DeviceInfo;

    /// Runs the program on a batch and writes the rows of logits that are wanted whole, one after the other, to
    /// `logits` (cleared first). Blocks until they, and the candidates of the other wanted rows, are on the host.
    ///
    /// # Errors
    /// After [`DeviceError::Lost`] the device is of no more use.
    fn execute(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError>;

    /// Like [`Device::execute`], with the same results, and tells in `detail` what it spent its time on. It may
    /// take longer. A device that cannot tell leaves `detail` as it is.
    ///
    /// # Errors
    /// As [`Device::execute`].
    fn execute_detailed(
        &mut self,
        batch: &Batch,
        logits: &mut Vec<f32>,
        _detail: &mut ExecuteDetail,
    ) -> Result<ExecuteTimes, DeviceError> {
        self.execute(batch, logits)
    }

    /// Most candidates that it picks of a row, fewer than the row has; 0 if its logits are in the host's memory
    /// anyway, so that whole rows cost nothing.
    fn max_candidates(&self) -> usize {
        0
    }

    /// What the last execution picked: of each row that was asked for candidates, one row after the other, as many as
    /// it was asked for. NaN comes before any number, then the greatest logit comes first, among equals the lower id.
    fn candidates(&self) -> &[Candidate] {
        &[]
    }

    /// Measures what it can do at most, with programs of its own; takes a second or two.
    ///
    /// # Errors
    /// The device fails, or there is nothing to be measured.
    fn peak(&mut self) -> Result<Peak, DeviceError> {
        Err(DeviceError::Failed("its peak cannot be measured".to_owned()))
    }

    /// What opening it consisted of.
    fn opening(&self) -> &[Phase] {
        &[]
    }
}

/// What a device can do at most, as it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Bytes read in order from memory by all of it.
    pub bytes_per_second: f64,
    /// `f32` multiplications and additions.
    pub flops_per_second: f64,
}

/// The inside of one execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecuteDetail {
    /// When the forward pass began and ended; everything before is upload, everything after, picking candidates
    /// among it, read-back.
    pub forward: Option<(Instant, Instant)>,
    /// The ops that ran, in order.
    pub ops: Vec<OpDetail>,
}

impl ExecuteDetail {
    /// Adds ops of the program that ran as one, from `started` on. Several have a name of all: `layer.3.gate+up`.
    fn push(
        &mut self,
        program: &Program,
        ops: Range<usize>,
        shape: BatchShape,
        started: Instant,
        duration: Duration,
    ) {
        let ops = &program.ops[ops];
        let mut name = ops[0].name.clone();
        let mut cost = program.cost(&ops[0], shape);
        for op in &ops[1..] {
            let (_, own) = op.name.rsplit_once('.').unwrap_or(("", &op.name));
            name = format!("{name}+{own}");
            cost += program.cost(op, shape);
        }
        self.ops.push(OpDetail {
            name,
            started,
            duration,
            flops: cost.flops,
            bytes_read: cost.bytes_read,
            bytes_written: cost.bytes_written,
        });
    }
}

/// What one execution measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecuteTimes {
    /// First op to last op, by the device's own clock (timestamp queries on wgpu, a monotonic clock around
    /// the ops on the CPU); `None` where the device has no timestamps.
    pub forward: Option<Duration>,
}

/// Why a device could not be opened or could not compute.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No adapter matches the choice.
    #[error("no {wanted} found; tried: {tried}. {advice}")]
    NoAdapter {
        /// What was asked for.
        wanted: &'static str,
        /// What was looked at, and why each was not taken.
        tried: String,
        /// What to do.
        advice: &'static str,
    },
    /// Something needs more than the device allows.
    #[error("{what} needs {needed} {unit}, the device allows {allowed}")]
    Limit {
        /// What was to be allocated or dispatched.
        what: String,
        /// How much it takes.
        needed: u64,
        /// How much there is.
        allowed: u64,
        /// `bytes`, `workgroups` …
        unit: &'static str,
    },
    /// The device went away or refused to go on.
    #[error("the device was lost: {0}")]
    Lost(String),
    /// The driver or the shader compiler refused something.
    #[error("the device failed: {0}")]
    Failed(String),
}

/// Finds the adapters for a choice, one for each of `engines` engines, of which there is at least one. Equal GPUs
/// are taken in turn; engines on one device divide its memory, and on the CPU its threads, and share the weights
/// there. `require_gpu` refuses software adapters and the CPU device. Drivers' compiled pipelines are kept in the
/// directory `pipelines`, so that the next start is faster; it need not exist, nor be possible.
///
/// # Errors
/// [`DeviceError::NoAdapter`] with what was tried.
pub fn find_adapters(
    choice: DeviceChoice,
    require_gpu: bool,
    engines: usize,
    pipelines: Option<&Path>,
) -> Result<Vec<Box<dyn Adapter>>, DeviceError> {
    match choice {
        DeviceChoice::Cpu if require_gpu => Err(DeviceError::NoAdapter {
            wanted: "GPU",
            tried: "nothing, because --device is cpu".to_owned(),
            advice: "drop --require-gpu, or use --device auto or wgpu",
        }),
        DeviceChoice::Cpu => Ok(cpu::adapters(engines)),
        DeviceChoice::Wgpu => wgpu::find(require_gpu, engines, pipelines),
        DeviceChoice::Auto => match wgpu::find(true, engines, pipelines) {
            Ok(adapters) => Ok(adapters),
            Err(error) if require_gpu => Err(error),
            Err(error) => {
                tracing::info!("using the CPU device: {error}");
                Ok(cpu::adapters(engines))
            }
        },
    }
}

/// What engine number `index` gets of a `total` that `engines` engines divide: nothing is left over, and nobody
/// is left without.
fn share_of(total: usize, index: usize, engines: usize) -> usize {
    (total / engines + usize::from(index < total % engines)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_whole_and_are_never_nothing() {
        let shares = |total, engines| -> Vec<usize> {
            (0..engines).map(|index| share_of(total, index, engines)).collect()
        };
        assert_eq!(shares(8, 1), [8]);
        assert_eq!(shares(8, 3), [3, 3, 2]);
        assert_eq!(shares(1, 3), [1, 1, 1]);
    }
}
