//! Weights as the matrix product wants them: panels of 32 rows, interleaved value by value.
//!
//! A vector register then holds the same column of neighbouring rows, every row has an accumulator lane of
//! its own, and no sum runs across lanes. Each stored block keeps its bytes, so a packed weight is as large as
//! the stored one, its last panel rounded up.
//!
//! Layout: `[panel][block][field][row of the panel]`, where a block is [`TensorType::block_elements`]
//! columns, and a field an `f16` or a byte at its place in the stored block. Only the quanta of Q4_0 and
//! Q4_1 are paired anew: a byte holds columns 2i (low) and 2i + 1.

use std::ops::Range;

use super::shared::AlignedBytes;
use crate::device::DeviceError;
use crate::program::Weight;
use crate::tensor_type::{MAX_BLOCK_BYTES, TensorType};

/// Rows of a panel.
pub(super) const PANEL: usize = 32;

/// One column of a panel.
pub(super) type PanelColumn = [f32; PANEL];

/// A weight matrix in panels.
pub(super) struct PackedWeight {
    pub(super) format: TensorType,
    pub(super) rows: usize,
    pub(super) columns: usize,
    bytes: AlignedBytes,
    panel_bytes: usize,
}

impl PackedWeight {
    /// Packs the stored bytes on `threads` threads.
    pub(super) fn new(weight: &Weight, stored: &[u8], threads: usize) -> Result<PackedWeight, DeviceError> {
        let (rows, columns, format) = (weight.rows, weight.columns, weight.format);
        if stored.len() != weight.bytes() {
            return Err(DeviceError::Failed(format!(
                "weight {} has {} bytes, {} expected",
                weight.name,
                stored.len(),
                weight.bytes()
            )));
        }
        let row_bytes = stored.len() / rows;
        let (panels, panel_bytes) = (rows.div_ceil(PANEL), row_bytes * PANEL);
        let mut bytes = AlignedBytes::new(&weight.name, panels * panel_bytes)?;
        let share = panels.div_ceil(threads);
        let pack = |stored: &[u8], packed: &mut [u8]| {
            let panels = stored.chunks(panel_bytes).zip(packed.chunks_exact_mut(panel_bytes));
            panels.for_each(|(stored, packed)| pack_panel(format, stored, row_bytes, packed));
        };
        if panels < 64 {
            pack(stored, bytes.as_mut_slice());
        } else {
            std::thread::scope(|scope| {
                let shares = bytes.as_mut_slice().chunks_mut(share * panel_bytes);
                for (stored, packed) in stored.chunks(share * panel_bytes).zip(shares) {
                    scope.spawn(move || pack(stored, packed));
                }
            });
        }
        Ok(PackedWeight { format, rows, columns, bytes, panel_bytes })
    }

    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// The blocks of a panel from the one that begins at column `column`.
    #[inline(always)]
    pub(super) fn blocks(&self, panel: usize, column: usize) -> &[u8] {
        let start = column / self.format.block_elements() * self.format.block_bytes() * PANEL;
        &self.bytes.as_slice()[panel * self.panel_bytes..][..self.panel_bytes][start..]
    }

    /// Writes one row's values to `out`: the panel is taken apart again, block by block.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        let (size, elements) = (self.format.block_bytes(), self.format.block_elements());
        let mut stored = [0; MAX_BLOCK_BYTES];
        let blocks = self.blocks(row / PANEL, 0).chunks_exact(size * PANEL);
        for (block, out) in blocks.zip(out.chunks_exact_mut(elements)) {
            unpack_block(self.format, block, row % PANEL, &mut stored[..size]);
            self.format.dequantize(&stored[..size], out);
        }
    }
}

/// Where a stored block has its `f16` scale and minimum.
fn halves(format: TensorType) -> Range<usize> {
    match format {
        TensorType::F32 | TensorType::F16 | TensorType::Bf16 | TensorType::MXFP4 => 0..0,
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 | TensorType::IQ4_NL => 0..2,
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => 0..4,
        TensorType::Q2_K => 80..84,
        TensorType::Q3_K => 108..110,
        TensorType::Q6_K => 208..210,
    }
}

/// Calls `place(stored, packed)` for each run of bytes of a block: where it is in the stored block, and
/// where in the packed one for row `row`. Paired quanta are left to the caller.
#[inline(always)]
fn byte_runs(format: TensorType, row: usize, mut place: impl FnMut(Range<usize>, usize)) {
    let size = format.block_bytes();
    if format.block_elements() == 1 {
        return place(0..size, row * size);
    }
    let halves = halves(format);
    for half in halves.clone().step_by(2) {
        place(half..half + 2, half * PANEL + 2 * row);
    }
    if !paired(format) {
        for byte in (0..halves.start).chain(halves.end..size) {
            place(byte..byte + 1, byte * PANEL + row);
        }
    }
}

fn paired(format: TensorType) -> bool {
    matches!(format, TensorType::Q4_0 | TensorType::Q4_1)
}

/// Up to [`PANEL`] stored rows to one panel; missing rows stay zero.
fn pack_panel(format: TensorType, stored: &[u8], row_bytes: usize, packed: &mut [u8]) {
    let size = format.block_bytes();
    for (row, stored) in stored.chunks_exact(row_bytes).enumerate() {
        for (stored, packed) in stored.chunks_exact(size).zip(packed.chunks_exact_mut(size * PANEL)) {
            byte_runs(format, row, |from, to| packed[to..to + from.len()].copy_from_slice(&stored[from]));
            if paired(format) {
                let quanta = halves(format).end;
                // Stored byte j holds columns j and j + 16.
                let column = |k: usize| (stored[quanta + k % 16] >> (4 * (k / 16))) & 0xf;
                for pair in 0..16 {
                    packed[(quanta + pair) * PANEL + row] = column(2 * pair) | column(2 * pair + 1) << 4;
                }
            }
        }
    }
}

/// The stored block of one row, from a packed block.
fn unpack_block(format: TensorType, packed: &[u8], row: usize, stored: &mut [u8]) {
    byte_runs(format, row, |to, from| stored[to.clone()].copy_from_slice(&packed[from..from + to.len()]));
    if paired(format) {
        let quanta = halves(format).end;
        let column = |k: usize| (packed[(quanta + k / 2) * PANEL + row] >> (4 * (k % 2))) & 0xf;
        for j in 0..16 {
            stored[quanta + j] = column(j) | column(j + 16) << 4;
        }
    }
}
