//! Formats of 256 values a block, in groups that have small integer scales of their own.
//!
//! The small functions say where the bits of a value or of a group's scale lie in their field; both directions
//! and the packing for a device go by them.

use half::f16;

use super::{TensorType, furthest_from_zero, half_at, inverse};

/// Byte and shift of a value's 2 bits: 32 bytes hold 128 values, 32 neighbours at the same shift.
pub(crate) fn place_of_two_bits(k: usize) -> (usize, usize) {
    (k / 128 * 32 + k % 32, 2 * (k / 32 % 4))
}

/// Byte and shift of a value's single bit: bit b of 32 bytes belongs to values 32b and following.
pub(crate) fn place_of_bit(k: usize) -> (usize, usize) {
    (k % 32, k / 32)
}

/// Byte and shift of a value's 4 bits in Q4_K and Q5_K: 32 bytes hold 64 values.
pub(crate) fn place_of_nibble(k: usize) -> (usize, usize) {
    (k / 64 * 32 + k % 32, 4 * (k / 32 % 2))
}

/// Byte and shift of a value's low 4 bits in Q6_K: 64 bytes hold 128 values.
pub(crate) fn place_of_q6_nibble(k: usize) -> (usize, usize) {
    (k / 128 * 64 + k % 64, 4 * (k / 64 % 2))
}

/// The bits at a place, `mask` wide.
pub(crate) fn bits(bytes: &[u8], (byte, shift): (usize, usize), mask: u8) -> u8 {
    (bytes[byte] >> shift) & mask
}

/// Scale and minimum, 6 bits each, of group `g` of 8 in the 12 bytes of Q4_K and Q5_K.
pub(crate) fn scale_and_minimum(bytes: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (bytes[g] & 63, bytes[g + 4] & 63)
    } else {
        let (low, scale_top, minimum_top) = (bytes[g + 4], bytes[g - 4] >> 6, bytes[g] >> 6);
        (low & 0xf | scale_top << 4, low >> 4 | minimum_top << 4)
    }
}

/// Scale, 6 bits with 32 for zero, of group `g` of 16 in the 12 bytes of Q3_K.
pub(crate) fn six_bit_scale(bytes: &[u8], g: usize) -> u8 {
    bits(bytes, (g % 8, 4 * (g / 8)), 0xf) | bits(bytes, (8 + g % 4, 2 * (g / 4)), 3) << 4
}

/// Writes the values of a block.
pub(super) fn dequantize(format: TensorType, block: &[u8], out: &mut [f32]) {
    let value: &dyn Fn(usize) -> f32 = match format {
        TensorType::Q2_K => &|k| {
            let scale = block[k / 16];
            let quantum = bits(&block[16..80], place_of_two_bits(k), 3);
            half_at(block, 80) * f32::from(scale & 0xf) * f32::from(quantum)
                - half_at(block, 82) * f32::from(scale >> 4)
        },
        TensorType::Q3_K => &|k| {
            let (tops, quanta, scales) = (&block[..32], &block[32..96], &block[96..108]);
            let quantum = bits(quanta, place_of_two_bits(k), 3) | bits(tops, place_of_bit(k), 1) << 2;
            let scale = f32::from(six_bit_scale(scales, k / 16)) - 32.0;
            half_at(block, 108) * scale * (f32::from(quantum) - 4.0)
        },
        TensorType::Q4_K => &|k| {
            let (scale, minimum) = scale_and_minimum(&block[4..16], k / 32);
            let quantum = bits(&block[16..], place_of_nibble(k), 0xf);
            half_at(block, 0) * f32::from(scale) * f32::from(quantum) - half_at(block, 2) * f32::from(minimum)
        },
        TensorType::Q5_K => &|k| {
            let (scale, minimum) = scale_and_minimum(&block[4..16], k / 32);
            let top = bits(&block[16..48], place_of_bit(k), 1);
            let quantum = bits(&block[48..], place_of_nibble(k), 0xf) | top << 4;
            half_at(block, 0) * f32::from(scale) * f32::from(quantum) - half_at(block, 2) * f32::from(minimum)
        },
        TensorType::Q6_K => &|k| {
            let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
            let quantum = bits(low, place_of_q6_nibble(k), 0xf) | bits(high, place_of_two_bits(k), 3) << 4;
            half_at(block, 208) * f32::from(scales[k / 16] as i8) * (f32::from(quantum) - 32.0)
        },
        other => unreachable!("{other:?} has no blocks of 256 values"),
    };
    for (k, out) in out.iter_mut().enumerate() {
        *out = value(k);
    }
}

/// Groups of a block before their bits are packed: for each a scale and perhaps a minimum, and the quanta.
struct Groups {
    scale: f32,
    minimum: f32,
    scales: Vec<i32>,
    minimums: Vec<i32>,
    quanta: Vec<u8>,
}

/// Signed quanta −`end`..`end`, stored from 0; signed scales down to −`scale_end`. The furthest value of
/// each becomes the end of the range that has no opposite.
fn symmetric(values: &[f32], end: i32, scale_end: i32) -> Groups {
    let ideal: Vec<f32> = values.chunks(16).map(|group| furthest_from_zero(group) / -(end as f32)).collect();
    let scale = f16::from_f32(furthest_from_zero(&ideal) / -(scale_end as f32)).to_f32();
    let round = |value: f32, end: i32| (value.round() as i32).clamp(-end, end - 1);
    let scales: Vec<i32> = ideal.iter().map(|ideal| round(ideal * inverse(scale), scale_end)).collect();
    let quantum = |(k, value): (usize, &f32)| {
        let inverse = inverse(scale * scales[k / 16] as f32);
        (round(value * inverse, end) + end) as u8
    };
    let quanta = values.iter().enumerate().map(quantum).collect();
    Groups { scale, minimum: 0.0, scales, minimums: Vec::new(), quanta }
}

/// Quanta 0..=`largest` above a minimum, in groups of `group`; scales and minimums up to `scale_largest`.
fn with_minimum(values: &[f32], group: usize, largest: i32, scale_largest: i32) -> Groups {
    let low = |group: &[f32]| group.iter().copied().fold(0.0, f32::min);
    let high = |group: &[f32]| group.iter().copied().fold(0.0, f32::max);
    let minimums: Vec<f32> = values.chunks(group).map(|group| -low(group)).collect();
    let scales: Vec<f32> =
        values.chunks(group).map(|group| (high(group) - low(group)) / largest as f32).collect();
    let shared = |all: &[f32]| f16::from_f32(high(all) / scale_largest as f32).to_f32();
    let (scale, minimum) = (shared(&scales), shared(&minimums));
    let round = |value: f32, largest: i32| (value.round() as i32).clamp(0, largest);
    let [scales, minimums] = [(scales, scale), (minimums, minimum)].map(|(all, shared)| {
        all.iter().map(|value| round(value * inverse(shared), scale_largest)).collect::<Vec<i32>>()
    });
    let quantum = |(k, value): (usize, &f32)| {
        let g = k / group;
        round((value + minimum * minimums[g] as f32) * inverse(scale * scales[g] as f32), largest) as u8
    };
    let quanta = values.iter().enumerate().map(quantum).collect();
    Groups { scale, minimum, scales, minimums, quanta }
}

/// Appends the bytes of a block.
pub(super) fn quantize(format: TensorType, values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + format.block_bytes(), 0);
    let block = &mut out[start..];
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    let put = |field: &mut [u8], quanta: &[u8], place: fn(usize) -> (usize, usize), shift: u8, mask: u8| {
        for (k, quantum) in quanta.iter().enumerate() {
            let (byte, to) = place(k);
            field[byte] |= ((quantum >> shift) & mask) << to;
        }
    };
    match format {
        TensorType::Q2_K => {
            let groups = with_minimum(values, 16, 3, 15);
            for (byte, (scale, minimum)) in block.iter_mut().zip(groups.scales.iter().zip(&groups.minimums)) {
                *byte = (scale | minimum << 4) as u8;
            }
            put(&mut block[16..80], &groups.quanta, place_of_two_bits, 0, 3);
            block[80..82].copy_from_slice(&half(groups.scale));
            block[82..84].copy_from_slice(&half(groups.minimum));
        }
        TensorType::Q3_K => {
            let groups = symmetric(values, 4, 32);
            put(&mut block[..32], &groups.quanta, place_of_bit, 2, 1);
            put(&mut block[32..96], &groups.quanta, place_of_two_bits, 0, 3);
            for (g, scale) in groups.scales.iter().enumerate() {
                let code = (scale + 32) as u8;
                block[96 + g % 8] |= (code & 0xf) << (4 * (g / 8));
                block[104 + g % 4] |= (code >> 4) << (2 * (g / 4));
            }
            block[108..110].copy_from_slice(&half(groups.scale));
        }
        TensorType::Q4_K | TensorType::Q5_K => {
            let five = format == TensorType::Q5_K;
            let groups = with_minimum(values, 32, if five { 31 } else { 15 }, 63);
            block[..2].copy_from_slice(&half(groups.scale));
            block[2..4].copy_from_slice(&half(groups.minimum));
            for (g, (scale, minimum)) in groups.scales.iter().zip(&groups.minimums).enumerate() {
                let (scale, minimum) = (*scale as u8, *minimum as u8);
                let scales = &mut block[4..16];
                if g < 4 {
                    scales[g] |= scale;
                    scales[g + 4] |= minimum;
                } else {
                    scales[g + 4] |= scale & 0xf | (minimum & 0xf) << 4;
                    scales[g - 4] |= scale >> 4 << 6;
                    scales[g] |= minimum >> 4 << 6;
                }
            }
            if five {
                put(&mut block[16..48], &groups.quanta, place_of_bit, 4, 1);
            }
            put(&mut block[if five { 48 } else { 16 }..], &groups.quanta, place_of_nibble, 0, 0xf);
        }
        TensorType::Q6_K => {
            let groups = symmetric(values, 32, 128);
            put(&mut block[..128], &groups.quanta, place_of_q6_nibble, 0, 0xf);
            put(&mut block[128..192], &groups.quanta, place_of_two_bits, 4, 3);
            for (byte, scale) in block[192..208].iter_mut().zip(&groups.scales) {
                *byte = *scale as i8 as u8;
            }
            block[208..].copy_from_slice(&half(groups.scale));
        }
        other => unreachable!("{other:?} has no blocks of 256 values"),
    }
}
