//! How each storage format becomes a column of a panel, as types that the compiler makes loops of.
//!
//! Invariant: [`Format::column`] yields exactly the values of [`TensorType::dequantize`]. (Products of a half and
//! the bits of quanta and scales are exact in `f32`, so it does not matter whether a level fuses the addition.)
//!
//! [`TensorType::dequantize`]: crate::tensor_type::TensorType::dequantize

#![allow(clippy::needless_range_loop)] // see `Format`

use super::packed::{PANEL, PanelColumn};
use super::simd::{Lanes, half_to_f32};

mod k_quants;
mod small_blocks;

pub(super) use self::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub(super) use self::small_blocks::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};

/// A format the compiler knows, so that each has loops of its own.
///
/// Loops over a panel's rows are written out with indices: iterator adaptors and closures over whole panels
/// may stay functions of their own, compiled without the level's instructions.
pub(in crate::device::cpu) trait Format {
    /// Columns of a block.
    const COLUMNS: usize;
    /// Columns of a group, which share their scales.
    const GROUP: usize;
    /// Neighbouring columns that share their bytes.
    const PAIRED: usize;
    /// Bytes of a packed block.
    const BYTES: usize;
    /// What the columns of a group share.
    type Scales;

    fn scales(block: &[u8], group: usize) -> Self::Scales;

    /// Column `k` of a packed block.
    fn column<L: Lanes>(scales: &Self::Scales, block: &[u8], k: usize) -> PanelColumn;
}

/// Of formats whose values stand for themselves.
pub(in crate::device::cpu) struct NoScales;

pub(in crate::device::cpu) struct F32;
pub(in crate::device::cpu) struct F16;
pub(in crate::device::cpu) struct Bf16;

/// `N` bytes at `offset`, their number known to the compiler.
#[inline(always)]
fn bytes<const N: usize>(block: &[u8], offset: usize) -> &[u8; N] {
    block[offset..].first_chunk().expect("a block has the length of its format")
}

#[inline(always)]
fn halves(block: &[u8], offset: usize) -> PanelColumn {
    let bytes: &[u8; 2 * PANEL] = bytes(block, offset);
    let mut out = [0.0; PANEL];
    for i in 0..PANEL {
        out[i] = half_to_f32(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]));
    }
    out
}

impl Format for F32 {
    const COLUMNS: usize = 1;
    const GROUP: usize = 1;
    const PAIRED: usize = 1;
    const BYTES: usize = 4 * PANEL;
    type Scales = NoScales;

    #[inline(always)]
    fn scales(_: &[u8], _: usize) -> NoScales {
        NoScales
    }

    #[inline(always)]
    fn column<L: Lanes>(_: &NoScales, block: &[u8], _: usize) -> PanelColumn {
        let bytes: &[u8; 4 * PANEL] = bytes(block, 0);
        let mut out = [0.0; PANEL];
        for i in 0..PANEL {
            out[i] = f32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]);
        }
        out
    }
}

impl Format for F16 {
    const COLUMNS: usize = 1;
    const GROUP: usize = 1;
    const PAIRED: usize = 1;
    const BYTES: usize = 2 * PANEL;
    type Scales = NoScales;

    #[inline(always)]
    fn scales(_: &[u8], _: usize) -> NoScales {
        NoScales
    }

    #[inline(always)]
    fn column<L: Lanes>(_: &NoScales, block: &[u8], _: usize) -> PanelColumn {
        halves(block, 0)
    }
}

impl Format for Bf16 {
    const COLUMNS: usize = 1;
    const GROUP: usize = 1;
    const PAIRED: usize = 1;
    const BYTES: usize = 2 * PANEL;
    type Scales = NoScales;

    #[inline(always)]
    fn scales(_: &[u8], _: usize) -> NoScales {
        NoScales
    }

    #[inline(always)]
    fn column<L: Lanes>(_: &NoScales, block: &[u8], _: usize) -> PanelColumn {
        let bytes: &[u8; 2 * PANEL] = bytes(block, 0);
        let mut out = [0.0; PANEL];
        for i in 0..PANEL {
            let half = u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
            out[i] = f32::from_bits(u32::from(half) << 16);
        }
        out
    }
}

/// The bytes at `offset` of a stored block, of all rows.
#[inline(always)]
fn byte(block: &[u8], offset: usize) -> &[u8; PANEL] {
    bytes(block, offset * PANEL)
}

/// `scale · quanta + minimum`.
#[inline(always)]
fn affine<L: Lanes>((scale, minimum): &(PanelColumn, PanelColumn), quanta: &[u8; PANEL]) -> PanelColumn {
    let mut out = [0.0; PANEL];
    for i in 0..PANEL {
        out[i] = L::mul_add(scale[i], f32::from(quanta[i]), minimum[i]);
    }
    out
}

/// Adds `value` to the quanta whose byte has bit `bit`. (A test for each byte: shifts of bytes by a count that varies
/// are blended together from three.)
#[inline(always)]
fn add_bit(quanta: &mut [u8; PANEL], bytes: &[u8; PANEL], bit: usize, value: u8) {
    let mask = 1u8 << bit;
    for i in 0..PANEL {
        quanta[i] |= if bytes[i] & mask == 0 { 0 } else { value };
    }
}

/// Each value times a factor.
#[inline(always)]
fn scaled(values: &PanelColumn, factor: f32) -> PanelColumn {
    let mut out = [0.0; PANEL];
    for i in 0..PANEL {
        out[i] = values[i] * factor;
    }
    out
}
