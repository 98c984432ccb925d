//! Storage formats of weights: which exist, how many bytes a row takes, and how a row becomes `f32`.
//!
//! Formats are ggml's. A quantised row is a run of blocks; a block holds [`TensorType::block_elements`]
//! values in [`TensorType::block_bytes`] bytes. [`TensorType::dequantize`] is the definition every kernel
//! is compared with, written for reading rather than speed.

use half::{bf16, f16};

/// A weight's storage format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// IEEE single precision, little-endian.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 32 values: an f16 scale `d`, then 16 bytes of nibbles (low nibbles are values 0–15, high ones
    /// 16–31); value = d · (q − 8).
    Q4_0,
    /// 32 values: f16 scale `d`, f16 minimum `m`, then 16 bytes of nibbles as in Q4_0; value = d · q + m.
    Q4_1,
    /// 32 values: f16 scale `d`, then 32 signed bytes; value = d · q.
    Q8_0,
}

impl TensorType {
    /// Every supported format.
    pub const ALL: [TensorType; 6] = [
        TensorType::F32,
        TensorType::F16,
        TensorType::Bf16,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q8_0,
    ];

    /// The format with this ggml type number, if it is supported.
    pub fn from_ggml(number: u32) -> Option<TensorType> {
        Self::ALL.into_iter().find(|format| format.ggml_number() == number)
    }

    /// ggml's number for the format, as stored in GGUF files.
    pub fn ggml_number(self) -> u32 {
        match self {
            TensorType::F32 => 0,
            TensorType::F16 => 1,
            TensorType::Q4_0 => 2,
            TensorType::Q4_1 => 3,
            TensorType::Q8_0 => 8,
            TensorType::Bf16 => 30,
        }
    }

    /// ggml's name for the format.
    pub fn name(self) -> &'static str {
        match self {
            TensorType::F32 => "F32",
            TensorType::F16 => "F16",
            TensorType::Bf16 => "BF16",
            TensorType::Q4_0 => "Q4_0",
            TensorType::Q4_1 => "Q4_1",
            TensorType::Q8_0 => "Q8_0",
        }
    }

    /// Values in one block; a row's length is a multiple of it.
    pub fn block_elements(self) -> usize {
        match self {
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => 1,
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q8_0 => 32,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            TensorType::F32 => 4,
            TensorType::F16 | TensorType::Bf16 => 2,
            TensorType::Q4_0 => 18,
            TensorType::Q4_1 => 20,
            TensorType::Q8_0 => 34,
        }
    }

    /// Bytes of a row of `columns` values; `None` if `columns` is no multiple of the block or the size
    /// overflows.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        columns
            .is_multiple_of(self.block_elements())
            .then(|| (columns / self.block_elements()).checked_mul(self.block_bytes()))?
    }

    /// Writes the values of `bytes` (whole blocks) to `out`.
    ///
    /// # Panics
    /// If the lengths do not describe the same number of whole blocks.
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        let (elements, size) = (self.block_elements(), self.block_bytes());
        assert_eq!(bytes.len() % size, 0, "{} bytes are no whole {} blocks", bytes.len(), self.name());
        assert_eq!(bytes.len() / size * elements, out.len(), "output length for {}", self.name());
        for (block, out) in bytes.chunks_exact(size).zip(out.chunks_exact_mut(elements)) {
            match self {
                TensorType::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
                TensorType::F16 => out[0] = half_at(block, 0),
                TensorType::Bf16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
                TensorType::Q4_0 => {
                    let scale = half_at(block, 0);
                    for (index, byte) in block[2..].iter().enumerate() {
                        out[index] = scale * (f32::from(byte & 0xf) - 8.0);
                        out[index + 16] = scale * (f32::from(byte >> 4) - 8.0);
                    }
                }
                TensorType::Q4_1 => {
                    let (scale, minimum) = (half_at(block, 0), half_at(block, 2));
                    for (index, byte) in block[4..].iter().enumerate() {
                        out[index] = scale * f32::from(byte & 0xf) + minimum;
                        out[index + 16] = scale * f32::from(byte >> 4) + minimum;
                    }
                }
                TensorType::Q8_0 => {
                    let scale = half_at(block, 0);
                    for (out, byte) in out.iter_mut().zip(&block[2..]) {
                        *out = scale * f32::from(*byte as i8);
                    }
                }
            }
        }
    }

    /// The bytes that store `values` (whole blocks), rounded as ggml's reference does it. For making test
    /// weights: slow, and no better than ggml at choosing scales.
    ///
    /// # Panics
    /// If the values are no whole number of blocks.
    pub fn quantize(self, values: &[f32]) -> Vec<u8> {
        let elements = self.block_elements();
        assert_eq!(values.len() % elements, 0, "{} values are no whole {} blocks", values.len(), self.name());
        let mut out = Vec::with_capacity(values.len() / elements * self.block_bytes());
        for block in values.chunks_exact(elements) {
            match self {
                TensorType::F32 => out.extend(block[0].to_le_bytes()),
                TensorType::F16 => out.extend(f16::from_f32(block[0]).to_le_bytes()),
                TensorType::Bf16 => out.extend(bf16::from_f32(block[0]).to_le_bytes()),
                TensorType::Q4_0 => {
                    // The value furthest from zero becomes -8, the only end of the range that has no opposite.
                    let furthest = furthest_from_zero(block);
                    let scale = furthest / -8.0;
                    out.extend(f16::from_f32(scale).to_le_bytes());
                    out.extend(nibbles(block, |value| value * inverse(scale) + 8.5));
                }
                TensorType::Q4_1 => {
                    let minimum = block.iter().copied().fold(f32::INFINITY, f32::min);
                    let maximum = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let scale = (maximum - minimum) / 15.0;
                    out.extend(f16::from_f32(scale).to_le_bytes());
                    out.extend(f16::from_f32(minimum).to_le_bytes());
                    out.extend(nibbles(block, |value| (value - minimum) * inverse(scale) + 0.5));
                }
                TensorType::Q8_0 => {
                    let scale = furthest_from_zero(block).abs() / 127.0;
                    out.extend(f16::from_f32(scale).to_le_bytes());
                    out.extend(block.iter().map(|value| (value * inverse(scale)).round() as i8 as u8));
                }
            }
        }
        out
    }
}

fn furthest_from_zero(values: &[f32]) -> f32 {
    values
        .iter()
        .copied()
        .fold(0.0, |furthest: f32, value| if value.abs() > furthest.abs() { value } else { furthest })
}

/// 1 / scale, or 0 for a block of zeros.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Two values a byte: value i in the low half of byte i, value i + 16 in the high half. Values are cut off
/// at 0 and 15 and towards zero, so `code` adds what rounding needs.
fn nibbles(block: &[f32], code: impl Fn(f32) -> f32) -> impl Iterator<Item = u8> {
    let code = move |value: &f32| (code(*value) as u8).min(15);
    let (low, high) = block.split_at(block.len() / 2);
    low.iter().zip(high).map(move |(low, high)| code(low) | code(high) << 4)
}

fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Half of the largest gap between two neighbouring codes, for values in −1..=1, with room for the f16
    /// rounding of the scale.
    fn tolerance(format: TensorType) -> f32 {
        match format {
            TensorType::F32 => 0.0,
            TensorType::F16 => 0.000_5,
            TensorType::Bf16 => 0.004,
            // The positive end is cut off at 7 · scale, so up to a whole step is lost there.
            TensorType::Q4_0 => 1.0 / 8.0 + 0.002,
            TensorType::Q4_1 => 1.0 / 15.0 + 0.002,
            TensorType::Q8_0 => 0.5 / 127.0 + 0.000_5,
        }
    }

    proptest! {
        #[test]
        fn quantised_values_come_back_within_half_a_step(values in prop::collection::vec(-1f32..=1.0, 64)) {
            for format in TensorType::ALL {
                let bytes = format.quantize(&values);
                prop_assert_eq!(bytes.len(), format.row_bytes(64).unwrap());
                let mut back = vec![f32::NAN; 64];
                format.dequantize(&bytes, &mut back);
                for (value, back) in values.iter().zip(&back) {
                    prop_assert!((value - back).abs() <= tolerance(format), "{}: {value} {back}", format.name());
                }
            }
        }
    }

    /// A row whose values need no rounding, so every implementation must give these bytes.
    #[test]
    fn blocks_have_the_documented_layout() {
        let half = |value: f32| f16::from_f32(value).to_le_bytes();
        let ramp: Vec<f32> = (0..32).map(|index| (index % 16) as f32 - 8.0).collect();
        let nibbles: Vec<u8> = (0..16).map(|index| index | index << 4).collect();
        assert_eq!(TensorType::Q4_0.quantize(&ramp), [&half(1.0)[..], &nibbles].concat());
        assert_eq!(TensorType::Q4_1.quantize(&ramp), [&half(1.0)[..], &half(-8.0), &nibbles].concat());

        let mut wide: Vec<f32> = (0..32).map(|index| index as f32).collect();
        wide[31] = -127.0;
        let codes: Vec<u8> = wide.iter().map(|value| *value as i8 as u8).collect();
        assert_eq!(TensorType::Q8_0.quantize(&wide), [&half(1.0)[..], &codes].concat());
    }

    #[test]
    fn blocks_of_zeros_stay_zeros() {
        for format in TensorType::ALL {
            let mut back = [f32::NAN; 32];
            format.dequantize(&format.quantize(&[0.0; 32]), &mut back);
            assert_eq!(back, [0.0; 32], "{}", format.name());
        }
    }

    #[test]
    fn rows_of_partial_blocks_have_no_size() {
        assert_eq!(TensorType::Q8_0.row_bytes(33), None);
        assert_eq!(TensorType::Q8_0.row_bytes(64), Some(68));
        assert_eq!(TensorType::F32.row_bytes(usize::MAX), None);
    }
}
