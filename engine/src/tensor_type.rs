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
}

fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}
