//! Attention of a few rows with a long past, on GPUs: their pasts are split over workgroups, which leave what they
//! gathered in memory that all layers share; see [`crate::kernels::attention`].
//!
//! Invariant: a step is split only if there is room for all of it, and then in every layer.

use wgpu::Buffer;

use super::dispatch::{Bound, Draft, When};
use super::gpu::{Array, Gpu, Options};
use super::shader::Mapping;
use crate::device::{Batch, DeviceError, DeviceLimits};
use crate::kernels::attention::reference::AttentionShape;
use crate::kernels::attention::{self, PARTITION, SPLIT_ROWS};
use crate::program::{OpKind, Program, Rows};

/// Most bytes of it, unless one row needs more.
const MOST_BYTES: u64 = 64 << 20;

/// Memory for what partitions give.
pub(super) struct Split {
    sums: Buffer,
    totals: Buffer,
    /// Rows that there is room for.
    rows: usize,
    /// Partitions that there is room for in each.
    partitions: usize,
}

impl Split {
    /// `None` where pasts are never split: on software adapters, where no past is long enough, or if bindings have no
    /// room for it.
    pub(super) fn new(
        gpu: &Gpu,
        program: &Program,
        limits: &DeviceLimits,
        options: Options,
    ) -> Result<Option<Split>, DeviceError> {
        let partitions = (limits.max_blocks_per_sequence * limits.block_size).div_ceil(PARTITION);
        let heads = program.ops.iter().map(|op| match op.kind {
            OpKind::Attention { num_heads, .. } => num_heads,
            _ => 0,
        });
        let heads = heads.max().unwrap_or(0);
        if options.mapping.is_software()
            || heads == 0
            || partitions < 2
            || partitions > options.max_workgroups as usize
        {
            return Ok(None);
        }
        let widths = attention::split_widths(heads, program.value_head_size, partitions);
        let [sums_bytes, totals_bytes] = widths.map(|width| 4 * width as u64);
        let largest = sums_bytes.max(totals_bytes);
        let rows = (MOST_BYTES / largest).clamp(1, SPLIT_ROWS.min(limits.max_tokens) as u64);
        if rows * largest > options.max_binding {
            return Ok(None);
        }
        Ok(Some(Split {
            sums: gpu.storage("the sums of split attention", rows * sums_bytes, options)?,
            totals: gpu.storage("the totals of split attention", rows * totals_bytes, options)?,
            rows: rows as usize,
            partitions,
        }))
    }

    /// Partitions of a batch's longest past if it is worth splitting.
    pub(super) fn partitions(&self, batch: &Batch) -> Option<u32> {
        let longest = batch.sequences.iter().map(|sequence| sequence.context_len as usize).max()?;
        let partitions = longest.div_ceil(PARTITION);
        let fits = batch.tokens.len() <= self.rows && partitions <= self.partitions;
        (fits && partitions > 1).then_some(partitions as u32)
    }

    /// The dispatches of an attention op, those of split pasts after the one of whole ones.
    pub(super) fn attention(
        split: Option<&Split>,
        shape: AttentionShape,
        mapping: Mapping,
        [query, out]: [&Array; 2],
        [keys, values]: [&Array; 2],
    ) -> Vec<Draft> {
        let params = attention::params(shape, split.map_or(0, |split| split.partitions));
        let read = || [query.into(), keys.into(), values.into()];
        let draft = |when, variants, bound| Draft {
            when,
            ..Draft::new(Rows::Tokens, variants, params.clone(), bound)
        };
        let whole = read().into_iter().chain([out.into()]).collect();
        let variants = attention::variants(shape, mapping, [query, out].map(|array| array.place(true)));
        let Some(split) = split else { return vec![draft(When::Always, variants, whole)] };
        let gathered = || [&split.sums, &split.totals].map(|buffer| Bound::Buffer(buffer.clone()));
        let [attend, join] = attention::split_variants(shape, mapping);
        vec![
            draft(When::Whole, variants, whole),
            draft(When::Partitions, attend, read().into_iter().chain(gathered()).collect()),
            draft(When::Join, join, gathered().into_iter().chain([out.into()]).collect()),
        ]
    }
}
