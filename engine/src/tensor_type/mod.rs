//! Storage formats of weights: which exist, how many bytes a row takes, and how a row becomes `f32`.
//!
//! Formats are ggml's. A quantised row is a run of blocks; a block holds [`TensorType::block_elements`]
//! values in [`TensorType::block_bytes`] bytes. [`TensorType::dequantize`] is the definition every kernel
//! is compared with, written for reading rather than speed; `small_blocks` has the formats of 32 values,
//! `k_quants` those of 256.

use half::{bf16, f16};

pub(crate) mod k_quants;
pub(crate) mod small_blocks;
#[cfg(test)]
mod tests;

/// A weight's storage format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "ggml's names")]
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
    /// 32 values: f16 scale `d`, 32 fifth bits, then nibbles as in Q4_0; value = d · (q − 16).
    Q5_0,
    /// 32 values: f16 scale `d`, f16 minimum `m`, 32 fifth bits, then nibbles; value = d · q + m.
    Q5_1,
    /// 32 values: f16 scale `d`, then 32 signed bytes; value = d · q.
    Q8_0,
    /// 256 values in groups of 16, each with a scale `s` and a minimum `n` of 4 bits; f16 `d` and `m` for
    /// all; value = d · s · q − m · n, q of 2 bits.
    Q2_K,
    /// 256 values in groups of 16, each with a signed scale `s` of 6 bits; f16 `d` for all; value =
    /// d · s · q, q of 3 bits, signed.
    Q3_K,
    /// 256 values in groups of 32, each with a scale `s` and a minimum `n` of 6 bits; f16 `d` and `m` for
    /// all; value = d · s · q − m · n, q of 4 bits.
    Q4_K,
    /// As Q4_K, q of 5 bits.
    Q5_K,
    /// 256 values in groups of 16, each with a signed scale `s` of 8 bits; f16 `d` for all; value =
    /// d · s · q, q of 6 bits, signed.
    Q6_K,
    /// 32 values: f16 scale `d`, then nibbles as in Q4_0 that number the levels of
    /// [`small_blocks::IQ4_NL_LEVELS`]; value = d · level.
    IQ4_NL,
    /// 32 values: a byte of exponent, then nibbles as in Q4_0, each a float of 1 sign, 2 exponent and 1
    /// mantissa bits.
    MXFP4,
}

/// Number in files, name, values and bytes of a block.
type Row = (TensorType, u32, &'static str, usize, usize);

const ROWS: [Row; TensorType::ALL.len()] = [
    (TensorType::F32, 0, "F32", 1, 4),
    (TensorType::F16, 1, "F16", 1, 2),
    (TensorType::Bf16, 30, "BF16", 1, 2),
    (TensorType::Q4_0, 2, "Q4_0", 32, 18),
    (TensorType::Q4_1, 3, "Q4_1", 32, 20),
    (TensorType::Q5_0, 6, "Q5_0", 32, 22),
    (TensorType::Q5_1, 7, "Q5_1", 32, 24),
    (TensorType::Q8_0, 8, "Q8_0", 32, 34),
    (TensorType::Q2_K, 10, "Q2_K", 256, 84),
    (TensorType::Q3_K, 11, "Q3_K", 256, 110),
    (TensorType::Q4_K, 12, "Q4_K", 256, 144),
    (TensorType::Q5_K, 13, "Q5_K", 256, 176),
    (TensorType::Q6_K, 14, "Q6_K", 256, 210),
    (TensorType::IQ4_NL, 20, "IQ4_NL", 32, 18),
    (TensorType::MXFP4, 39, "MXFP4", 32, 17),
];

/// Most bytes of any format's block.
pub(crate) const MAX_BLOCK_BYTES: usize = 210;

impl TensorType {
    /// Every supported format.
    pub const ALL: [TensorType; 15] = [
        TensorType::F32,
        TensorType::F16,
        TensorType::Bf16,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q8_0,
        TensorType::Q2_K,
        TensorType::Q3_K,
        TensorType::Q4_K,
        TensorType::Q5_K,
        TensorType::Q6_K,
        TensorType::IQ4_NL,
        TensorType::MXFP4,
    ];

    const fn row(self) -> &'static Row {
        // The table is in the order of the variants; a test says so.
        &ROWS[self as usize]
    }

    /// The format with this ggml type number, if it is supported.
    pub fn from_ggml(number: u32) -> Option<TensorType> {
        Self::ALL.into_iter().find(|format| format.ggml_number() == number)
    }

    /// ggml's number for the format, as stored in GGUF files.
    pub const fn ggml_number(self) -> u32 {
        self.row().1
    }

    /// ggml's name for the format.
    pub const fn name(self) -> &'static str {
        self.row().2
    }

    /// Values in one block; a row's length is a multiple of it.
    pub const fn block_elements(self) -> usize {
        self.row().3
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.row().4
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
                _ if elements == 32 => small_blocks::dequantize(self, block, out),
                _ => k_quants::dequantize(self, block, out),
            }
        }
    }

    /// The bytes that store `values` (whole blocks). Scales are chosen as ggml's simplest way does, which for
    /// Q8_0 and Q4_0 is its only one; the other formats are for making test weights.
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
                _ if elements == 32 => small_blocks::quantize(self, block, &mut out),
                _ => k_quants::quantize(self, block, &mut out),
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

fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}
