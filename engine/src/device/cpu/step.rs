//! One thread's part of a step: as many units of every stage as it gets, stage after stage.
//!
//! Invariant: a thread writes only the rows, panels or tiles of units that it has taken, and begins a stage
//! only when all units of the one before are done. Which thread does a unit changes nothing about its result.

use std::ops::Range;
use std::time::Instant;

use super::attention::{AttendChunk, CHUNK, Merge, Partials, TILE_ROWS, Tile, TileView};
use super::matmul::{MatMulOut, MatMulScratch, matmul_panel};
use super::packed::PackedWeight;
use super::plan::{Pass, Stage, Work};
use super::rows::{Add, AddBias, GateMul, RmsNorm, Rope, embed, rope_angles};
use super::team::Peers;
use super::{Memory, PARTIALS};
use crate::cache_layout::CachePlace;
use crate::device::Batch;
use crate::program::{BufferId, OpKind, Program, Rows, WeightId};

/// Shares of a stage for each thread: small ones even out what disturbs one thread.
const SHARES: usize = 8;

/// One thread's memory.
pub(super) struct Scratch {
    /// When each stage of a timed step ended, as this thread saw it.
    pub(super) ticks: Vec<Instant>,
    matmul: MatMulScratch,
    queries: Vec<f32>,
    scores: Vec<f32>,
    /// Partials of the chunks merged so far, and of one chunk.
    merged: Vec<f32>,
    partials: Vec<f32>,
}

impl Scratch {
    /// For batches of up to `max_rows` rows.
    pub(super) fn new(program: &Program, max_rows: usize) -> Scratch {
        let group = program.ops.iter().filter_map(|op| match op.kind {
            OpKind::Attention { num_heads, .. } => Some(num_heads / program.num_kv_heads),
            _ => None,
        });
        let queries = TILE_ROWS * group.max().unwrap_or(0);
        let partials = Partials::len(queries, program.value_head_size);
        Scratch {
            ticks: Vec::with_capacity(program.ops.len()),
            matmul: MatMulScratch::new(max_rows),
            queries: vec![0.0; queries * program.head_size],
            scores: vec![0.0; queries * CHUNK],
            merged: vec![0.0; partials],
            partials: vec![0.0; partials],
        }
    }
}

/// A step as one thread sees it.
pub(super) struct Step<'a> {
    pub(super) memory: &'a Memory,
    pub(super) stages: &'a [Stage],
    /// Whether the thread notes when each stage ended.
    pub(super) timed: bool,
    pub(super) batch: &'a Batch,
    pub(super) tiles: &'a [Tile],
    pub(super) peers: &'a Peers,
}

impl Step<'_> {
    /// Runs the thread's part of the whole program.
    pub(super) fn run(&self, scratch: &mut Scratch) {
        self.each_rows(&self.memory.angles_pass, Rows::Tokens, |rows| {
            for angles in &self.memory.angles {
                let rotary = angles.rotation.rotary;
                let range = rows.start * rotary..rows.end * rotary;
                // SAFETY: the unit's rows; the table is read in later stages only.
                let table = unsafe { angles.table.write(range) };
                let magnitude = angles.rotation.magnitude;
                rope_angles(&self.batch.positions[rows.clone()], &angles.frequencies, magnitude, table);
            }
        });
        scratch.ticks.clear();
        for stage in self.stages {
            match &stage.work {
                Work::MatMuls(ops) => self.matmuls(stage, ops, &mut scratch.matmul),
                Work::ByRow(rows, ops) => self.each_rows(&stage.passes[0], *rows, |rows| {
                    ops.iter().for_each(|op| self.by_row(*op, rows.clone()));
                }),
                Work::Attention(op) => self.attention(stage, *op, scratch),
            }
            if self.timed {
                scratch.ticks.push(Instant::now());
            }
        }
    }

    /// Does what it gets of a pass's units, `share` at a time, then waits until all are done.
    fn each_unit(&self, pass: &Pass, units: usize, share: usize, mut work: impl FnMut(Range<usize>)) {
        while let Some(taken) = pass.take(share, units) {
            let count = taken.len();
            work(taken);
            pass.finish(count);
        }
        self.peers.wait_until(|| pass.is_done(units));
    }

    /// The same for rows that ops treat one by one: a unit is a range of rows.
    fn each_rows(&self, pass: &Pass, rows: Rows, mut work: impl FnMut(Range<usize>)) {
        let rows = self.rows(rows);
        let units = rows.min(SHARES * self.peers.threads());
        self.each_unit(pass, units, 1, |unit| work(rows * unit.start / units..rows * unit.end / units));
    }

    fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.batch.tokens.len(),
            Rows::Logits => self.batch.logits_rows.len(),
        }
    }

    fn width(&self, buffer: BufferId) -> usize {
        self.memory.program.buffers[buffer.0].width
    }

    fn matrix(&self, id: WeightId) -> &PackedWeight {
        self.memory.weights.matrices[id.0].as_ref().expect("opening packs the matrix of every op")
    }

    /// # Safety
    /// Nobody writes these rows meanwhile.
    unsafe fn read(&self, buffer: BufferId, rows: Range<usize>) -> &[f32] {
        let width = self.width(buffer);
        // SAFETY: as the caller promises.
        unsafe { self.memory.buffers[buffer.0].read(rows.start * width..rows.end * width) }
    }

    /// # Safety
    /// Nobody else reads or writes these rows meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn write(&self, buffer: BufferId, rows: Range<usize>) -> &mut [f32] {
        let width = self.width(buffer);
        // SAFETY: as the caller promises.
        unsafe { self.memory.buffers[buffer.0].write(rows.start * width..rows.end * width) }
    }

    /// The stage's products, by panels of all of them together.
    fn matmuls(&self, stage: &Stage, ops: &[usize], scratch: &mut MatMulScratch) {
        let products = || {
            ops.iter().filter_map(|op| match self.memory.program.ops[*op].kind {
                OpKind::MatMul { input, weight, out, accumulate } => Some((input, weight, out, accumulate)),
                _ => None,
            })
        };
        let panels: usize = products().map(|(_, weight, ..)| self.matrix(weight).panels()).sum();
        // A share still spans several pages of weights.
        let share = (panels / (SHARES * self.peers.threads())).max(1);
        self.each_unit(&stage.passes[0], panels, share, |share| {
            let mut start = 0;
            for (input, weight, out, accumulate) in products() {
                let weight = self.matrix(weight);
                let end = start + weight.panels();
                let rows = self.rows(self.memory.program.buffers[input.0].rows);
                // SAFETY: no op of the stage writes the input of another.
                let input = unsafe { self.read(input, 0..rows) };
                let out = MatMulOut { buffer: &self.memory.buffers[out.0], accumulate };
                for panel in share.start.max(start)..share.end.min(end) {
                    // SAFETY: each panel is taken once, and no op of the stage has the output of another.
                    unsafe { matmul_panel(self.memory.level, weight, panel - start, input, out, scratch) };
                }
                start = end;
            }
        });
    }

    /// Runs one op on a unit's rows.
    fn by_row(&self, op: usize, rows: Range<usize>) {
        let memory = self.memory;
        // SAFETY, for every read and write below: ops of a stage touch only the unit's own rows of their
        // buffers, except for `GatherRows`, whose input no op of its stage writes. A buffer that an op both
        // reads and writes is borrowed once, as the output.
        match memory.program.ops[op].kind {
            OpKind::Embed { table, out, scale } => {
                // SAFETY: the unit's rows.
                let out = unsafe { self.write(out, rows.clone()) };
                embed(&self.batch.tokens[rows], self.matrix(table), scale, out);
            }
            OpKind::RmsNorm { input, weight, out, epsilon } => {
                // SAFETY: the unit's rows, of another buffer than the output's.
                let source = (input != out).then(|| unsafe { self.read(input, rows.clone()) });
                let weight =
                    memory.weights.vectors[weight.0].as_ref().expect("opening reads every norm's weight");
                // SAFETY: the unit's rows.
                let out = unsafe { self.write(out, rows) };
                memory.level.run(RmsNorm { input: source, weight, epsilon, out });
            }
            OpKind::AddBias { buffer, bias } => {
                let bias = memory.weights.vectors[bias.0].as_ref().expect("opening reads every bias");
                // SAFETY: the unit's rows.
                let values = unsafe { self.write(buffer, rows) };
                memory.level.run(AddBias { values, bias });
            }
            OpKind::Rope { buffer, num_heads, head_size, rotation, style } => {
                let rotary = rotation.rotary;
                let angles = memory.angles.iter().find(|angles| angles.rotation == rotation);
                let table = &angles.expect("opening makes a table for every rotation").table;
                // SAFETY: written before the first stage.
                let angles = unsafe { table.read(rows.start * rotary..rows.end * rotary) };
                // SAFETY: the unit's rows.
                let values = unsafe { self.write(buffer, rows) };
                let row_width = num_heads * head_size;
                memory.level.run(Rope { values, angles, row_width, head_size, rotary, style });
            }
            OpKind::StoreKv { key, value, layer } => {
                // SAFETY: the unit's rows.
                let (keys, values) =
                    unsafe { (self.read(key, rows.clone()), self.read(value, rows.clone())) };
                let keys = keys.chunks_exact(memory.program.key_width());
                let pairs = keys.zip(values.chunks_exact(memory.program.value_width()));
                let place = memory.layout.places[layer];
                let slots = &self.batch.slots[place.group * self.batch.tokens.len()..][rows];
                for (slot, (key, value)) in slots.iter().zip(pairs) {
                    // SAFETY: only attention reads the cache, in stages of its own.
                    unsafe { memory.caches[place.memory].store(*slot as usize, key, value) };
                }
            }
            OpKind::GateMul { activation, gate, up, out } => {
                // SAFETY: the unit's rows, of other buffers than the output's.
                let [gate, up] =
                    [gate, up].map(|id| (id != out).then(|| unsafe { self.read(id, rows.clone()) }));
                // SAFETY: the unit's rows.
                let out = unsafe { self.write(out, rows) };
                memory.level.run(GateMul { activation, gate, up, out });
            }
            OpKind::Add { input, out } => {
                // SAFETY: the unit's rows, of another buffer than the output's.
                let input = unsafe { self.read(input, rows.clone()) };
                // SAFETY: the unit's rows.
                let out = unsafe { self.write(out, rows) };
                memory.level.run(Add { input, out });
            }
            OpKind::GatherRows { input, out } => {
                // SAFETY: the unit's rows.
                let out_rows = unsafe { self.write(out, rows.clone()) };
                let out_rows = out_rows.chunks_exact_mut(self.width(out));
                for (row, out) in self.batch.logits_rows[rows].iter().zip(out_rows) {
                    // SAFETY: no op of the stage writes the input, whose rows are of another kind.
                    out.copy_from_slice(unsafe { self.read(input, *row as usize..*row as usize + 1) });
                }
            }
            OpKind::MatMul { .. } | OpKind::Attention { .. } => unreachable!("planned in other stages"),
        }
    }

    /// By tiles and KV heads; if there are few, by chunks of tiles, which a second pass merges.
    fn attention(&self, stage: &Stage, op: usize, scratch: &mut Scratch) {
        let memory = self.memory;
        let heads = memory.program.num_kv_heads;
        let OpKind::Attention { query, out, layer, num_heads, scale, window } = memory.program.ops[op].kind
        else {
            unreachable!("planned as attention")
        };
        let window = window.unwrap_or(usize::MAX);
        let place = memory.layout.places[layer];
        let op = AttentionOp { query, out, place, scale, window, group: num_heads / heads };
        let units = self.tiles.len() * heads;
        let chunks: usize = self.tiles.iter().map(|tile| op.chunks(tile) * heads).sum();
        let rows = self.tiles.iter().map(|tile| tile.rows).max().unwrap_or(0);
        let stride = Partials::len(rows * op.group, memory.program.value_head_size);
        let spread = units < 4 * self.peers.threads() && chunks > units && chunks * stride <= PARTIALS;
        if !spread {
            self.each_tile(&stage.passes[0], units, |unit| self.whole_tile(&op, unit, scratch));
            return;
        }
        self.each_tile(&stage.passes[0], chunks, |unit| {
            let mut start = unit;
            for tile in self.tiles {
                let chunks = op.view(tile).chunks();
                let count = chunks.len() * heads;
                if start < count {
                    let (head, chunk) = (start / chunks.len(), chunks.start + start % chunks.len());
                    // SAFETY: each unit has partials of its own, read in the second pass.
                    let out = unsafe { memory.partials.write(unit * stride..(unit + 1) * stride) };
                    let (queries, scores) = (&mut scratch.queries, &mut scratch.scores);
                    self.load_queries(&op, tile, head, queries);
                    self.attend(&op, tile, head, chunk, queries, scores, out);
                    return;
                }
                start -= count;
            }
        });
        self.each_tile(&stage.passes[1], units, |unit| {
            let (tile, head) = (&self.tiles[unit / heads], unit % heads);
            let chunks = op.view(tile).chunks();
            let before: usize = self.tiles[..unit / heads].iter().map(|tile| op.chunks(tile) * heads).sum();
            let first = before + head * chunks.len();
            let at = |chunk: usize| {
                let place = first + chunk - chunks.start;
                place * stride..(place + 1) * stride
            };
            // SAFETY: a tile's and head's partials are read and written by the thread that took the unit.
            let merged = unsafe { memory.partials.write(at(chunks.start)) };
            for chunk in chunks.clone().skip(1) {
                // SAFETY: the same; another chunk than the first.
                let added = unsafe { memory.partials.write(at(chunk)) };
                self.merge(&op, tile, chunk, merged, added);
            }
            self.write_out(&op, tile, head, merged);
        });
    }

    /// Units one by one, the last and longest first.
    fn each_tile(&self, pass: &Pass, units: usize, mut work: impl FnMut(usize)) {
        self.each_unit(pass, units, 1, |unit| work(units - 1 - unit.start));
    }

    /// All chunks of a tile for one KV head.
    fn whole_tile(&self, op: &AttentionOp, unit: usize, scratch: &mut Scratch) {
        let heads = self.memory.program.num_kv_heads;
        let (tile, head) = (&self.tiles[unit / heads], unit % heads);
        let Scratch { queries, scores, merged, partials, .. } = scratch;
        self.load_queries(op, tile, head, queries);
        let chunks = op.view(tile).chunks();
        self.attend(op, tile, head, chunks.start, queries, scores, merged);
        for chunk in chunks.skip(1) {
            self.attend(op, tile, head, chunk, queries, scores, partials);
            self.merge(op, tile, chunk, merged, partials);
        }
        self.write_out(op, tile, head, merged);
    }

    /// Copies the tile's queries of one KV head together: the output may take their place.
    fn load_queries(&self, op: &AttentionOp, tile: &Tile, head: usize, queries: &mut [f32]) {
        let width = op.group * self.memory.program.head_size;
        for (row, queries) in queries.chunks_exact_mut(width).take(tile.rows).enumerate() {
            let row = tile.first_row + row;
            // SAFETY: a tile's queries are overwritten only by the thread that has loaded them all, or in a
            // later pass.
            let source = unsafe { self.head_range(op.query, row, head * width..(head + 1) * width) };
            queries.copy_from_slice(source);
        }
    }

    /// Part of one row of a buffer.
    ///
    /// # Safety
    /// Nobody writes it meanwhile.
    unsafe fn head_range(&self, buffer: BufferId, row: usize, columns: Range<usize>) -> &[f32] {
        let start = row * self.width(buffer);
        // SAFETY: as the caller promises.
        unsafe { self.memory.buffers[buffer.0].read(start + columns.start..start + columns.end) }
    }

    #[allow(clippy::too_many_arguments)]
    fn attend(
        &self,
        op: &AttentionOp,
        tile: &Tile,
        head: usize,
        chunk: usize,
        queries: &[f32],
        scores: &mut [f32],
        out: &mut [f32],
    ) {
        let Program { head_size, value_head_size, .. } = self.memory.program;
        let count = tile.rows * op.group;
        // SAFETY: the cache is written in other stages only.
        let (keys, values) = unsafe { self.memory.caches[op.place.memory].head(head) };
        let table = tile.sequence.table_start(op.place.group, self.memory.block_size);
        self.memory.level.run(AttendChunk {
            view: op.view(tile),
            chunk,
            block_table: &self.batch.block_tables[table..],
            block_size: self.memory.block_size,
            scale: op.scale,
            queries: &queries[..count * head_size],
            keys,
            values,
            scores,
            out: Partials::over(out, count, value_head_size),
        });
    }

    fn merge(&self, op: &AttentionOp, tile: &Tile, chunk: usize, merged: &mut [f32], added: &mut [f32]) {
        let (count, value_head_size) = (tile.rows * op.group, self.memory.program.value_head_size);
        let merged = Partials::over(merged, count, value_head_size);
        let added = Partials::over(added, count, value_head_size);
        self.memory.level.run(Merge { view: op.view(tile), chunk, merged, added });
    }

    fn write_out(&self, op: &AttentionOp, tile: &Tile, head: usize, merged: &mut [f32]) {
        let value_head_size = self.memory.program.value_head_size;
        let merged = Partials::over(merged, tile.rows * op.group, value_head_size);
        for row in 0..tile.rows {
            let start = (tile.first_row + row) * self.width(op.out) + head * op.group * value_head_size;
            let range = start..start + op.group * value_head_size;
            // SAFETY: a tile's rows of one KV head's queries belong to the thread that took the unit.
            let out = unsafe { self.memory.buffers[op.out.0].write(range) };
            for (index, out) in out.chunks_exact_mut(value_head_size).enumerate() {
                merged.write(row * op.group + index, out);
            }
        }
    }
}

/// The fields of [`OpKind::Attention`], with the number of query heads for each KV head.
struct AttentionOp {
    query: BufferId,
    out: BufferId,
    place: CachePlace,
    scale: f32,
    window: usize,
    group: usize,
}

impl AttentionOp {
    fn view(&self, tile: &Tile) -> TileView {
        TileView { tile: *tile, window: self.window }
    }

    /// Chunks of the context that rows of the tile see.
    fn chunks(&self, tile: &Tile) -> usize {
        self.view(tile).chunks().len()
    }
}
