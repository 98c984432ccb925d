//! The best candidates of each row of logits, picked on the device, so that whole rows need not come back.
//!
//! It is for hardware adapters, which may be behind a bus. A software adapter's logits are in the host's memory
//! already, where looking through them costs less than a sort in WGSL.
//!
//! Invariant: what is picked of a row depends on its logits alone, not on what other rows are asked for.

use wgpu::{Buffer, CommandEncoder, ComputePass};

use super::dispatch::{Dispatch, Draft, Extent};
use super::gpu::{Gpu, Options};
use super::shader::stride;
use crate::device::{Batch, DeviceError, DeviceLimits};
use crate::kernels::top_k::{MOST, PAIR_BYTES, Stage};
use crate::program::Rows;

/// Both ways to pick.
pub(super) struct Candidates {
    /// Most candidates that can be asked for: fewer than a row has.
    pub(super) most: usize,
    one: Picking,
    many: Picking,
}

/// A series of dispatches that leaves some candidates of each row.
pub(super) struct Picking {
    /// Candidates of a row.
    pub(super) kept: usize,
    dispatches: Vec<Dispatch>,
    /// What the last one leaves, row after row.
    pairs: Buffer,
}

impl Candidates {
    /// `None` where rows are better taken whole. `step` is the buffer of the step's words.
    pub(super) fn build(
        gpu: &Gpu,
        logits: &Buffer,
        vocabulary: usize,
        step: &Buffer,
        limits: &DeviceLimits,
        options: Options,
    ) -> Result<Option<Candidates>, DeviceError> {
        let most = MOST.min(vocabulary.saturating_sub(1));
        if options.mapping.is_software() || most == 0 {
            return Ok(None);
        }
        let picking = |kept| -> Result<Picking, DeviceError> {
            let (mut input, mut input_stride) = (logits.clone(), stride(vocabulary));
            let mut dispatches = Vec::new();
            for stage in Stage::series(vocabulary, kept) {
                let bytes = PAIR_BYTES * (limits.max_sequences * stage.out_width()) as u64;
                let pairs = gpu.storage("the candidates", bytes, options)?;
                let draft = Draft::new(
                    Rows::Logits,
                    stage.variants(),
                    stage.params(input_stride),
                    vec![input.into(), pairs.clone().into()],
                );
                dispatches.push(draft.finish(gpu, "candidates", step, limits, options)?);
                (input, input_stride) = (pairs, stage.out_width());
            }
            Ok(Picking { kept, dispatches, pairs: input })
        };
        Ok(Some(Candidates { most, one: picking(1)?, many: picking(MOST)? }))
    }

    /// The cheapest way to pick what a batch asks for; `None` if it asks for nothing.
    pub(super) fn picking(&self, batch: &Batch) -> Option<&Picking> {
        match batch.candidates.iter().max() {
            None | Some(0) => None,
            Some(1) => Some(&self.one),
            Some(_) => Some(&self.many),
        }
    }

    /// Most bytes that come back for each row.
    pub(super) fn row_bytes(&self) -> u64 {
        self.many.row_bytes()
    }

    /// Records one workgroup of everything.
    pub(super) fn record_warm_up(&self, pass: &mut ComputePass<'_>) {
        for dispatch in self.one.dispatches.iter().chain(&self.many.dispatches) {
            dispatch.record_warm_up(pass);
        }
    }
}

impl Picking {
    /// Bytes that come back for each row.
    pub(super) fn row_bytes(&self) -> u64 {
        PAIR_BYTES * self.kept as u64
    }

    /// Picks, and copies what was picked of all rows to a place in another buffer.
    pub(super) fn record(
        &self,
        encoder: &mut CommandEncoder,
        logits_rows: usize,
        to: &Buffer,
        offset: u64,
    ) -> Result<(), DeviceError> {
        // A pass of its own, so that the forward pass is timed without it.
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some("candidates"),
            timestamp_writes: None,
        });
        for dispatch in &self.dispatches {
            dispatch.record(&mut pass, Extent { tokens: 0, logits_rows, partitions: None })?;
        }
        drop(pass);
        let bytes = logits_rows as u64 * self.row_bytes();
        encoder.copy_buffer_to_buffer(&self.pairs, 0, to, offset, bytes);
        Ok(())
    }
}
