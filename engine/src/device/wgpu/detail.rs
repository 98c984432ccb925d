//! A step whose ops are timed, each group of ops that one dispatch computes by itself. Picking candidates is no op, and
//! not timed.
//!
//! On GPUs a group has a compute pass with a timestamp at either end, read back in the same wait as the logits. On
//! software adapters it is submitted and waited for, by the host's clock: their timestamps are taken by threads of
//! their own, and with all cores busy they were seen to come when the next op had ended.
//!
//! It leaves everything else to the plain step, and runs only for steps that somebody wants to look into.

use std::time::{Duration, Instant};

use wgpu::BufferUsages;

use super::gpu::{Gpu, Options};
use super::{Batch, DeviceError, ExecuteDetail, ExecuteTimes, WgpuDevice};

/// How ops are timed.
pub(super) enum OpClock {
    Stamps(Stamps),
    /// By the host's clock, one after the other.
    Host,
}

/// Timestamps of every op.
pub(super) struct Stamps {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    readback: wgpu::Buffer,
    /// Nanoseconds a tick.
    period: f64,
}

/// Bytes of one timestamp.
const TICK: u64 = 8;

impl OpClock {
    /// `None` if the device has no timestamps, or fewer than this many ops need.
    pub(super) fn new(gpu: &Gpu, ops: usize, options: Options) -> Result<Option<OpClock>, DeviceError> {
        let count = 2 * ops as u64;
        if !options.timestamps || count == 0 {
            return Ok(None);
        }
        if options.mapping.is_software() {
            return Ok(Some(OpClock::Host));
        }
        if count > u64::from(wgpu::QUERY_SET_MAX_QUERIES) {
            return Ok(None);
        }
        let queries = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("ops"),
            ty: wgpu::QueryType::Timestamp,
            count: count as u32,
        });
        let usage = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let resolved = gpu.buffer("timestamps of ops", TICK * count, usage)?;
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let readback = gpu.buffer("timestamps of ops on the host", TICK * count, usage)?;
        let period = f64::from(gpu.queue.get_timestamp_period());
        Ok(Some(OpClock::Stamps(Stamps { queries, resolved, readback, period })))
    }
}

impl Stamps {
    fn writes(&self, op: u32) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.queries,
            beginning_of_pass_write_index: Some(2 * op),
            end_of_pass_write_index: Some(2 * op + 1),
        }
    }

    fn between(&self, from: u64, to: u64) -> Duration {
        Duration::from_nanos((to.saturating_sub(from) as f64 * self.period) as u64)
    }
}

impl WgpuDevice {
    /// [`super::Device::execute`] with an eye on every op.
    pub(super) fn execute_timed(
        &mut self,
        clock: &OpClock,
        batch: &Batch,
        logits: &mut Vec<f32>,
        detail: &mut ExecuteDetail,
    ) -> Result<ExecuteTimes, DeviceError> {
        if !self.lay_out(batch, logits)? {
            return Ok(ExecuteTimes::default());
        }
        match clock {
            OpClock::Stamps(stamps) => self.execute_stamped(stamps, batch, logits, detail),
            OpClock::Host => self.execute_in_turn(batch, logits, detail),
        }
    }

    fn execute_in_turn(
        &mut self,
        batch: &Batch,
        logits: &mut Vec<f32>,
        detail: &mut ExecuteDetail,
    ) -> Result<ExecuteTimes, DeviceError> {
        let (extent, shape) = (self.plan.extent(batch), batch.shape(self.program.window()));
        let encoder = self.begin()?;
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.wait()?;
        let started = Instant::now();
        let mut ended = started;
        for (group, dispatches) in self.plan.groups(extent.logits_rows) {
            let begun = ended;
            let mut encoder = self.encoder();
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for dispatch in dispatches {
                dispatch.record(&mut pass, extent)?;
            }
            drop(pass);
            self.gpu.queue.submit([encoder.finish()]);
            self.gpu.wait()?;
            ended = Instant::now();
            detail.push(&self.program, group, shape, begun, ended - begun);
        }
        detail.forward = Some((started, ended));
        self.submit(self.encoder(), batch)?;
        self.gpu.wait()?;
        self.read(batch, logits)?;
        Ok(ExecuteTimes { forward: Some(ended - started) })
    }

    fn execute_stamped(
        &mut self,
        clock: &Stamps,
        batch: &Batch,
        logits: &mut Vec<f32>,
        detail: &mut ExecuteDetail,
    ) -> Result<ExecuteTimes, DeviceError> {
        let extent = self.plan.extent(batch);
        let mut encoder = self.begin()?;
        let mut ops = Vec::with_capacity(self.program.ops.len());
        for (group, dispatches) in self.plan.groups(extent.logits_rows) {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: Some(&self.program.ops[group.start].name),
                timestamp_writes: Some(clock.writes(ops.len() as u32)),
            });
            for dispatch in dispatches {
                dispatch.record(&mut pass, extent)?;
            }
            ops.push(group);
        }
        let (queries, bytes) = (2 * ops.len() as u32, 2 * TICK * ops.len() as u64);
        encoder.resolve_query_set(&clock.queries, 0..queries, &clock.resolved, 0);
        encoder.copy_buffer_to_buffer(&clock.resolved, 0, &clock.readback, 0, bytes);
        // The ops may run, and even end, before the submission returns.
        let handed_over = Instant::now();
        self.submit(encoder, batch)?;
        clock.readback.map_async(wgpu::MapMode::Read, ..bytes, |_| ());
        self.gpu.wait()?;
        let completed = Instant::now();
        self.read(batch, logits)?;

        let view = clock
            .readback
            .get_mapped_range(..bytes)
            .map_err(|error| DeviceError::Failed(error.to_string()))?;
        let ticks: &[u64] = bytemuck::cast_slice(&view);
        let first = ticks.iter().copied().min().unwrap_or(0);
        let forward = clock.between(first, ticks.iter().copied().max().unwrap_or(0));
        // The two clocks have no common zero: the pass ended at the latest when the host saw it end.
        let started = completed.checked_sub(forward).map_or(handed_over, |started| started.max(handed_over));
        detail.forward = Some((started, (started + forward).min(completed)));
        for (group, ends) in ops.into_iter().zip(ticks.chunks_exact(2)) {
            let at = started + clock.between(first, ends[0]);
            let shape = batch.shape(self.program.window());
            detail.push(&self.program, group, shape, at, clock.between(ends[0], ends[1]));
        }
        drop(view);
        clock.readback.unmap();
        Ok(ExecuteTimes { forward: Some(forward) })
    }
}

#[cfg(test)]
mod tests {
    use crate::device::wgpu::testing::{
        Random, Rig, Stored, limits_for, one_op, one_sequence, shared_gpu, skip, tokens, weight,
    };
    use crate::device::{Device, ExecuteDetail};
    use crate::program::{BufferId, Op, OpKind, WeightId};
    use crate::tensor_type::TensorType;

    #[test]
    fn the_time_of_a_large_op_is_charged_to_it_and_not_to_the_one_before() {
        let product = |number: usize| OpKind::MatMul {
            input: BufferId(number),
            weight: WeightId(number),
            out: BufferId(number + 1),
            accumulate: false,
        };
        let (small, large) = (weight(TensorType::F16, 64, 64), weight(TensorType::F16, 32_768, 64));
        let buffers = vec![tokens("input", 64), tokens("small", 64), tokens("large", 32_768)];
        let mut program = one_op(product(0), buffers, vec![small, large]);
        program.ops.push(Op { name: "large".to_owned(), kind: product(1) });
        let mut random = Random::new(71);
        let weights = Stored(program.weights.iter().map(|weight| random.weight(weight, 1.0)).collect());
        let Some(gpu) = shared_gpu() else { return };
        if !gpu.options().timestamps {
            skip("the adapter has no timestamps");
            return;
        }
        let mut rig = Rig::open(&program, &weights, limits_for(32)).expect("there is an adapter");
        let mut shares: Vec<f64> = (0..9)
            .map(|_| {
                let mut detail = ExecuteDetail::default();
                let batch = one_sequence(32, 16);
                rig.device.execute_detailed(&batch, &mut Vec::new(), &mut detail).expect("the batch runs");
                let (from, to) = detail.forward.expect("it is measured");
                detail.ops[1].duration.as_secs_f64() / (to - from).as_secs_f64()
            })
            .collect();
        shares.sort_by(f64::total_cmp);
        // The small one is a thousandth of the work, but no dispatch is free.
        assert!(shares[4] > 0.6, "the large product took {shares:.2?} of the forward pass");
    }
}
