//! Stored blocks sorted into what kernels read aligned.
//!
//! Kernels see every format as blocks of 32 neighbouring values of a row. Those values (floats, nibbles or bytes)
//! go to a list of words, in whole `vec4<u32>`s where they have 4 bits or more; scales, minimums and odd bits go
//! to a list of bytes. Together they take the bytes the file takes. Rows of floats are filled up with zeros to
//! whole blocks by the caller.
//!
//! Invariant: bits change their places, never their values; the `format_*.wgsl` of `kernels::matmul` say which
//! places. A nibble of value i of 32 is in byte i % 16; two bits of it in word i / 16; a single bit is bit i.

use crate::tensor_type::TensorType;
use crate::tensor_type::k_quants::{
    bits, place_of_bit, place_of_nibble, place_of_q6_nibble, place_of_two_bits, scale_and_minimum,
    six_bit_scale,
};

/// Words the values of 32 columns take.
pub(super) fn block_words(format: TensorType) -> usize {
    match format {
        TensorType::F32 => 32,
        TensorType::F16 | TensorType::Bf16 => 16,
        TensorType::Q8_0 => 8,
        TensorType::Q2_K | TensorType::Q3_K => 2,
        _ => 4,
    }
}

/// Sorts a stored row.
pub(super) fn pack_row(format: TensorType, row: &[u8], words: &mut Vec<u32>, scales: &mut Vec<u8>) {
    let heads = match format {
        // Floats have no scales to be sorted out: the row is one run of values, the last word perhaps half full.
        TensorType::F32 | TensorType::F16 | TensorType::Bf16 => return words.extend(little_endian(row)),
        // The bytes before the values go to the scales as they are.
        TensorType::Q4_0 | TensorType::Q8_0 | TensorType::IQ4_NL => 2,
        TensorType::Q4_1 => 4,
        TensorType::Q5_0 => 6,
        TensorType::Q5_1 => 8,
        TensorType::MXFP4 => 1,
        TensorType::Q2_K | TensorType::Q3_K | TensorType::Q4_K | TensorType::Q5_K | TensorType::Q6_K => {
            let blocks = row.chunks_exact(format.block_bytes());
            return blocks.for_each(|block| pack_k_block(format, block, words, scales));
        }
    };
    for block in row.chunks_exact(format.block_bytes()) {
        let (head, values) = block.split_at(heads);
        scales.extend_from_slice(head);
        words.extend(little_endian(values));
    }
}

/// Sorts 256 values in groups of 32.
fn pack_k_block(format: TensorType, block: &[u8], words: &mut Vec<u32>, scales: &mut Vec<u8>) {
    match format {
        TensorType::Q2_K => {
            words.extend(crumbs(&block[16..80]));
            scales.extend_from_slice(&block[80..84]);
            scales.extend_from_slice(&block[..16]);
        }
        TensorType::Q3_K => {
            words.extend(crumbs(&block[32..96]));
            scales.extend(single_bits(&block[..32]));
            let pair = |g| (six_bit_scale(&block[96..108], 2 * g), six_bit_scale(&block[96..108], 2 * g + 1));
            scales.extend(six_bit_pairs(pair));
            scales.extend_from_slice(&block[108..]);
        }
        TensorType::Q4_K | TensorType::Q5_K => {
            scales.extend_from_slice(&block[..4]);
            scales.extend(six_bit_pairs(|g| scale_and_minimum(&block[4..16], g)));
            if format == TensorType::Q5_K {
                scales.extend(single_bits(&block[16..48]));
            }
            let quanta = &block[if format == TensorType::Q5_K { 48 } else { 16 }..];
            words.extend(nibbles(|k| bits(quanta, place_of_nibble(k), 0xf)));
        }
        _ => {
            words.extend(nibbles(|k| bits(&block[..128], place_of_q6_nibble(k), 0xf)));
            scales.extend(crumbs(&block[128..192]).flat_map(u32::to_le_bytes));
            scales.extend_from_slice(&block[192..]);
        }
    }
}

fn little_endian(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks(4).map(|bytes| {
        let mut word = [0; 4];
        word[..bytes.len()].copy_from_slice(bytes);
        u32::from_le_bytes(word)
    })
}

/// 256 nibbles: for each group of 32 values 4 words.
fn nibbles(nibble: impl Fn(usize) -> u8) -> impl Iterator<Item = u32> {
    (0..32).map(move |word| {
        let first = word / 4 * 32 + word % 4 * 4;
        let byte = |k: usize| nibble(k) | nibble(k + 16) << 4;
        u32::from_le_bytes([byte(first), byte(first + 1), byte(first + 2), byte(first + 3)])
    })
}

/// 256 two-bit values: a word for each 16.
fn crumbs(stored: &[u8]) -> impl Iterator<Item = u32> + '_ {
    (0..16).map(|word| {
        let crumb = |i: usize| u32::from(bits(stored, place_of_two_bits(16 * word + i), 3));
        (0..16).fold(0, |bits, i| bits | crumb(i) << (2 * i))
    })
}

/// 256 single bits: 4 bytes for each group of 32.
fn single_bits(stored: &[u8]) -> impl Iterator<Item = u8> + '_ {
    (0..32).map(|byte| {
        (0..8).fold(0, |bits_so_far, i| bits_so_far | bits(stored, place_of_bit(8 * byte + i), 1) << i)
    })
}

/// The pairs of 6 bits of 8 groups, the first of each pair lowest, without gaps.
fn six_bit_pairs(pair: impl Fn(usize) -> (u8, u8)) -> [u8; 12] {
    let mut all = 0u128;
    for g in 0..8 {
        let (first, second) = pair(g);
        all |= (u128::from(first) | u128::from(second) << 6) << (12 * g);
    }
    let mut bytes = [0; 12];
    bytes.copy_from_slice(&all.to_le_bytes()[..12]);
    bytes
}
