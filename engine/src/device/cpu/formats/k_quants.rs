//! Formats of 256 columns a block: `crate::tensor_type::k_quants` in panels.

#![allow(clippy::needless_range_loop)] // see `Format`

use super::{Format, add_bit, affine, byte, halves};
use crate::device::cpu::packed::{PANEL, PanelColumn};
use crate::device::cpu::simd::Lanes;

pub(in crate::device::cpu) struct Q2K;
pub(in crate::device::cpu) struct Q3K;
pub(in crate::device::cpu) struct Q4K;
pub(in crate::device::cpu) struct Q5K;
pub(in crate::device::cpu) struct Q6K;

/// The bits of a stored byte from `shift` on.
#[inline(always)]
fn bits(block: &[u8], at: usize, shift: usize, mask: u8) -> [u8; PANEL] {
    let bytes = byte(block, at);
    let mut out = [0; PANEL];
    for i in 0..PANEL {
        out[i] = (bytes[i] >> shift) & mask;
    }
    out
}

/// Column `k` of 2-bit quanta from stored byte `first` on.
#[inline(always)]
fn two_bits(block: &[u8], first: usize, k: usize) -> [u8; PANEL] {
    bits(block, first + k / 128 * 32 + k % 32, 2 * (k / 32 % 4), 3)
}

/// Column `k` of single bits from stored byte `first` on, worth `value`, above the `low` ones.
#[inline(always)]
fn with_bit(mut low: [u8; PANEL], block: &[u8], first: usize, k: usize, value: u8) -> [u8; PANEL] {
    add_bit(&mut low, byte(block, first + k % 32), k / 32, value);
    low
}

/// Column `k` of the quanta of Q4_K and Q5_K from stored byte `first` on.
#[inline(always)]
fn four_bits(block: &[u8], first: usize, k: usize) -> [u8; PANEL] {
    bits(block, first + k / 64 * 32 + k % 32, 4 * (k / 32 % 2), 0xf)
}

/// `high` above the `low` bits.
#[inline(always)]
fn joined(low: [u8; PANEL], high: [u8; PANEL], shift: usize) -> [u8; PANEL] {
    let mut out = low;
    for i in 0..PANEL {
        out[i] |= high[i] << shift;
    }
    out
}

/// `sign · half · code`, row by row.
#[inline(always)]
fn times(halves: &PanelColumn, sign: f32, codes: &[u8; PANEL]) -> PanelColumn {
    let mut out = [0.0; PANEL];
    for i in 0..PANEL {
        out[i] = halves[i] * (sign * f32::from(codes[i]));
    }
    out
}

/// `half · code`, and the minimum of signed quanta that are stored from 0 and have `end` for zero.
#[inline(always)]
fn symmetric(halves: &PanelColumn, codes: &[i8; PANEL], end: f32) -> (PanelColumn, PanelColumn) {
    let (mut scale, mut minimum) = ([0.0; PANEL], [0.0; PANEL]);
    for i in 0..PANEL {
        scale[i] = halves[i] * f32::from(codes[i]);
        minimum[i] = -end * scale[i];
    }
    (scale, minimum)
}

/// Scales and minimums of group `g` in Q4_K and Q5_K.
#[inline(always)]
fn scales_of_32(block: &[u8], g: usize) -> (PanelColumn, PanelColumn) {
    const FIRST: usize = 4;
    let (scale, minimum) = if g < 4 {
        (bits(block, FIRST + g, 0, 63), bits(block, FIRST + g + 4, 0, 63))
    } else {
        let scale = joined(bits(block, FIRST + g + 4, 0, 0xf), bits(block, FIRST + g - 4, 6, 3), 4);
        let minimum = joined(bits(block, FIRST + g + 4, 4, 0xf), bits(block, FIRST + g, 6, 3), 4);
        (scale, minimum)
    };
    (times(&halves(block, 0), 1.0, &scale), times(&halves(block, 2 * PANEL), -1.0, &minimum))
}

/// All are `scale · quantum + minimum`, quanta stored from 0.
macro_rules! k_format {
    ($format:ident, $bytes:literal, groups of $group:literal,
     |$block:ident, $g:ident| $scales:expr, |$quanta_block:ident, $k:ident| $quanta:expr) => {
        impl Format for $format {
            const COLUMNS: usize = 256;
            const GROUP: usize = $group;
            const PAIRED: usize = 1;
            const BYTES: usize = $bytes * PANEL;
            type Scales = (PanelColumn, PanelColumn);

            #[inline(always)]
            fn scales($block: &[u8], $g: usize) -> Self::Scales {
                $scales
            }

            #[inline(always)]
            fn column<L: Lanes>(scales: &Self::Scales, $quanta_block: &[u8], $k: usize) -> PanelColumn {
                affine::<L>(scales, &$quanta)
            }
        }
    };
}

/// Scales and minimums of group `g` in Q2_K.
#[inline(always)]
fn q2_scales(block: &[u8], g: usize) -> (PanelColumn, PanelColumn) {
    let scale = times(&halves(block, 80 * PANEL), 1.0, &bits(block, g, 0, 0xf));
    let minimum = times(&halves(block, 82 * PANEL), -1.0, &bits(block, g, 4, 0xf));
    (scale, minimum)
}

/// Scales of group `g` in Q3_K.
#[inline(always)]
fn q3_scales(block: &[u8], g: usize) -> (PanelColumn, PanelColumn) {
    let low = bits(block, 96 + g % 8, 4 * (g / 8), 0xf);
    let codes = joined(low, bits(block, 104 + g % 4, 2 * (g / 4), 3), 4);
    let mut signed = [0; PANEL];
    for i in 0..PANEL {
        signed[i] = codes[i] as i8 - 32;
    }
    symmetric(&halves(block, 108 * PANEL), &signed, 4.0)
}

/// Scales of group `g` in Q6_K.
#[inline(always)]
fn q6_scales(block: &[u8], g: usize) -> (PanelColumn, PanelColumn) {
    let codes = byte(block, 192 + g);
    let mut signed = [0; PANEL];
    for i in 0..PANEL {
        signed[i] = codes[i] as i8;
    }
    symmetric(&halves(block, 208 * PANEL), &signed, 32.0)
}

k_format!(Q2K, 84, groups of 16, |block, g| q2_scales(block, g), |block, k| two_bits(block, 16, k));
k_format!(Q3K, 110, groups of 16, |block, g| q3_scales(block, g), |block, k| {
    with_bit(two_bits(block, 32, k), block, 0, k, 4)
});
k_format!(Q4K, 144, groups of 32, |block, g| scales_of_32(block, g), |block, k| four_bits(block, 16, k));
k_format!(Q5K, 176, groups of 32, |block, g| scales_of_32(block, g), |block, k| {
    with_bit(four_bits(block, 48, k), block, 16, k, 16)
});
k_format!(Q6K, 210, groups of 16, |block, g| q6_scales(block, g), |block, k| {
    let low = bits(block, k / 128 * 64 + k % 64, 4 * (k / 64 % 2), 0xf);
    joined(low, two_bits(block, 128, k), 4)
});
