//! Weights as the matrix product wants them: panels of 32 rows, interleaved value by value.
//!
//! A vector register then holds the same column of neighbouring rows, every row has an accumulator lane of
//! its own, and no sum runs across lanes. Each stored block keeps its bytes (the scales of the 32 rows first,
//! then the quanta), so a packed weight is as large as the stored one, its last panel rounded up.
//!
//! Layout: `[panel][block][field][row of the panel]`, where a block is [`TensorType::block_elements`]
//! columns. The quanta of a 4-bit format are paired anew: a byte holds columns 2i (low) and 2i + 1.
//!
//! Invariant: [`Format::column`] yields exactly the values of [`TensorType::dequantize`]. (Products of a half and
//! at most eight bits are exact in `f32`, so it does not matter whether a level fuses the addition.)

#![allow(clippy::needless_range_loop)] // see `Format`

use super::shared::AlignedBytes;
use super::simd::{Lanes, half_to_f32};
use crate::device::DeviceError;
use crate::program::Weight;
use crate::tensor_type::TensorType;

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

/// Most bytes of any format's block.
const MAX_BLOCK_BYTES: usize = 34;

/// Bytes of each field before the quanta (`f16` scale, `f16` minimum); the rest are bytes of quanta.
fn scale_fields(format: TensorType) -> usize {
    match format {
        TensorType::F32 | TensorType::F16 | TensorType::Bf16 => 0,
        TensorType::Q4_0 | TensorType::Q8_0 => 1,
        TensorType::Q4_1 => 2,
    }
}

/// Calls `place(stored, packed)` for each run of bytes of a block: where it is in the stored block, and
/// where in the packed one for row `row`. The quanta of 4-bit formats are left to the caller.
fn byte_runs(format: TensorType, row: usize, mut place: impl FnMut(std::ops::Range<usize>, usize)) {
    if scale_fields(format) == 0 {
        let size = format.block_bytes();
        return place(0..size, row * size);
    }
    for field in 0..scale_fields(format) {
        place(2 * field..2 * field + 2, (field * PANEL + row) * 2);
    }
    if format == TensorType::Q8_0 {
        for k in 0..32 {
            place(2 + k..3 + k, 2 * PANEL + k * PANEL + row);
        }
    }
}

fn four_bits(format: TensorType) -> bool {
    matches!(format, TensorType::Q4_0 | TensorType::Q4_1)
}

/// Up to [`PANEL`] stored rows to one panel; missing rows stay zero.
fn pack_panel(format: TensorType, stored: &[u8], row_bytes: usize, packed: &mut [u8]) {
    let size = format.block_bytes();
    for (row, stored) in stored.chunks_exact(row_bytes).enumerate() {
        for (stored, packed) in stored.chunks_exact(size).zip(packed.chunks_exact_mut(size * PANEL)) {
            byte_runs(format, row, |from, to| packed[to..to + from.len()].copy_from_slice(&stored[from]));
            if four_bits(format) {
                let quanta = 2 * scale_fields(format);
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
    if four_bits(format) {
        let quanta = 2 * scale_fields(format);
        let column = |k: usize| (packed[(quanta + k / 2) * PANEL + row] >> (4 * (k % 2))) & 0xf;
        for j in 0..16 {
            stored[quanta + j] = column(j) | column(j + 16) << 4;
        }
    }
}

/// A format the compiler knows, so that each has loops of its own.
///
/// Loops over a panel's rows are written out with indices: iterator adaptors and closures over whole panels
/// may stay functions of their own, compiled without the level's instructions.
pub(super) trait Format {
    /// Columns of a block.
    const COLUMNS: usize;
    /// Neighbouring columns that share their bytes.
    const PAIRED: usize;
    /// Bytes of a packed block.
    const BYTES: usize;
    /// What the columns of a block share.
    type Scales;

    fn scales(block: &[u8]) -> Self::Scales;

    /// Column `k` of a packed block.
    fn column<L: Lanes>(scales: &Self::Scales, block: &[u8], k: usize) -> PanelColumn;
}

/// Of formats whose values stand for themselves.
pub(super) struct NoScales;

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;
pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q8_0;

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
    const PAIRED: usize = 1;
    const BYTES: usize = 4 * PANEL;
    type Scales = NoScales;

    #[inline(always)]
    fn scales(_: &[u8]) -> NoScales {
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
    const PAIRED: usize = 1;
    const BYTES: usize = 2 * PANEL;
    type Scales = NoScales;

    #[inline(always)]
    fn scales(_: &[u8]) -> NoScales {
        NoScales
    }

    #[inline(always)]
    fn column<L: Lanes>(_: &NoScales, block: &[u8], _: usize) -> PanelColumn {
        halves(block, 0)
    }
}

impl Format for Bf16 {
    const COLUMNS: usize = 1;
    const PAIRED: usize = 1;
    const BYTES: usize = 2 * PANEL;
    type Scales = NoScales;

    #[inline(always)]
    fn scales(_: &[u8]) -> NoScales {
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

/// Column `k` of 4-bit quanta that begin at `offset`.
#[inline(always)]
fn nibbles<L: Lanes>(
    (scale, minimum): &(PanelColumn, PanelColumn),
    block: &[u8],
    offset: usize,
    k: usize,
) -> PanelColumn {
    let quanta: &[u8; PANEL] = bytes(block, offset + k / 2 * PANEL);
    let mut out = [0.0; PANEL];
    for i in 0..PANEL {
        let quantum = (quanta[i] >> (4 * (k % 2))) & 0xf;
        out[i] = L::mul_add(scale[i], f32::from(quantum), minimum[i]);
    }
    out
}

impl Format for Q4_0 {
    const COLUMNS: usize = 32;
    const PAIRED: usize = 2;
    const BYTES: usize = 18 * PANEL;
    type Scales = (PanelColumn, PanelColumn);

    #[inline(always)]
    fn scales(block: &[u8]) -> Self::Scales {
        let scale = halves(block, 0);
        let mut minimum = [0.0; PANEL];
        for i in 0..PANEL {
            minimum[i] = -8.0 * scale[i];
        }
        (scale, minimum)
    }

    #[inline(always)]
    fn column<L: Lanes>(scales: &Self::Scales, block: &[u8], k: usize) -> PanelColumn {
        nibbles::<L>(scales, block, 2 * PANEL, k)
    }
}

impl Format for Q4_1 {
    const COLUMNS: usize = 32;
    const PAIRED: usize = 2;
    const BYTES: usize = 20 * PANEL;
    type Scales = (PanelColumn, PanelColumn);

    #[inline(always)]
    fn scales(block: &[u8]) -> Self::Scales {
        (halves(block, 0), halves(block, 2 * PANEL))
    }

    #[inline(always)]
    fn column<L: Lanes>(scales: &Self::Scales, block: &[u8], k: usize) -> PanelColumn {
        nibbles::<L>(scales, block, 4 * PANEL, k)
    }
}

impl Format for Q8_0 {
    const COLUMNS: usize = 32;
    const PAIRED: usize = 1;
    const BYTES: usize = 34 * PANEL;
    type Scales = PanelColumn;

    #[inline(always)]
    fn scales(block: &[u8]) -> PanelColumn {
        halves(block, 0)
    }

    #[inline(always)]
    fn column<L: Lanes>(scale: &PanelColumn, block: &[u8], k: usize) -> PanelColumn {
        let quanta: &[u8; PANEL] = bytes(block, (2 + k) * PANEL);
        let mut out = [0.0; PANEL];
        for i in 0..PANEL {
            out[i] = scale[i] * f32::from(quanta[i] as i8);
        }
        out
    }
}
