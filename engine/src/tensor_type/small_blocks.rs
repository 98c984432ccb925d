//! Formats of 32 values a block.
//!
//! A block begins with its scale, perhaps a minimum and perhaps fifth bits; 4-bit quanta follow two a byte,
//! value i in the low half of byte i and value i + 16 in the high half.

use half::f16;

use super::{TensorType, furthest_from_zero, half_at, inverse};

/// What the 16 codes of IQ4_NL stand for.
pub(crate) const IQ4_NL_LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// What the 16 codes of MXFP4 stand for, times two.
pub(crate) const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of `2^(exponent − 127)`, the factor of [`MXFP4_LEVELS`].
#[inline(always)]
pub(crate) fn mxfp4_scale(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    // The smallest two are subnormal.
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
}

fn nibble(bytes: &[u8], index: usize) -> u8 {
    (bytes[index % 16] >> (4 * (index / 16))) & 0xf
}

/// A nibble and a fifth bit.
fn five_bits(fifths: &[u8], nibbles: &[u8], index: usize) -> u8 {
    nibble(nibbles, index) | ((fifths[index / 8] >> (index % 8)) & 1) << 4
}

/// Writes the values of a block.
pub(super) fn dequantize(format: TensorType, block: &[u8], out: &mut [f32]) {
    let value: &dyn Fn(usize) -> f32 = match format {
        TensorType::Q4_0 => &|i| half_at(block, 0) * (f32::from(nibble(&block[2..], i)) - 8.0),
        TensorType::Q4_1 => &|i| half_at(block, 0) * f32::from(nibble(&block[4..], i)) + half_at(block, 2),
        TensorType::Q5_0 => {
            &|i| half_at(block, 0) * (f32::from(five_bits(&block[2..], &block[6..], i)) - 16.0)
        }
        TensorType::Q5_1 => {
            &|i| half_at(block, 0) * f32::from(five_bits(&block[4..], &block[8..], i)) + half_at(block, 2)
        }
        TensorType::Q8_0 => &|i| half_at(block, 0) * f32::from(block[2 + i] as i8),
        TensorType::IQ4_NL => {
            &|i| half_at(block, 0) * f32::from(IQ4_NL_LEVELS[usize::from(nibble(&block[2..], i))])
        }
        TensorType::MXFP4 => {
            &|i| mxfp4_scale(block[0]) * f32::from(MXFP4_LEVELS[usize::from(nibble(&block[1..], i))])
        }
        other => unreachable!("{other:?} has no blocks of 32 values"),
    };
    for (index, out) in out.iter_mut().enumerate() {
        *out = value(index);
    }
}

/// Appends the bytes of a block.
pub(super) fn quantize(format: TensorType, values: &[f32], out: &mut Vec<u8>) {
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    let minimum = values.iter().copied().fold(f32::INFINITY, f32::min);
    let maximum = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let furthest = furthest_from_zero(values);
    // Codes are cut off towards zero and at the largest, so each adds what rounding needs.
    let codes = |largest: u8, code: &dyn Fn(f32) -> f32| -> Vec<u8> {
        values.iter().map(|value| (code(*value) as u8).min(largest)).collect()
    };
    let nearest = |levels: &[i8; 16], scale: f32| -> Vec<u8> {
        let distance = |value: f32, level: &i8| (value * inverse(scale) - f32::from(*level)).abs();
        let best = |value: f32| {
            (0..16u8).min_by(|a, b| {
                let [a, b] = [a, b].map(|code| distance(value, &levels[usize::from(*code)]));
                a.total_cmp(&b)
            })
        };
        values.iter().filter_map(|value| best(*value)).collect()
    };
    let codes = match format {
        TensorType::Q4_0 | TensorType::Q5_0 => {
            // The value furthest from zero becomes the end of the range that has no opposite.
            let end = if format == TensorType::Q4_0 { 8 } else { 16 };
            let scale = furthest / -f32::from(end);
            out.extend(half(scale));
            codes(2 * end - 1, &|value| value * inverse(scale) + f32::from(end) + 0.5)
        }
        TensorType::Q4_1 | TensorType::Q5_1 => {
            let largest = if format == TensorType::Q4_1 { 15 } else { 31 };
            let scale = (maximum - minimum) / f32::from(largest);
            out.extend([half(scale), half(minimum)].concat());
            codes(largest, &|value| (value - minimum) * inverse(scale) + 0.5)
        }
        TensorType::Q8_0 => {
            let scale = furthest.abs() / 127.0;
            out.extend(half(scale));
            out.extend(values.iter().map(|value| (value * inverse(scale)).round() as i8 as u8));
            return;
        }
        TensorType::IQ4_NL => {
            let scale = furthest / -127.0;
            out.extend(half(scale));
            nearest(&IQ4_NL_LEVELS, scale)
        }
        TensorType::MXFP4 => {
            let exponent =
                if furthest == 0.0 { 0 } else { (furthest.abs().log2().floor() - 2.0 + 127.0) as u8 };
            out.push(exponent);
            nearest(&MXFP4_LEVELS, mxfp4_scale(exponent))
        }
        other => unreachable!("{other:?} has no blocks of 32 values"),
    };
    if matches!(format, TensorType::Q5_0 | TensorType::Q5_1) {
        out.extend(
            codes.chunks(8).map(|eight| eight.iter().rev().fold(0, |byte, code| byte << 1 | code >> 4)),
        );
    }
    out.extend((0..16).map(|i| codes[i] & 0xf | (codes[i + 16] & 0xf) << 4));
}
