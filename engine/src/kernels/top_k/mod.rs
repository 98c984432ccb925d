//! The best candidates of each row of logits. It is no op of a program: a device that picks candidates runs it on the
//! logits after the ops.
//!
//! A stage cuts rows into chunks, a workgroup for each, and keeps the best of each chunk; stages follow until a row is
//! one chunk. A device has two such series, for one candidate and for [`MOST`].
//!
//! Invariant: what is kept is in the order of `reference.rs` to the last bit, for nothing but bits is compared.

use crate::device::Candidate;
use crate::device::wgpu::shader::{Access, Kernel, Variant, Work};

pub mod reference;
#[cfg(test)]
mod tests;

/// Most candidates of a row that are kept.
pub(crate) const MOST: usize = 64;

/// Candidates in a chunk. As pairs they take 16 KiB of workgroup memory, which every adapter has.
pub(crate) const CHUNK: usize = 2048;

/// Threads in a workgroup: what every adapter allows.
const WORKGROUP: usize = 256;

/// Bytes of a candidate between stages and on the way back: its key and its id, 32 bits each.
pub(crate) const PAIR_BYTES: u64 = 8;

/// What a stage reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Rows of logits.
    Logits,
    /// Rows of pairs.
    Pairs,
}

/// A stage for rows of `count` candidates, of which `kept` of each chunk are left: 1 or [`MOST`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    pub(crate) input: Input,
    pub(crate) count: usize,
    pub(crate) kept: usize,
}

impl Stage {
    /// The stages that leave `kept` candidates of each row, filled up with nothing where there are fewer.
    pub(crate) fn series(vocabulary: usize, kept: usize) -> Vec<Stage> {
        let mut stages = vec![Stage { input: Input::Logits, count: vocabulary, kept }];
        while let Some(last) = stages.last().filter(|last| last.chunks() > 1) {
            stages.push(Stage { input: Input::Pairs, count: last.out_width(), kept });
        }
        stages
    }

    /// Chunks, and so workgroups, of a row.
    fn chunks(self) -> usize {
        self.count.div_ceil(CHUNK)
    }

    /// Pairs that it writes for each row.
    pub(crate) fn out_width(self) -> usize {
        self.chunks() * self.kept
    }

    /// The dispatch. Binds the input and the pairs that are kept.
    pub(crate) fn variants(self) -> Vec<Variant> {
        let load = match self.input {
            Input::Logits => include_str!("from_logits.wgsl"),
            Input::Pairs => include_str!("from_pairs.wgsl"),
        };
        let (name, choose) = match self.kept {
            1 => ("top_one", include_str!("top_one.wgsl")),
            _ => ("top_k", include_str!("top_k.wgsl")),
        };
        let kernel = Kernel::new(
            name,
            &[Access::Read, Access::Write],
            &[("WORKGROUP", WORKGROUP), ("CHUNK", CHUNK), ("KEPT", self.kept)],
            &[include_str!("pairs.wgsl"), load, choose],
        );
        Variant::only(kernel, Work::Groups { per_rows: self.chunks() as u64, rows: 1 })
    }

    /// Parameters for rows that begin `stride` values or pairs apart.
    pub(crate) fn params(self, stride: usize) -> Vec<u32> {
        vec![self.count as u32, stride as u32, self.chunks() as u32]
    }
}

/// The candidate of a pair; of the two zeros, which have one key, it has the positive one.
pub(crate) fn candidate([key, id]: [u32; 2]) -> Candidate {
    const POSITIVE: u32 = 1 << 31;
    let logit = match key {
        u32::MAX => f32::NAN,
        POSITIVE.. => f32::from_bits(key ^ POSITIVE),
        _ => f32::from_bits(!key),
    };
    Candidate { id, logit }
}
