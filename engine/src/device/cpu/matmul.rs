//! The matrix product, one panel of 32 output features at a time.
//!
//! Few input rows: each column of weights is expanded in registers and used at once. Many: a run of columns
//! is expanded into a tile that stays in the first-level cache, and blocks of input rows pass over it. Either
//! way no expanded weight outlives its panel.
//!
//! Invariant: every output is `fma(x[k], w[k], …)` over k from 0 upwards in one accumulator, in both ways and
//! for any number of rows, so a row's result does not depend on how many others there are.

#![allow(clippy::needless_range_loop)] // as in `packed`: adaptors may not be inlined

use super::formats::{
    Bf16, F16, F32, Format, Iq4Nl, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
};
use super::packed::{PANEL, PackedWeight, PanelColumn};
use super::shared::SharedBuffer;
use super::simd::{Kernel, Lanes, Registers, SimdLevel, Vector, prefetch};
use crate::tensor_type::TensorType;

/// Up to this many input rows, weights are expanded in registers.
const FEW_ROWS: usize = 2;
/// Columns of a tile: 256 · 32 values are 32 KiB.
const TILE_COLUMNS: usize = 256;

/// Bytes of weights to ask for ahead of use: a few hundred nanoseconds' worth.
const PREFETCH_DISTANCE: usize = 4096;

/// One thread's memory for matrix products.
pub(super) struct MatMulScratch {
    tile: Vec<PanelColumn>,
    /// Sums so far, a panel's width for every input row.
    sums: Vec<PanelColumn>,
}

impl MatMulScratch {
    /// For batches of up to `max_rows` rows.
    pub(super) fn new(max_rows: usize) -> MatMulScratch {
        MatMulScratch { tile: vec![[0.0; PANEL]; TILE_COLUMNS], sums: vec![[0.0; PANEL]; max_rows] }
    }
}

/// Where the results of a matrix product go.
#[derive(Clone, Copy)]
pub(super) struct MatMulOut<'a> {
    pub(super) buffer: &'a SharedBuffer,
    /// Add to what is there.
    pub(super) accumulate: bool,
}

/// Computes output features `panel · 32` and following for every row of `input`.
///
/// # Safety
/// Nobody else reads or writes these columns of `out.buffer` meanwhile.
pub(super) unsafe fn matmul_panel(
    level: SimdLevel,
    weight: &PackedWeight,
    panel: usize,
    input: &[f32],
    out: MatMulOut<'_>,
    scratch: &mut MatMulScratch,
) {
    let columns = weight.columns;
    let rows = input.len() / columns;
    let sums = &mut scratch.sums[..rows];
    if rows <= FEW_ROWS {
        level.run(FewRows { weight, panel, input, sums });
    } else {
        for column in (0..columns).step_by(TILE_COLUMNS) {
            let tile = &mut scratch.tile[..TILE_COLUMNS.min(columns - column)];
            level.run(ExpandTile { weight, panel, column, tile });
            level.run(MultiplyTile { tile, input: &input[column..], stride: columns, column, sums });
        }
    }
    let start = panel * PANEL;
    let width = PANEL.min(weight.rows - start);
    for (row, sums) in sums.iter().enumerate() {
        let start = row * weight.rows + start;
        // SAFETY: these columns are the caller's alone.
        let out_row = unsafe { out.buffer.write(start..start + width) };
        if out.accumulate {
            out_row.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        } else {
            out_row.copy_from_slice(&sums[..width]);
        }
    }
}

/// Calls `$body` with `$format` as the type of the weight's format.
macro_rules! with_format {
    ($tensor_type:expr, $format:ident => $body:expr) => {
        with_format!($tensor_type, $format => $body,
            F32 F32, F16 F16, Bf16 Bf16, Q4_0 Q4_0, Q4_1 Q4_1, Q5_0 Q5_0, Q5_1 Q5_1, Q8_0 Q8_0, Q2_K Q2K,
            Q3_K Q3K, Q4_K Q4K, Q5_K Q5K, Q6_K Q6K, IQ4_NL Iq4Nl, MXFP4 Mxfp4)
    };
    ($tensor_type:expr, $format:ident => $body:expr, $($variant:ident $type:ident),*) => {
        match $tensor_type {
            $(TensorType::$variant => {
                type $format = $type;
                $body
            })*
        }
    };
}

/// Asks ahead for as many bytes as a group's share of the block.
#[inline(always)]
fn prefetch_group<T: Format>(block: &[u8], group: usize) {
    let share = T::BYTES * T::GROUP / T::COLUMNS;
    prefetch(block.as_ptr().wrapping_add(PREFETCH_DISTANCE + group * share), share);
}

struct FewRows<'a> {
    weight: &'a PackedWeight,
    panel: usize,
    input: &'a [f32],
    sums: &'a mut [PanelColumn],
}

impl Kernel for FewRows<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        with_format!(self.weight.format, T => match self.sums.len() {
            1 => self.multiply::<L, T, 1>(),
            2 => self.multiply::<L, T, 2>(),
            _ => {}
        });
    }
}

impl FewRows<'_> {
    #[inline(always)]
    fn multiply<L: Lanes, T: Format, const ROWS: usize>(self) {
        let columns = self.weight.columns;
        let mut sums = [[0.0; PANEL]; ROWS];
        for (index, block) in self.weight.blocks(self.panel, 0).chunks_exact(T::BYTES).enumerate() {
            let inputs: [&[f32]; ROWS] = rows_of(self.input, index * T::COLUMNS, columns, T::COLUMNS);
            for group in 0..T::COLUMNS / T::GROUP {
                prefetch_group::<T>(block, group);
                let scales = T::scales(block, group);
                for first in (group * T::GROUP..(group + 1) * T::GROUP).step_by(T::PAIRED) {
                    for k in first..first + T::PAIRED {
                        let weights = T::column::<L>(&scales, block, k);
                        for r in 0..ROWS {
                            let input = inputs[r][k];
                            for n in 0..PANEL {
                                sums[r][n] = L::mul_add(input, weights[n], sums[r][n]);
                            }
                        }
                    }
                }
            }
        }
        self.sums.copy_from_slice(&sums);
    }
}

struct ExpandTile<'a> {
    weight: &'a PackedWeight,
    panel: usize,
    /// First column; a multiple of the tile's length.
    column: usize,
    tile: &'a mut [PanelColumn],
}

impl Kernel for ExpandTile<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let blocks = self.weight.blocks(self.panel, self.column);
        with_format!(self.weight.format, T => {
            for (block, tile) in blocks.chunks_exact(T::BYTES).zip(self.tile.chunks_exact_mut(T::COLUMNS)) {
                for group in 0..T::COLUMNS / T::GROUP {
                    prefetch_group::<T>(block, group);
                    let scales = T::scales(block, group);
                    for first in (group * T::GROUP..(group + 1) * T::GROUP).step_by(T::PAIRED) {
                        for k in first..first + T::PAIRED {
                            tile[k] = T::column::<L>(&scales, block, k);
                        }
                    }
                }
            }
        });
    }
}

struct MultiplyTile<'a> {
    tile: &'a [PanelColumn],
    /// The input from the tile's first column on.
    input: &'a [f32],
    /// Length of an input row.
    stride: usize,
    /// The tile's first column; sums begin at zero with the first tile.
    column: usize,
    sums: &'a mut [PanelColumn],
}

impl Kernel for MultiplyTile<'_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        if self.column == 0 {
            self.sums.fill([0.0; PANEL]);
        }
        let rows = self.sums.len();
        let mut row = match L::REGISTERS {
            Registers::Rows8Columns32 => self.blocks::<L, 8, 32>(0),
            Registers::Rows6Columns16 => self.blocks::<L, 6, 16>(0),
            Registers::Rows4Columns8 => self.blocks::<L, 4, 8>(0),
        };
        if rows - row >= 4 {
            row = match L::REGISTERS {
                Registers::Rows8Columns32 => self.blocks::<L, 4, 32>(row),
                Registers::Rows6Columns16 => self.blocks::<L, 4, 16>(row),
                Registers::Rows4Columns8 => row,
            };
        }
        if rows - row == 3 {
            row = match L::REGISTERS {
                Registers::Rows8Columns32 => self.blocks::<L, 3, 32>(row),
                Registers::Rows6Columns16 => self.blocks::<L, 3, 16>(row),
                Registers::Rows4Columns8 => row,
            };
        }
        if rows - row >= 2 {
            row = match L::REGISTERS {
                Registers::Rows8Columns32 | Registers::Rows6Columns16 => self.blocks::<L, 2, 32>(row),
                Registers::Rows4Columns8 => self.blocks::<L, 2, 16>(row),
            };
        }
        if rows > row {
            self.blocks::<L, 1, 32>(row);
        }
    }
}

impl MultiplyTile<'_> {
    /// Multiplies whole blocks of `ROWS` rows from `row` on; returns the first row that is left.
    #[inline(always)]
    fn blocks<L: Lanes, const ROWS: usize, const COLUMNS: usize>(&mut self, mut row: usize) -> usize {
        while self.sums.len() - row >= ROWS {
            let inputs: [&[f32]; ROWS] = rows_of(self.input, row * self.stride, self.stride, self.tile.len());
            for start in (0..PANEL).step_by(COLUMNS) {
                let mut sums = [[0.0; COLUMNS]; ROWS];
                for r in 0..ROWS {
                    sums[r] = *part(&self.sums[row + r], start);
                }
                let tile = self.tile;
                multiply::<L, ROWS, COLUMNS>(inputs, tile.len(), |k| part(&tile[k], start), &mut sums);
                for r in 0..ROWS {
                    self.sums[row + r][start..start + COLUMNS].copy_from_slice(&sums[r]);
                }
            }
            row += ROWS;
        }
        row
    }
}

#[inline(always)]
fn part<const N: usize>(column: &PanelColumn, start: usize) -> &[f32; N] {
    column[start..].first_chunk().expect("a panel is a multiple of the block")
}

/// Vectors of a panel's width: of the narrowest registers, 4 values each.
const MAX_VECTORS: usize = PANEL / 4;

/// `sums[r][n] += Σ_k inputs[r][k] · weights(k)[n]` over k in `0..count`, in rising order. Every input has
/// `count` values. The sums stay in registers if the level has enough of them.
#[inline(always)]
pub(super) fn multiply<'a, L: Lanes, const ROWS: usize, const COLUMNS: usize>(
    inputs: [&[f32]; ROWS],
    count: usize,
    weights: impl Fn(usize) -> &'a [f32; COLUMNS],
    sums: &mut [[f32; COLUMNS]; ROWS],
) {
    let mut rows = inputs;
    for r in 0..ROWS {
        rows[r] = &inputs[r][..count];
    }
    let width = L::Vector::WIDTH;
    let vectors = COLUMNS / width;
    // Those behind the last of `vectors` are never used, and so are no registers.
    let mut registers = [[L::Vector::splat(0.0); MAX_VECTORS]; ROWS];
    for r in 0..ROWS {
        for v in 0..vectors {
            registers[r][v] = L::Vector::load(&sums[r][v * width..]);
        }
    }
    for k in 0..count {
        let weights = weights(k);
        for r in 0..ROWS {
            let input = L::Vector::splat(rows[r][k]);
            for v in 0..vectors {
                registers[r][v] = input.mul_add(L::Vector::load(&weights[v * width..]), registers[r][v]);
            }
            for n in vectors * width..COLUMNS {
                sums[r][n] = L::mul_add(rows[r][k], weights[n], sums[r][n]);
            }
        }
    }
    for r in 0..ROWS {
        for v in 0..vectors {
            registers[r][v].store(&mut sums[r][v * width..]);
        }
    }
}

/// `ROWS` rows of `len` values, the first at `start`, each `stride` after the one before.
#[inline(always)]
pub(super) fn rows_of<const ROWS: usize>(
    values: &[f32],
    start: usize,
    stride: usize,
    len: usize,
) -> [&[f32]; ROWS] {
    let mut rows = [&values[..0]; ROWS];
    for r in 0..ROWS {
        rows[r] = &values[start + r * stride..][..len];
    }
    rows
}
