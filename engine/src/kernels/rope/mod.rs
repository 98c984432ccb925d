//! The `rope` op: a thread for each pair, with cosines and sines from the host.

use crate::device::wgpu::shader::{Access, ELEMENTS, Kernel, Variant, Work, stride};
use crate::program::{RopeStyle, Rotation};

pub mod reference;
#[cfg(test)]
mod tests;

/// The cosines and sines of one kind of rotation, shared by all ops that have it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RopeTable {
    rotation: Rotation,
    frequencies: Vec<f32>,
}

impl RopeTable {
    /// For a rotation and the values of its factors, if it has any.
    pub(crate) fn new(rotation: Rotation, factors: Option<&[f32]>) -> RopeTable {
        RopeTable { rotation, frequencies: reference::frequencies(&rotation, factors) }
    }

    /// Whether it is the table of an op with this rotation.
    pub(crate) fn serves(&self, rotation: &Rotation) -> bool {
        self.rotation == *rotation
    }

    /// Words it takes for one row.
    pub(crate) fn words(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Appends the pairs of cosine and sine of every position.
    pub(crate) fn append(&self, positions: &[u32], words: &mut Vec<u32>) {
        for position in positions {
            for frequency in &self.frequencies {
                let (sine, cosine) = (*position as f32 * frequency).sin_cos();
                words.extend([cosine, sine].map(|value| (value * self.rotation.magnitude).to_bits()));
            }
        }
    }
}

/// The dispatch. Binds the values.
pub(crate) fn variants(num_heads: usize, rotary: usize) -> Vec<Variant> {
    let kernel =
        Kernel::new("rope", &[Access::Write], &[("WORKGROUP", ELEMENTS)], &[include_str!("rope.wgsl")]);
    let per_row = (num_heads * rotary / 2) as u64;
    Variant::only(kernel, Work::Elements { per_row, workgroup: ELEMENTS as u64 })
}

/// Parameters for a table that has `words_before` words of other tables before it.
pub(crate) fn params(
    num_heads: usize,
    head_size: usize,
    rotary: usize,
    style: RopeStyle,
    words_before: usize,
) -> [u32; 7] {
    let pairs = rotary / 2;
    let (partner, next) = match style {
        RopeStyle::Pairs => (1, 2),
        RopeStyle::Halves => (pairs, 1),
    };
    [num_heads, head_size, pairs, stride(num_heads * head_size), words_before, partner, next]
        .map(|value| value as u32)
}
