//! The CPU device: the ops in Rust, on all cores.
//!
//! Weights stay quantised and are expanded in registers or in a tile of the first-level cache ([`packed`],
//! [`matmul`]); activations are `f32` throughout, so results are those of the references up to the order of
//! additions. All threads run the whole program together, stage after stage of independent ops ([`plan`],
//! [`step`], [`team`]). Kernels are compiled for several vector instruction sets and the best the
//! CPU has is used ([`simd`]).
//!
//! Invariant: every sum has an order that depends on its own row alone, so a row's logits are the same to the
//! bit whatever else is in the batch, and whatever the number of threads.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use limpid_telemetry::observation::Phase;

use self::attention::{KvCache, TILE_ROWS, Tile};
use self::packed::PackedWeight;
use self::plan::{Pass, Stage};
use self::shared::SharedBuffer;
use self::simd::SimdLevel;
use self::step::{Scratch, Step};
use self::team::Team;
use super::batch_check::check_batch;
use super::{
    Adapter, Batch, Device, DeviceError, DeviceInfo, DeviceLimits, DeviceMemory, ExecuteDetail, ExecuteTimes,
    Peak, Sharing, WeightSource, share_of,
};
use crate::cache_layout::CacheLayout;
use crate::kernels::rope::reference::frequencies;
use crate::program::{OpKind, Program, Rotation, Rows, WeightId};

mod attention;
mod formats;
pub(super) mod machine;
mod matmul;
mod packed;
mod peak;
mod plan;
#[cfg(test)]
mod rate_tests;
mod rows;
mod shared;
mod simd;
mod step;
mod team;
#[cfg(test)]
mod tests;

/// The CPU as an adapter.
pub struct CpuAdapter {
    info: DeviceInfo,
    level: SimdLevel,
    threads: usize,
    engines: usize,
    weights: SharedWeights,
}

/// The weights of one model, if a device of those that share them is open.
type SharedWeights = Arc<Mutex<Weak<Weights>>>;

/// The CPU for each of `engines` engines, with a share of its threads. They are for one model.
pub(super) fn adapters(engines: usize) -> Vec<Box<dyn Adapter>> {
    let weights = SharedWeights::default();
    let threads = available_threads();
    let adapter = |index| -> Box<dyn Adapter> {
        let own = CpuAdapter::at(SimdLevel::best(), share_of(threads, index, engines));
        Box::new(CpuAdapter { engines, weights: Arc::clone(&weights), ..own })
    };
    (0..engines).map(adapter).collect()
}

fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl CpuAdapter {
    /// Never fails: there is always a CPU.
    #[allow(clippy::new_without_default)]
    pub fn new() -> CpuAdapter {
        CpuAdapter::at(SimdLevel::best(), available_threads())
    }

    fn at(level: SimdLevel, threads: usize) -> CpuAdapter {
        let info = DeviceInfo {
            kind: "cpu",
            name: machine::cpu_name(),
            device_type: "Cpu".to_owned(),
            backend: "rust".to_owned(),
            driver: level.name().to_owned(),
        };
        CpuAdapter { info, level, threads, engines: 1, weights: SharedWeights::default() }
    }

    /// The weights that another device has already, or packed now.
    fn weights(&self, program: &Program, source: &dyn WeightSource) -> Result<Arc<Weights>, DeviceError> {
        // Whoever comes meanwhile waits and shares.
        let mut shared = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(weights) = shared.upgrade() {
            return Ok(weights);
        }
        let weights = Arc::new(Weights::new(program, source, self.threads)?);
        *shared = Arc::downgrade(&weights);
        Ok(weights)
    }
}

impl Adapter for CpuAdapter {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn memory(&self) -> DeviceMemory {
        machine::available_memory().map_or(DeviceMemory::Unknown, DeviceMemory::Shared)
    }

    fn sharing(&self) -> Sharing {
        Sharing { engines: self.engines, weights: true }
    }

    fn open(
        &self,
        program: &Program,
        weights: &dyn WeightSource,
        limits: DeviceLimits,
    ) -> Result<Box<dyn Device>, DeviceError> {
        Ok(Box::new(CpuDevice::open(self, program, weights, limits)?))
    }
}

/// A program with its weights and memory on the CPU.
struct CpuDevice {
    opening: [Phase; 1],
    info: DeviceInfo,
    limits: DeviceLimits,
    team: Team,
    /// One for each thread.
    scratch: Vec<Scratch>,
    /// The present batch's attention tiles; room for `max_tokens`.
    tiles: Vec<Tile>,
    memory: Memory,
}

/// What the threads of a step read, and the buffers they share.
struct Memory {
    program: Program,
    level: SimdLevel,
    stages: Vec<Stage>,
    /// For steps whose ops are timed.
    single_ops: Vec<Stage>,
    weights: Arc<Weights>,
    buffers: Vec<SharedBuffer>,
    layout: CacheLayout,
    /// One per memory of the layout.
    caches: Vec<KvCache>,
    angles: Vec<RopeAngles>,
    /// Filling the tables of angles, before the first stage.
    angles_pass: Pass,
    /// Partial results of attention when a few long contexts are spread over many threads.
    partials: SharedBuffer,
    block_size: usize,
}

/// The weights in the device's layout. Nothing is written to them any more.
struct Weights {
    /// Of matrix products and embeddings.
    matrices: Vec<Option<PackedWeight>>,
    /// Of norms, and biases.
    vectors: Vec<Option<Vec<f32>>>,
}

/// The angles of the batch's positions for one kind of rotation.
struct RopeAngles {
    rotation: Rotation,
    frequencies: Vec<f32>,
    /// `[row][rotary]`: cosines, then sines.
    table: SharedBuffer,
}

/// Values in [`Memory::partials`]: 4 MiB.
const PARTIALS: usize = 1 << 20;

/// The product of sizes, or an error that names what is too large.
fn size(what: &str, factors: &[usize]) -> Result<usize, DeviceError> {
    // A quarter of the address space, in values of four bytes, leaves room for rounding up.
    let limit = isize::MAX as usize / 8;
    let product = factors.iter().try_fold(1usize, |product, factor| product.checked_mul(*factor));
    product.filter(|product| *product <= limit).ok_or_else(|| DeviceError::Limit {
        what: what.to_owned(),
        needed: u64::MAX,
        allowed: limit as u64,
        unit: "values",
    })
}

impl CpuDevice {
    fn open(
        adapter: &CpuAdapter,
        program: &Program,
        weights: &dyn WeightSource,
        limits: DeviceLimits,
    ) -> Result<CpuDevice, DeviceError> {
        program.check();
        let (info, threads) = (adapter.info.clone(), adapter.threads);
        let started = Instant::now();
        let packed = adapter.weights(program, weights)?;
        let memory = Memory::new(program, weights, packed, &limits, adapter.level)?;
        let opening = [Phase::since("upload_weights", started)];
        let max_rows = limits.max_tokens.max(limits.max_sequences);
        let scratch = (0..threads).map(|_| Scratch::new(program, max_rows)).collect();
        let tiles = Vec::with_capacity(limits.max_tokens);
        Ok(CpuDevice { opening, info, limits, team: Team::new(threads)?, scratch, tiles, memory })
    }
}

impl Weights {
    /// Packs the weights of all ops, on `threads` threads.
    fn new(program: &Program, source: &dyn WeightSource, threads: usize) -> Result<Weights, DeviceError> {
        let mut matrices: Vec<Option<PackedWeight>> = program.weights.iter().map(|_| None).collect();
        let mut vectors: Vec<Option<Vec<f32>>> = vec![None; program.weights.len()];
        for op in &program.ops {
            match op.kind {
                OpKind::Embed { table: id, .. } | OpKind::MatMul { weight: id, .. }
                    if matrices[id.0].is_none() =>
                {
                    let weight = &program.weights[id.0];
                    matrices[id.0] = Some(PackedWeight::new(weight, &source.weight(id), threads)?);
                }
                OpKind::RmsNorm { weight: id, .. } | OpKind::AddBias { bias: id, .. } => {
                    vectors[id.0] = Some(vector(program, source, id)?)
                }
                _ => {}
            }
        }
        Ok(Weights { matrices, vectors })
    }
}

impl Memory {
    fn new(
        program: &Program,
        source: &dyn WeightSource,
        weights: Arc<Weights>,
        limits: &DeviceLimits,
        level: SimdLevel,
    ) -> Result<Memory, DeviceError> {
        let mut angles: Vec<RopeAngles> = Vec::new();
        for op in &program.ops {
            let OpKind::Rope { rotation, .. } = op.kind else { continue };
            if angles.iter().any(|angles| angles.rotation == rotation) {
                continue;
            }
            let values = rotation.factors.map(|id| vector(program, source, id)).transpose()?;
            let len = size(&op.name, &[limits.max_tokens, rotation.rotary])?;
            angles.push(RopeAngles {
                rotation,
                frequencies: frequencies(&rotation, values.as_deref()),
                table: SharedBuffer::new(&op.name, len)?,
            });
        }
        let buffers = program.buffers.iter().map(|buffer| {
            let rows = if buffer.rows == Rows::Tokens { limits.max_tokens } else { limits.max_sequences };
            SharedBuffer::new(buffer.name, size(buffer.name, &[rows, buffer.width])?)
        });
        let width = program.key_width().max(program.value_width()).max(1);
        let slots = size("the KV pool", &[limits.num_blocks, limits.block_size, width])? / width;
        let layout = CacheLayout::of(program);
        let caches = (0..layout.num_memories).map(|_| KvCache::new(slots, program));
        Ok(Memory {
            level,
            stages: plan::plan(program),
            single_ops: plan::plan_op_by_op(program),
            weights,
            buffers: buffers.collect::<Result<_, _>>()?,
            caches: caches.collect::<Result<_, _>>()?,
            layout,
            angles,
            angles_pass: Pass::default(),
            partials: SharedBuffer::new("attention partials", PARTIALS)?,
            block_size: limits.block_size,
            program: program.clone(),
        })
    }
}

/// The weight of a norm, a bias or the factors of a rotation as `f32`.
fn vector(program: &Program, weights: &dyn WeightSource, id: WeightId) -> Result<Vec<f32>, DeviceError> {
    let (weight, stored) = (&program.weights[id.0], weights.weight(id));
    if stored.len() != weight.bytes() {
        let (found, expected) = (stored.len(), weight.bytes());
        return Err(DeviceError::Failed(format!(
            "weight {} has {found} bytes, {expected} expected",
            weight.name
        )));
    }
    let mut values = vec![0.0; weight.columns];
    weight.format.dequantize(&stored, &mut values);
    Ok(values)
}

/// Cuts each sequence's rows into attention tiles.
fn cut_tiles(batch: &Batch, tiles: &mut Vec<Tile>) {
    tiles.clear();
    for sequence in &batch.sequences {
        let (first, end) = (sequence.first_row as usize, (sequence.first_row + sequence.num_rows) as usize);
        for first_row in (first..end).step_by(TILE_ROWS) {
            tiles.push(Tile {
                first_row,
                rows: TILE_ROWS.min(end - first_row),
                first_position: batch.positions[first_row] as usize,
                sequence: *sequence,
            });
        }
    }
}

impl Device for CpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn execute(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> {
        let (started, ended) = self.run(batch, logits, false)?;
        Ok(ExecuteTimes { forward: Some(ended - started) })
    }

    fn execute_detailed(
        &mut self,
        batch: &Batch,
        logits: &mut Vec<f32>,
        detail: &mut ExecuteDetail,
    ) -> Result<ExecuteTimes, DeviceError> {
        let (started, ended) = self.run(batch, logits, true)?;
        detail.forward = Some((started, ended));
        let (program, shape) = (&self.memory.program, batch.shape(self.memory.program.window()));
        let mut from = started;
        for op in 0..program.ops.len() {
            // A thread that was put aside saw the op's end late; the first to see it is right.
            let to = self.scratch.iter().map(|scratch| scratch.ticks[op]).min().unwrap_or(from);
            detail.push(program, op..op + 1, shape, from, to - from);
            from = to;
        }
        Ok(ExecuteTimes { forward: Some(ended - started) })
    }

    fn peak(&mut self) -> Result<Peak, DeviceError> {
        Ok(CpuDevice::peak(self))
    }

    fn opening(&self) -> &[Phase] {
        &self.opening
    }
}

impl CpuDevice {
    /// Runs a step and gives the beginning and the end of its forward pass. A timed step runs op by op.
    fn run(
        &mut self,
        batch: &Batch,
        logits: &mut Vec<f32>,
        timed: bool,
    ) -> Result<(Instant, Instant), DeviceError> {
        logits.clear();
        let max_candidates = self.max_candidates();
        check_batch(batch, &self.memory.program, &self.memory.layout, &self.limits, max_candidates)?;
        let started = Instant::now();
        cut_tiles(batch, &mut self.tiles);
        self.memory.angles_pass.reset();
        let stages = if timed { &mut self.memory.single_ops } else { &mut self.memory.stages };
        stages.iter_mut().for_each(Stage::reset);
        let (memory, tiles) = (&self.memory, &self.tiles[..]);
        let stages = if timed { &memory.single_ops } else { &memory.stages };
        self.team.run(&mut self.scratch, |peers, scratch| {
            Step { memory, stages, timed, batch, tiles, peers }.run(scratch);
        });
        let ended = Instant::now();
        let program = &self.memory.program;
        let len = batch.logits_rows.len() * program.vocabulary();
        // SAFETY: the step is over, no thread writes.
        logits.extend_from_slice(unsafe { self.memory.buffers[program.logits.0].read(0..len) });
        Ok((started, ended))
    }
}
