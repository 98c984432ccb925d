//! The wgpu device: a program's ops as WGSL dispatches, on any Vulkan, Metal or DirectX 12 adapter.
//!
//! A step is one upload, one command buffer, one submission and one wait: the data of the batch goes up in
//! one copy, the ops run in one compute pass, and timestamps, logits and candidates come back in one mapped buffer.
//! It leaves to `kernels` how an op is computed, and to whoever made the program which ops there are.
//!
//! Invariant: everything a step uses is made by [`Adapter::open`]; a step allocates only its command buffer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use limpid_telemetry::observation::Phase;
use wgpu::{BufferUsages, DeviceType};

use self::detail::OpClock;
use self::gpu::{Gpu, Options};
use self::plan::Plan;
use super::batch_check::check_batch;
use super::cpu::machine::available_memory;
use super::{
    Adapter, Batch, Candidate, Device, DeviceError, DeviceInfo, DeviceLimits, DeviceMemory, ExecuteDetail,
    ExecuteTimes, Peak, Sharing, WeightSource, share_of,
};
use crate::kernels::top_k;
use crate::program::Program;

mod adapter;
mod candidates;
mod detail;
mod dispatch;
mod gpu;
mod groups;
#[cfg(test)]
mod kernel_tests;
mod packing;
mod peak;
mod pipelines;
mod plan;
pub(crate) mod shader;
mod split;
mod step;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod texels;
mod weights;

/// Bytes before the logits in what is read back: the two timestamps, filled up to a copy's alignment.
const TIMESTAMP_BYTES: u64 = 256;

/// Finds a wgpu adapter for each of `engines` engines: hardware first; software ones (`device_type` Cpu) only
/// unless `hardware_only`. Several GPUs of the best kind are taken in turn. Where the adapter allows, compiled pipelines
/// are kept in the directory `pipelines` from one opening to the next.
///
/// # Errors
/// [`DeviceError::NoAdapter`] with the adapters and backends that were tried.
pub fn find(
    hardware_only: bool,
    engines: usize,
    pipelines: Option<&Path>,
) -> Result<Vec<Box<dyn Adapter>>, DeviceError> {
    let found = adapter::best(hardware_only)?;
    let adapter = |index: usize| -> Box<dyn Adapter> {
        let number = index % found.len();
        let adapter = found[number].clone();
        let info = adapter::describe(&adapter.get_info());
        let engines = share_of(engines, number, found.len());
        Box::new(WgpuAdapter { adapter, info, engines, pipelines: pipelines.map(Path::to_owned) })
    };
    Ok((0..engines).map(adapter).collect())
}

struct WgpuAdapter {
    adapter: wgpu::Adapter,
    info: DeviceInfo,
    engines: usize,
    /// Where compiled pipelines are kept.
    pipelines: Option<PathBuf>,
}

impl Adapter for WgpuAdapter {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The host's where the adapter has none of its own. Of other adapters' memory wgpu has no portable way to ask.
    fn memory(&self) -> DeviceMemory {
        match self.adapter.get_info().device_type {
            DeviceType::Cpu => {
                available_memory().map_or(DeviceMemory::Unknown, DeviceMemory::SharedAndFilled)
            }
            DeviceType::IntegratedGpu => {
                available_memory().map_or(DeviceMemory::Unknown, DeviceMemory::Shared)
            }
            _ => DeviceMemory::Unknown,
        }
    }

    /// Each engine uploads weights of its own.
    fn sharing(&self) -> Sharing {
        Sharing { engines: self.engines, weights: false }
    }

    fn open(
        &self,
        program: &Program,
        weights: &dyn WeightSource,
        limits: DeviceLimits,
    ) -> Result<Box<dyn Device>, DeviceError> {
        let gpu = Arc::new(Gpu::open(&self.adapter, self.pipelines.as_deref())?);
        let options = gpu.options();
        Ok(Box::new(WgpuDevice::open(gpu, self.info.clone(), program, weights, limits, options)?))
    }
}

/// A program on an open device.
pub(crate) struct WgpuDevice {
    info: DeviceInfo,
    gpu: Arc<Gpu>,
    program: Program,
    limits: DeviceLimits,
    plan: Plan,
    /// Values between two rows of logits.
    logits_stride: usize,
    /// Mapped for writing between steps.
    upload: wgpu::Buffer,
    /// Timestamps, then the rows of logits that are wanted whole, then what was picked of all wanted rows.
    readback: wgpu::Buffer,
    timestamps: Option<Timestamps>,
    /// For steps whose ops are timed; `None` without timestamps, or if there are more ops than queries.
    op_clock: Option<OpClock>,
    opening: Vec<Phase>,
    /// Of the last step.
    candidates: Vec<Candidate>,
    /// The words of the step, kept for their memory.
    words: Vec<u32>,
}

struct Timestamps {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    /// Nanoseconds a tick.
    period: f64,
}

impl WgpuDevice {
    fn open(
        gpu: Arc<Gpu>,
        info: DeviceInfo,
        program: &Program,
        weights: &dyn WeightSource,
        limits: DeviceLimits,
        options: Options,
    ) -> Result<WgpuDevice, DeviceError> {
        program.check();
        let (plan, [uploaded, compiled]) = Plan::build(&gpu, program, weights, &limits, options)?;
        let logits_stride = shader::stride(program.vocabulary());
        let upload = gpu.buffer(
            "the upload of a step",
            plan.step.size(),
            BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC,
        )?;
        let picked_bytes = plan.candidates.as_ref().map_or(0, |candidates| candidates.row_bytes());
        let readback = gpu.buffer(
            "the results of a step",
            TIMESTAMP_BYTES + limits.max_sequences as u64 * (4 * logits_stride as u64 + picked_bytes),
            BufferUsages::MAP_READ | BufferUsages::COPY_DST,
        )?;
        let timestamps = if options.timestamps { Some(Timestamps::new(&gpu)?) } else { None };
        let op_clock = OpClock::new(&gpu, program.ops.len(), options)?;
        let started = Instant::now();
        let mut device = WgpuDevice {
            info,
            gpu,
            program: program.clone(),
            limits,
            plan,
            logits_stride,
            upload,
            readback,
            timestamps,
            op_clock,
            opening: vec![uploaded, compiled],
            candidates: Vec::new(),
            words: Vec::new(),
        };
        device.warm_up()?;
        // Not before, because some drivers compile a pipeline when it first runs.
        if let Some(file) = &device.gpu.pipeline_file {
            file.save();
        }
        device.opening.push(Phase::since("warm_up", started));
        Ok(device)
    }

    /// Runs everything once on a step of no rows.
    fn warm_up(&self) -> Result<(), DeviceError> {
        let mut encoder = self.encoder();
        self.plan.record_warm_up(&mut encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()));
        self.gpu.queue.submit([encoder.finish()]);
        self.upload.map_async(wgpu::MapMode::Write, .., |_| ());
        self.gpu.wait()
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    /// Writes the step's words to the upload buffer and begins the commands with their copy.
    fn begin(&self) -> Result<wgpu::CommandEncoder, DeviceError> {
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        let size = bytes.len() as u64;
        let failed = |error: wgpu::MapRangeError| DeviceError::Failed(error.to_string());
        self.upload.get_mapped_range_mut(..size).map_err(failed)?.copy_from_slice(bytes);
        self.upload.unmap();

        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(&self.upload, 0, &self.plan.step, 0, size);
        Ok(encoder)
    }

    /// Sends the step's words and the ops, and waits for their results.
    fn run(&self, batch: &Batch) -> Result<(), DeviceError> {
        let mut encoder = self.begin()?;
        let timestamp_writes = self.timestamps.as_ref().map(|timestamps| wgpu::ComputePassTimestampWrites {
            query_set: &timestamps.queries,
            beginning_of_pass_write_index: Some(0),
            end_of_pass_write_index: Some(1),
        });
        let mut pass = encoder
            .begin_compute_pass(&wgpu::ComputePassDescriptor { label: Some("forward"), timestamp_writes });
        let extent = self.plan.extent(batch);
        for dispatch in &self.plan.dispatches {
            dispatch.record(&mut pass, extent)?;
        }
        drop(pass);
        if let Some(timestamps) = &self.timestamps {
            encoder.resolve_query_set(&timestamps.queries, 0..2, &timestamps.resolved, 0);
            encoder.copy_buffer_to_buffer(&timestamps.resolved, 0, &self.readback, 0, 16);
        }
        self.submit(encoder, batch)?;
        self.gpu.wait()
    }

    /// Ends the commands with what comes back of the logits, sends them, and asks for both buffers back.
    fn submit(&self, mut encoder: wgpu::CommandEncoder, batch: &Batch) -> Result<(), DeviceError> {
        let logits = self.plan.activations.now(self.program.logits).buffer();
        let logits_rows = batch.logits_rows.len();
        let row_bytes = self.row_bytes();
        let mut end = TIMESTAMP_BYTES;
        let mut row = 0;
        while row < logits_rows {
            let whole = (row..logits_rows).take_while(|row| batch.num_candidates(*row) == 0).count();
            if whole > 0 {
                let bytes = whole as u64 * row_bytes;
                encoder.copy_buffer_to_buffer(logits, row as u64 * row_bytes, &self.readback, end, bytes);
                end += bytes;
            }
            row += whole.max(1);
        }
        if let Some(picking) = self.plan.picking(batch) {
            picking.record(&mut encoder, logits_rows, &self.readback, end)?;
            end += logits_rows as u64 * picking.row_bytes();
        }
        self.gpu.queue.submit([encoder.finish()]);
        self.upload.map_async(wgpu::MapMode::Write, .., |_| ());
        // A failure to map shows in the wait or when the range is asked for.
        self.readback.map_async(wgpu::MapMode::Read, ..end, |_| ());
        Ok(())
    }

    /// Bytes from one row of logits to the next.
    fn row_bytes(&self) -> u64 {
        4 * self.logits_stride as u64
    }

    /// Takes the results out of the mapped buffer.
    fn read(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> {
        let picking = self.plan.picking(batch);
        let whole_bytes = batch.num_whole_rows() as u64 * self.row_bytes();
        let picked_bytes = picking.map_or(0, |picking| batch.logits_rows.len() as u64 * picking.row_bytes());
        let view = self
            .readback
            .get_mapped_range(..TIMESTAMP_BYTES + whole_bytes + picked_bytes)
            .map_err(|error| DeviceError::Failed(error.to_string()))?;
        let (head, rest) = view.split_at(TIMESTAMP_BYTES as usize);
        let (rows, picked) = rest.split_at(whole_bytes as usize);
        let rows: &[f32] = bytemuck::cast_slice(rows);
        for row in rows.chunks_exact(self.logits_stride) {
            logits.extend_from_slice(&row[..self.program.vocabulary()]);
        }
        if let Some(picking) = picking {
            let pairs: &[[u32; 2]] = bytemuck::cast_slice(picked);
            for (index, pairs) in pairs.chunks_exact(picking.kept).enumerate() {
                let asked = &pairs[..batch.num_candidates(index)];
                self.candidates.extend(asked.iter().map(|pair| top_k::candidate(*pair)));
            }
        }
        let forward = self.timestamps.as_ref().and_then(|timestamps| {
            let ticks: &[u64] = bytemuck::cast_slice(&head[..16]);
            let elapsed = ticks[1].checked_sub(ticks[0])?;
            Some(Duration::from_nanos((elapsed as f64 * timestamps.period) as u64))
        });
        drop(view);
        self.readback.unmap();
        Ok(ExecuteTimes { forward })
    }
}

impl Device for WgpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn execute(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<ExecuteTimes, DeviceError> {
        if !self.lay_out(batch, logits)? {
            return Ok(ExecuteTimes::default());
        }
        self.run(batch)?;
        self.read(batch, logits)
    }

    fn execute_detailed(
        &mut self,
        batch: &Batch,
        logits: &mut Vec<f32>,
        detail: &mut ExecuteDetail,
    ) -> Result<ExecuteTimes, DeviceError> {
        let Some(clock) = self.op_clock.take() else { return self.execute(batch, logits) };
        let result = self.execute_timed(&clock, batch, logits, detail);
        self.op_clock = Some(clock);
        result
    }

    fn max_candidates(&self) -> usize {
        self.plan.candidates.as_ref().map_or(0, |candidates| candidates.most)
    }

    fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    fn peak(&mut self) -> Result<Peak, DeviceError> {
        peak::measure(&self.gpu)
    }

    fn opening(&self) -> &[Phase] {
        &self.opening
    }
}

impl WgpuDevice {
    /// Checks a batch and lays it out; `false` if there is nothing to do.
    fn lay_out(&mut self, batch: &Batch, logits: &mut Vec<f32>) -> Result<bool, DeviceError> {
        logits.clear();
        self.candidates.clear();
        check_batch(batch, &self.program, &self.plan.layout, &self.limits, self.max_candidates())?;
        self.gpu.check()?;
        if batch.tokens.is_empty() {
            return Ok(false);
        }
        let groups = self.plan.layout.num_groups();
        step::lay_out(batch, &self.limits, groups, &self.plan.ropes, &mut self.words);
        Ok(true)
    }
}

impl Timestamps {
    fn new(gpu: &Gpu) -> Result<Timestamps, DeviceError> {
        let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("forward"),
            ty: wgpu::QueryType::Timestamp,
            count: 2,
        });
        let usage = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let resolved = gpu.buffer("timestamps", TIMESTAMP_BYTES, usage)?;
        Ok(Timestamps { queries, resolved, period: f64::from(gpu.queue.get_timestamp_period()) })
    }
}
