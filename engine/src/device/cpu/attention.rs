//! Attention over the paged cache, several query heads and rows at a time.
//!
//! The heads that share a KV head, of up to [`TILE_ROWS`] neighbouring rows of a sequence, are one tile: it
//! reads each key and value once. The context is taken in chunks of [`CHUNK`] positions counted from its
//! start; a chunk yields a [`Partials`] (maximum, sum and weighted values relative to that maximum), and
//! partials are merged in the order of their chunks. Who computes a chunk, and beside what, is open: a long
//! context of a lone sequence is spread over all threads.
//!
//! Keys lie in groups of [`GROUP`] slots, transposed: `[kv_head][group][value of the head][slot of the group]`,
//! so that a dot product is a lane and needs no sum across lanes. Values lie as `[kv_head][slot][value]`. Heads of keys
//! and of values have sizes of their own.
//!
//! Invariant: a row's result depends on its position, its query and the cache alone: the order of every sum
//! is given by positions, and what a row may not see (what comes after it, what is older than its window) is never
//! added, not even as zero.

#![allow(clippy::needless_range_loop)] // as in `packed`: adaptors may not be inlined

use std::ops::Range;

use super::matmul::{multiply, rows_of};
use super::rows::lane_sum;
use super::shared::SharedBuffer;
use super::simd::{Kernel, Lanes, Registers, exp, prefetch};
use crate::device::{BatchSequence, DeviceError};
use crate::program::Program;

/// Slots of a key group.
const GROUP: usize = 16;
/// Positions of a chunk.
pub(super) const CHUNK: usize = 256;
/// Most rows of a tile.
pub(super) const TILE_ROWS: usize = 8;

/// Keys and values of one layer.
pub(super) struct KvCache {
    keys: SharedBuffer,
    values: SharedBuffer,
    /// Slots, rounded up to whole groups.
    slots: usize,
    head_size: usize,
    value_head_size: usize,
}

impl KvCache {
    /// An empty cache of `slots` slots for the program's heads.
    pub(super) fn new(slots: usize, program: &Program) -> Result<KvCache, DeviceError> {
        let slots = slots.next_multiple_of(GROUP);
        Ok(KvCache {
            keys: SharedBuffer::new("the key cache", slots * program.key_width())?,
            values: SharedBuffer::new("the value cache", slots * program.value_width())?,
            slots,
            head_size: program.head_size,
            value_head_size: program.value_head_size,
        })
    }

    /// Stores a row of all heads' keys and one of values.
    ///
    /// # Safety
    /// Nobody reads the cache meanwhile.
    pub(super) unsafe fn store(&self, slot: usize, key: &[f32], value: &[f32]) {
        for (head, key) in key.chunks_exact(self.head_size).enumerate() {
            let start = (head * self.slots + slot / GROUP * GROUP) * self.head_size + slot % GROUP;
            for (i, key) in key.iter().enumerate() {
                // SAFETY: no slice over the cache exists, as the caller promises.
                unsafe { self.keys.store(start + i * GROUP, *key) };
            }
        }
        for (head, value) in value.chunks_exact(self.value_head_size).enumerate() {
            let start = (head * self.slots + slot) * self.value_head_size;
            for (i, value) in value.iter().enumerate() {
                // SAFETY: the same.
                unsafe { self.values.store(start + i, *value) };
            }
        }
    }

    /// One head's keys and values.
    ///
    /// # Safety
    /// Nobody writes to the cache while the slices live.
    pub(super) unsafe fn head(&self, head: usize) -> (&[f32], &[f32]) {
        let range = |head_size| head * self.slots * head_size..(head + 1) * self.slots * head_size;
        // SAFETY: as the caller promises.
        unsafe { (self.keys.read(range(self.head_size)), self.values.read(range(self.value_head_size))) }
    }
}

/// Neighbouring rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub(super) first_row: usize,
    pub(super) rows: usize,
    /// Position of the first row; the others follow it.
    pub(super) first_position: usize,
    /// Where its block tables are.
    pub(super) sequence: BatchSequence,
}

/// A tile as one attention op sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileView {
    pub(super) tile: Tile,
    /// Positions that a row sees at most, its own included.
    pub(super) window: usize,
}

impl TileView {
    /// The chunks that rows of the tile see.
    pub(super) fn chunks(&self) -> Range<usize> {
        let Tile { first_position, rows, .. } = self.tile;
        let first_seen = (first_position + 1).saturating_sub(self.window);
        first_seen / CHUNK..(first_position + rows).div_ceil(CHUNK)
    }

    /// Positions of a chunk, counted from its start, that a row of the tile sees.
    #[inline(always)]
    fn visible(&self, row: usize, chunk: usize) -> Range<usize> {
        let end = self.tile.first_position + row + 1;
        let in_chunk = |position: usize| position.saturating_sub(chunk * CHUNK).min(CHUNK);
        in_chunk(end.saturating_sub(self.window))..in_chunk(end)
    }
}

/// What a number of queries have of one chunk, or of all chunks so far.
pub(super) struct Partials<'a> {
    /// `[query][value of the head]`: Σ exp(score − maximum) · value.
    sums: &'a mut [f32],
    /// Largest score of each query.
    maxima: &'a mut [f32],
    /// Σ exp(score − maximum) of each query.
    totals: &'a mut [f32],
}

impl Partials<'_> {
    /// Values that partials of `queries` queries take.
    pub(super) fn len(queries: usize, value_head_size: usize) -> usize {
        queries * (value_head_size + 2)
    }

    /// Partials in the memory of `values`, as many as `len` says or more.
    pub(super) fn over(values: &mut [f32], queries: usize, value_head_size: usize) -> Partials<'_> {
        let (sums, rest) = values.split_at_mut(queries * value_head_size);
        let (maxima, rest) = rest.split_at_mut(queries);
        Partials { sums, maxima, totals: &mut rest[..queries] }
    }

    /// Values of a head in `sums`.
    #[inline(always)]
    fn value_head_size(&self) -> usize {
        self.sums.len() / self.maxima.len()
    }

    /// The attention of one query: its weighted values over its total.
    pub(super) fn write(&self, query: usize, out: &mut [f32]) {
        let (start, total) = (query * out.len(), self.totals[query]);
        for (out, sum) in out.iter_mut().zip(&self.sums[start..]) {
            *out = sum / total;
        }
    }
}

/// Adds a chunk's partials to those of the chunks before it.
pub(super) struct Merge<'a> {
    pub(super) view: TileView,
    /// The chunk that `added` is of.
    pub(super) chunk: usize,
    pub(super) merged: Partials<'a>,
    pub(super) added: Partials<'a>,
}

impl Kernel for Merge<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let queries = self.added.maxima.len();
        let value_head_size = self.added.value_head_size();
        let group = queries / self.view.tile.rows;
        for query in 0..queries {
            if self.view.visible(query / group, self.chunk).is_empty() {
                continue;
            }
            let (old, new) = (self.merged.maxima[query], self.added.maxima[query]);
            let maximum = if old > new { old } else { new };
            let (keep, add) = (exp::<L>(old - maximum), exp::<L>(new - maximum));
            let range = query * value_head_size..(query + 1) * value_head_size;
            let added = &self.added.sums[range.clone()];
            for (sum, added) in self.merged.sums[range].iter_mut().zip(added) {
                *sum = L::mul_add(*added, add, *sum * keep);
            }
            let total = &mut self.merged.totals[query];
            *total = L::mul_add(self.added.totals[query], add, *total * keep);
            self.merged.maxima[query] = maximum;
        }
    }
}

/// Computes the partials of one chunk for the queries of a tile.
pub(super) struct AttendChunk<'a> {
    pub(super) view: TileView,
    pub(super) chunk: usize,
    /// The sequence's blocks.
    pub(super) block_table: &'a [u32],
    pub(super) block_size: usize,
    pub(super) scale: f32,
    /// `[row of the tile][head of the group][value of the head]`.
    pub(super) queries: &'a [f32],
    /// The KV head's keys and values.
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    /// [`CHUNK`] values for each query, to work in.
    pub(super) scores: &'a mut [f32],
    pub(super) out: Partials<'a>,
}

impl Kernel for AttendChunk<'_> {
    #[inline(always)]
    fn run<L: Lanes>(mut self) {
        let (rows, queries) = (self.view.tile.rows, self.out.maxima.len());
        let group = queries / rows;
        let (head_size, value_head_size) = (self.queries.len() / queries, self.out.value_head_size());
        let (first, last) = (self.view.visible(0, self.chunk), self.view.visible(rows - 1, self.chunk));
        let mut position = first.start;
        let mut next = self.segment(&mut position, last.end);
        while let Some(segment) = next {
            next = self.segment(&mut position, last.end);
            if let Some(next) = next {
                let keys = self.keys.as_ptr().wrapping_add(next.slot / GROUP * GROUP * head_size);
                prefetch(keys, 4 * GROUP * head_size);
            }
            self.score::<L>(segment);
        }
        for query in 0..queries {
            let visible = self.view.visible(query / group, self.chunk);
            let scores = &mut self.scores[query * CHUNK..][visible];
            (self.out.maxima[query], self.out.totals[query]) = softmax::<L>(scores);
        }
        self.out.sums.fill(0.0);
        // Positions that all rows see; what only some do comes row by row, before and after.
        let shared = last.start..first.end.max(last.start);
        for row in 0..rows {
            let visible = self.view.visible(row, self.chunk);
            self.weigh_row::<L>(row, group, visible.start..visible.end.min(shared.start));
        }
        let mut position = shared.start;
        let mut next = self.segment(&mut position, shared.end);
        while let Some(segment) = next {
            next = self.segment(&mut position, shared.end);
            if let Some(next) = next {
                let values = self.values.as_ptr().wrapping_add(next.slot * value_head_size);
                prefetch(values, 4 * next.len * value_head_size);
            }
            self.weigh::<L>(segment);
        }
        for row in 0..rows {
            let visible = self.view.visible(row, self.chunk);
            self.weigh_row::<L>(row, group, visible.start.max(shared.end)..visible.end);
        }
    }
}

/// Neighbouring positions in neighbouring slots of one key group.
#[derive(Clone, Copy)]
struct Segment {
    /// Counted from the chunk's start.
    position: usize,
    slot: usize,
    len: usize,
}

impl AttendChunk<'_> {
    /// The segment at `position` of the chunk, which moves behind it; `None` at `end`.
    #[inline(always)]
    fn segment(&self, position: &mut usize, end: usize) -> Option<Segment> {
        if *position >= end {
            return None;
        }
        let absolute = self.chunk * CHUNK + *position;
        let (block, offset) = (absolute / self.block_size, absolute % self.block_size);
        let slot = self.block_table[block] as usize * self.block_size + offset;
        let len = (GROUP - slot % GROUP).min(self.block_size - offset).min(end - *position);
        let segment = Segment { position: *position, slot, len };
        *position += len;
        Some(segment)
    }

    /// Adds the values at some positions, weighted, to the sums of one row's queries.
    #[inline(always)]
    fn weigh_row<L: Lanes>(&mut self, row: usize, group: usize, positions: Range<usize>) {
        let mut position = positions.start;
        while let Some(segment) = self.segment(&mut position, positions.end) {
            for query in row * group..(row + 1) * group {
                self.weigh_columns::<L, 1>(segment, query);
            }
        }
    }

    /// Scores of all queries for a segment.
    #[inline(always)]
    fn score<L: Lanes>(&mut self, segment: Segment) {
        let (queries, mut query) = (self.out.maxima.len(), 0);
        if L::REGISTERS == Registers::Rows8Columns32 {
            while queries - query >= 8 {
                query = self.dot_products::<L, 8>(segment, query);
            }
        }
        if L::REGISTERS != Registers::Rows4Columns8 {
            while queries - query >= 4 {
                query = self.dot_products::<L, 4>(segment, query);
            }
            if queries - query == 3 {
                query = self.dot_products::<L, 3>(segment, query);
            }
        }
        while queries - query >= 2 {
            query = self.dot_products::<L, 2>(segment, query);
        }
        if queries > query {
            self.dot_products::<L, 1>(segment, query);
        }
    }

    /// Scores of `QUERIES` queries for a segment. Returns the query after them.
    #[inline(always)]
    fn dot_products<L: Lanes, const QUERIES: usize>(&mut self, segment: Segment, query: usize) -> usize {
        let head_size = self.queries.len() / self.out.maxima.len();
        let keys = &self.keys[segment.slot / GROUP * GROUP * head_size..][..GROUP * head_size];
        let keys = keys.as_chunks::<GROUP>().0;
        let queries: [&[f32]; QUERIES] = rows_of(self.queries, query * head_size, head_size, head_size);
        let mut products = [[0.0; GROUP]; QUERIES];
        multiply::<L, QUERIES, GROUP>(queries, keys.len(), |i| &keys[i], &mut products);
        for r in 0..QUERIES {
            for lane in 0..GROUP {
                products[r][lane] *= self.scale;
            }
            let products = &products[r];
            let scores = &mut self.scores[(query + r) * CHUNK + segment.position..];
            match scores.first_chunk_mut() {
                Some(scores) if segment.len == GROUP => *scores = *products,
                _ => scores[..segment.len].copy_from_slice(&products[segment.slot % GROUP..][..segment.len]),
            }
        }
        query + QUERIES
    }

    /// Adds a segment's values, weighted, to the sums of all queries.
    #[inline(always)]
    fn weigh<L: Lanes>(&mut self, segment: Segment) {
        let (queries, mut query) = (self.out.maxima.len(), 0);
        if L::REGISTERS == Registers::Rows8Columns32 {
            while queries - query >= 8 {
                query = self.weigh_columns::<L, 8>(segment, query);
            }
        }
        if L::REGISTERS != Registers::Rows4Columns8 {
            while queries - query >= 4 {
                query = self.weigh_columns::<L, 4>(segment, query);
            }
            if queries - query == 3 {
                query = self.weigh_columns::<L, 3>(segment, query);
            }
        }
        while queries - query >= 2 {
            query = self.weigh_columns::<L, 2>(segment, query);
        }
        if queries > query {
            self.weigh_columns::<L, 1>(segment, query);
        }
    }

    /// The same for `QUERIES` of them. Returns the query after them.
    #[inline(always)]
    fn weigh_columns<L: Lanes, const QUERIES: usize>(&mut self, segment: Segment, query: usize) -> usize {
        let value_head_size = self.out.value_head_size();
        let mut column = 0;
        if L::REGISTERS == Registers::Rows8Columns32 {
            while value_head_size - column >= 32 {
                column = self.weigh_block::<L, QUERIES, 32>(segment, query, column);
            }
        }
        while value_head_size - column >= 16 {
            column = self.weigh_block::<L, QUERIES, 16>(segment, query, column);
        }
        while column < value_head_size {
            column = self.weigh_block::<L, QUERIES, 1>(segment, query, column);
        }
        query + QUERIES
    }

    #[inline(always)]
    fn weigh_block<L: Lanes, const QUERIES: usize, const COLUMNS: usize>(
        &mut self,
        segment: Segment,
        query: usize,
        column: usize,
    ) -> usize {
        let value_head_size = self.out.value_head_size();
        let values = &self.values[segment.slot * value_head_size..][..segment.len * value_head_size];
        let start = query * CHUNK + segment.position;
        let weights: [&[f32]; QUERIES] = rows_of(self.scores, start, CHUNK, segment.len);
        let mut sums = [[0.0; COLUMNS]; QUERIES];
        for r in 0..QUERIES {
            sums[r].copy_from_slice(&self.out.sums[(query + r) * value_head_size + column..][..COLUMNS]);
        }
        let value = |k: usize| -> &[f32; COLUMNS] {
            values[k * value_head_size + column..].first_chunk().expect("the block lies inside the head")
        };
        multiply::<L, QUERIES, COLUMNS>(weights, segment.len, value, &mut sums);
        for r in 0..QUERIES {
            self.out.sums[(query + r) * value_head_size + column..][..COLUMNS].copy_from_slice(&sums[r]);
        }
        column + COLUMNS
    }
}

/// Replaces scores by exp(score − maximum); returns the maximum and the sum.
#[inline(always)]
fn softmax<L: Lanes>(scores: &mut [f32]) -> (f32, f32) {
    let mut lanes = [f32::MIN; GROUP];
    let (chunks, rest) = scores.as_chunks::<GROUP>();
    for chunk in chunks {
        for lane in 0..GROUP {
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
        }
    }
    let mut maximum = f32::MIN;
    for lane in 0..GROUP {
        maximum = if lanes[lane] > maximum { lanes[lane] } else { maximum };
    }
    for score in rest {
        maximum = if *score > maximum { *score } else { maximum };
    }
    for score in scores.iter_mut() {
        *score = exp::<L>(*score - maximum);
    }
    (maximum, lane_sum::<L>(scores, |sum, weight| sum + weight))
}
