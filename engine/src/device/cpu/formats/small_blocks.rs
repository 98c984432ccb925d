//! Formats of 32 columns a block: `crate::tensor_type::small_blocks` in panels.

#![allow(clippy::needless_range_loop)] // see `Format`

use super::{Format, add_bit, affine, byte, halves, scaled};
use crate::device::cpu::packed::{PANEL, PanelColumn};
use crate::device::cpu::simd::Lanes;
use crate::tensor_type::small_blocks::{IQ4_NL_LEVELS, MXFP4_LEVELS, mxfp4_scale};

pub(in crate::device::cpu) struct Q4_0;
pub(in crate::device::cpu) struct Q4_1;
pub(in crate::device::cpu) struct Q5_0;
pub(in crate::device::cpu) struct Q5_1;
pub(in crate::device::cpu) struct Q8_0;
pub(in crate::device::cpu) struct Iq4Nl;
pub(in crate::device::cpu) struct Mxfp4;

/// Column `k` of paired quanta from stored byte `first` on.
#[inline(always)]
fn paired_nibbles(block: &[u8], first: usize, k: usize) -> [u8; PANEL] {
    let quanta = byte(block, first + k / 2);
    let mut out = [0; PANEL];
    for i in 0..PANEL {
        out[i] = (quanta[i] >> (4 * (k % 2))) & 0xf;
    }
    out
}

/// Column `k` of quanta as stored, from byte `first` on.
#[inline(always)]
fn nibbles(block: &[u8], first: usize, k: usize) -> [u8; PANEL] {
    let quanta = byte(block, first + k % 16);
    let mut out = [0; PANEL];
    for i in 0..PANEL {
        out[i] = (quanta[i] >> (4 * (k / 16))) & 0xf;
    }
    out
}

/// Column `k` of 4 bytes of fifth bits from byte `first` on, and the nibbles that follow.
#[inline(always)]
fn five_bits(block: &[u8], first: usize, k: usize) -> [u8; PANEL] {
    let mut out = nibbles(block, first + 4, k);
    add_bit(&mut out, byte(block, first + k / 8), k % 8, 16);
    out
}

/// Formats whose values are `scale · quantum + minimum`.
macro_rules! affine_format {
    ($format:ident, $bytes:literal, paired $paired:literal,
     |$block:ident| $scales:expr, |$quanta_block:ident, $k:ident| $quanta:expr) => {
        impl Format for $format {
            const COLUMNS: usize = 32;
            const GROUP: usize = 32;
            const PAIRED: usize = $paired;
            const BYTES: usize = $bytes * PANEL;
            type Scales = (PanelColumn, PanelColumn);

            #[inline(always)]
            fn scales($block: &[u8], _: usize) -> Self::Scales {
                $scales
            }

            #[inline(always)]
            fn column<L: Lanes>(scales: &Self::Scales, $quanta_block: &[u8], $k: usize) -> PanelColumn {
                affine::<L>(scales, &$quanta)
            }
        }
    };
}

/// The scale at the start of a block, and the minimum of quanta that are stored from 0.
#[inline(always)]
fn symmetric(block: &[u8], end: f32) -> (PanelColumn, PanelColumn) {
    let scale = halves(block, 0);
    let minimum = scaled(&scale, -end);
    (scale, minimum)
}

/// The scale and minimum at the start of a block.
#[inline(always)]
fn scale_and_minimum(block: &[u8]) -> (PanelColumn, PanelColumn) {
    (halves(block, 0), halves(block, 2 * PANEL))
}

affine_format!(Q4_0, 18, paired 2, |block| symmetric(block, 8.0), |block, k| paired_nibbles(block, 2, k));
affine_format!(Q4_1, 20, paired 2, |block| scale_and_minimum(block), |block, k| paired_nibbles(block, 4, k));
affine_format!(Q5_0, 22, paired 1, |block| symmetric(block, 16.0), |block, k| five_bits(block, 2, k));
affine_format!(Q5_1, 24, paired 1, |block| scale_and_minimum(block), |block, k| five_bits(block, 4, k));

/// Formats whose values are `scale · level`.
macro_rules! level_format {
    ($format:ident, $bytes:literal, |$block:ident| $scale:expr, |$lanes:ident, $level_block:ident, $k:ident| $levels:expr) => {
        impl Format for $format {
            const COLUMNS: usize = 32;
            const GROUP: usize = 32;
            const PAIRED: usize = 1;
            const BYTES: usize = $bytes * PANEL;
            type Scales = PanelColumn;

            #[inline(always)]
            fn scales($block: &[u8], _: usize) -> PanelColumn {
                $scale
            }

            #[inline(always)]
            fn column<$lanes: Lanes>(scale: &PanelColumn, $level_block: &[u8], $k: usize) -> PanelColumn {
                let levels = $levels;
                let mut out = [0.0; PANEL];
                for i in 0..PANEL {
                    out[i] = scale[i] * f32::from(levels[i]);
                }
                out
            }
        }
    };
}

/// Signed bytes.
#[inline(always)]
fn signed(bytes: &[u8; PANEL]) -> [i8; PANEL] {
    let mut out = [0; PANEL];
    for i in 0..PANEL {
        out[i] = bytes[i] as i8;
    }
    out
}

/// The scale that an exponent at the start of a block stands for.
#[inline(always)]
fn exponents(block: &[u8]) -> PanelColumn {
    let exponents = byte(block, 0);
    let mut out = [0.0; PANEL];
    for i in 0..PANEL {
        out[i] = mxfp4_scale(exponents[i]);
    }
    out
}

level_format!(Q8_0, 34, |block| halves(block, 0), |L, block, k| signed(byte(block, 2 + k)));
level_format!(Iq4Nl, 18, |block| halves(block, 0), |L, block, k| L::look_up(
    &nibbles(block, 2, k),
    &IQ4_NL_LEVELS
));
level_format!(Mxfp4, 17, |block| exponents(block), |L, block, k| L::look_up(
    &nibbles(block, 1, k),
    &MXFP4_LEVELS
));
