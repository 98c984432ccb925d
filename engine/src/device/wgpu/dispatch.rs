//! A dispatch: a kernel, or one of several for few and many rows, with what is bound to it.
//!
//! Whoever knows what is to be computed drafts it; here it gets its bind group and pipelines, and is recorded in a
//! pass. What is dispatched in which order is left to [`super::plan`] and [`super::candidates`].
//!
//! Invariant: what was finished can be recorded for any number of rows that the limits allow; the folding of its
//! workgroups has been tried for the most of them.

use std::num::NonZeroU64;

use wgpu::{BindGroup, Buffer, ComputePass, ComputePipeline};

use super::gpu::{Array, Gpu, Options};
use super::shader::{Access, Variant, Work, fold};
use super::step::HEADER_WORDS;
use super::weights::uniform;
use crate::device::{DeviceError, DeviceLimits};
use crate::program::Rows;

/// Ready to be recorded.
pub(super) struct Dispatch {
    name: String,
    pub(super) rows: Rows,
    when: When,
    bind_group: BindGroup,
    /// By rising number of rows.
    variants: Vec<(u64, ComputePipeline, Work)>,
    max_workgroups: u32,
}

/// How large a step is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) tokens: usize,
    pub(super) logits_rows: usize,
    /// Partitions of the longest past, if attention splits them.
    pub(super) partitions: Option<u32>,
}

/// Which steps a dispatch is for: attention has two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Always,
    /// Pasts are not split.
    Whole,
    /// They are; once for each partition.
    Partitions,
    /// They are; joins them.
    Join,
}

impl When {
    /// How often it is done.
    fn times(self, partitions: Option<u32>) -> u32 {
        match (self, partitions) {
            (When::Always, _) | (When::Whole, None) | (When::Join, Some(_)) => 1,
            (When::Partitions, Some(count)) => count,
            (When::Whole, Some(_)) | (When::Partitions | When::Join, None) => 0,
        }
    }
}

/// A dispatch before its pipelines and bind group are made.
pub(super) struct Draft {
    pub(super) rows: Rows,
    pub(super) when: When,
    pub(super) variants: Vec<Variant>,
    pub(super) params: Vec<u32>,
    /// For the bindings from 3 on.
    pub(super) bound: Vec<Bound>,
}

/// What is bound to a kernel's storage binding.
pub(super) enum Bound {
    Buffer(Buffer),
    Texels(wgpu::TextureView),
}

impl From<Buffer> for Bound {
    fn from(buffer: Buffer) -> Bound {
        Bound::Buffer(buffer)
    }
}

impl From<&Array> for Bound {
    fn from(array: &Array) -> Bound {
        match array {
            Array::Buffer(buffer) => Bound::Buffer(buffer.clone()),
            Array::Texels(texture) => Bound::Texels(texture.create_view(&Default::default())),
        }
    }
}

impl Draft {
    /// For all steps.
    pub(super) fn new(rows: Rows, variants: Vec<Variant>, params: Vec<u32>, bound: Vec<Bound>) -> Draft {
        Draft { rows, when: When::Always, variants, params, bound }
    }

    /// Makes bind group and pipelines. `step` is the buffer of the step's words, `name` for labels and messages.
    pub(super) fn finish(
        self,
        gpu: &Gpu,
        name: &str,
        step: &Buffer,
        limits: &DeviceLimits,
        options: Options,
    ) -> Result<Dispatch, DeviceError> {
        let params = uniform(gpu, name, &self.params)?;
        let size = NonZeroU64::new(4 * HEADER_WORDS as u64);
        let header = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: step, offset: 0, size });
        let mut entries = vec![
            wgpu::BindGroupEntry { binding: 0, resource: params.as_entire_binding() },
            wgpu::BindGroupEntry { binding: 1, resource: header },
            wgpu::BindGroupEntry { binding: 2, resource: step.as_entire_binding() },
        ];
        for (binding, bound) in (3..).zip(&self.bound) {
            let resource = match bound {
                Bound::Buffer(buffer) => buffer.as_entire_binding(),
                Bound::Texels(view) => wgpu::BindingResource::TextureView(view),
            };
            entries.push(wgpu::BindGroupEntry { binding, resource });
        }
        // All variants bind the same buffers in the same way.
        let storage: &[Access] = &self.variants[0].kernel.storage;
        let bind_group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(name),
            layout: &gpu.layout(storage),
            entries: &entries,
        });
        let mut variants = Vec::with_capacity(self.variants.len());
        let capacity = row_capacity(self.rows, limits);
        for (index, variant) in self.variants.iter().enumerate() {
            let next = self.variants.get(index + 1).map_or(u64::MAX, |next| next.min_rows - 1);
            folded(name, variant.work.workgroups(capacity.min(next)), options.max_workgroups)?;
            variants.push((variant.min_rows, gpu.pipeline(&variant.kernel)?, variant.work));
        }
        gpu.check()?;
        Ok(Dispatch {
            name: name.to_owned(),
            rows: self.rows,
            when: self.when,
            bind_group,
            variants,
            max_workgroups: options.max_workgroups,
        })
    }
}

impl Dispatch {
    /// Records what a step needs.
    pub(super) fn record(&self, pass: &mut ComputePass<'_>, extent: Extent) -> Result<(), DeviceError> {
        let rows = match self.rows {
            Rows::Tokens => extent.tokens as u64,
            Rows::Logits => extent.logits_rows as u64,
        };
        let times = self.when.times(extent.partitions);
        if times == 0 {
            return Ok(());
        }
        let variant = self.variants.iter().rev().find(|(min_rows, ..)| *min_rows <= rows);
        if rows > 0
            && let Some((_, pipeline, work)) = variant
        {
            let (x, y) = folded(&self.name, work.workgroups(rows), self.max_workgroups)?;
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &self.bind_group, &[]);
            pass.dispatch_workgroups(x, y, times);
        }
        Ok(())
    }

    /// Records one workgroup of every variant.
    pub(super) fn record_warm_up(&self, pass: &mut ComputePass<'_>) {
        pass.set_bind_group(0, &self.bind_group, &[]);
        for (_, pipeline, _) in &self.variants {
            pass.set_pipeline(pipeline);
            pass.dispatch_workgroups(1, 1, 1);
        }
    }
}

fn folded(name: &str, workgroups: u64, max_workgroups: u32) -> Result<(u32, u32), DeviceError> {
    fold(workgroups, max_workgroups).ok_or_else(|| DeviceError::Limit {
        what: name.to_owned(),
        needed: workgroups,
        allowed: u64::from(max_workgroups) * u64::from(max_workgroups),
        unit: "workgroups",
    })
}

/// Most rows a buffer can have.
pub(super) fn row_capacity(rows: Rows, limits: &DeviceLimits) -> u64 {
    match rows {
        Rows::Tokens => limits.max_tokens as u64,
        Rows::Logits => limits.max_sequences as u64,
    }
}
