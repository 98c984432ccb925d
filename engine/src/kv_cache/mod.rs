//! The paged KV cache as bookkeeping: which blocks a sequence holds and which of them are shared.
//!
//! [`KvCache`] answers whether a sequence can grow and how much of a prompt is already computed, and hands
//! out blocks of its [`BlockPool`]. What is stored in the blocks is the device's business; which sequence
//! comes first is the scheduler's. Questions change nothing; an action asserts what the question established.
//!
//! Only full blocks are shared, so a shared block is never written again. A block is registered when slots
//! are given out for the step that fills it, before its contents exist: a request admitted in the same step
//! may already use it, because every op of the forward pass stores all rows before any row attends. If that
//! step then does not happen, [`KvCache::forget`] takes the registration back.
//!
//! The choices of one request ([`Siblings`]) share their prompt in the same way. Where prefix caching is off
//! their blocks are named after the group, so that nobody else finds them.
//!
//! Layers may form several groups ([`crate::cache_layout`]), and a sequence then has as many tables. In a group with
//! a window, a block that no later token sees is given back ([`KvCache::slide`]) and the null block takes its place.
//! A prefix is found if groups that attend to everything have all its blocks and groups with a window the last ones,
//! as many as the next token sees; what came before them is null from the start.
//!
//! Invariant: a sequence's blocks are in the order of its positions; position p is in block `p / block_size` of each
//! of its tables, and all tables are equally long. Null blocks come first in a table, and only where a window has
//! passed.

mod block_hash;
mod block_list;
mod block_pool;
mod residency;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::Instant;

use limpid_telemetry::observation::BlockResidency;

pub use block_hash::BlockHash;
pub use block_pool::BlockPool;
use residency::Residency;

/// Number of a block in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Block 0, which no sequence ever holds.
    pub const NULL: BlockId = BlockId(0);

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names the sequences that are choices of one request, with one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Siblings(pub u64);

/// The blocks of one sequence and the hashes of its full blocks, held or not.
#[derive(Debug)]
pub struct BlockTable {
    /// By group.
    groups: Vec<Vec<BlockId>>,
    /// Of every full block of the sequence's known tokens; kept when the blocks are given back, because a
    /// preempted sequence looks itself up again. Empty if the sequence shares with nobody.
    hashes: Vec<BlockHash>,
    /// The parent of the first block's hash; `None` if the sequence shares with nobody.
    root: Option<BlockHash>,
    num_registered: usize,
}

impl BlockTable {
    /// The blocks for a group of layers, in the order of positions; null where the group's window has passed.
    pub fn blocks(&self, group: usize) -> &[BlockId] {
        &self.groups[group]
    }

    /// The blocks held, of all groups.
    pub fn held(&self) -> impl Iterator<Item = BlockId> + '_ {
        held(&self.groups)
    }

    /// Blocks in each group's table, null ones included.
    pub fn num_blocks(&self) -> usize {
        self.groups[0].len()
    }

    /// Leading blocks that were registered under their hash.
    pub fn num_registered(&self) -> usize {
        self.num_registered
    }
}

/// The blocks that already hold the beginning of a sequence, by group; null where the group's window has passed.
#[derive(Debug, Default)]
pub struct Prefix {
    groups: Vec<Vec<BlockId>>,
}

impl Prefix {
    /// Blocks of tokens that need not be computed.
    pub fn num_blocks(&self) -> usize {
        self.groups.first().map_or(0, Vec::len)
    }

    fn clear(&mut self, num_groups: usize) {
        self.groups.resize(num_groups, Vec::new());
        self.groups.iter_mut().for_each(Vec::clear);
    }
}

fn held(groups: &[Vec<BlockId>]) -> impl Iterator<Item = BlockId> + '_ {
    groups.iter().flatten().copied().filter(|id| *id != BlockId::NULL)
}

/// See the module.
#[derive(Debug)]
pub struct KvCache {
    pool: BlockPool,
    /// Each group's window; `None` where its layers attend to everything.
    windows: Vec<Option<usize>>,
    /// Blocks that sequences hold for groups with a window.
    num_windowed_held: usize,
    block_size: usize,
    enable_prefix_caching: bool,
    residency: Option<Residency>,
}

impl KvCache {
    /// A cache of `num_blocks` blocks, the null block included, of `block_size` tokens, for groups of layers with
    /// these windows.
    pub fn new(
        windows: &[Option<usize>],
        num_blocks: usize,
        block_size: usize,
        enable_prefix_caching: bool,
    ) -> KvCache {
        assert!(block_size > 0, "a block holds at least one token");
        assert!(!windows.is_empty() && !windows.contains(&Some(0)), "{windows:?}: a token sees itself");
        KvCache {
            pool: BlockPool::new(num_blocks),
            windows: windows.to_vec(),
            num_windowed_held: 0,
            block_size,
            enable_prefix_caching,
            residency: None,
        }
    }

    /// Each group's window; `None` where its layers attend to everything.
    pub fn windows(&self) -> &[Option<usize>] {
        &self.windows
    }

    /// Watches this share of the blocks that are handed out, 0 to 1. Without prefix caching nothing is
    /// watched, as in vLLM.
    pub fn sample_residency(&mut self, share: f64) {
        self.residency = self.enable_prefix_caching.then(|| Residency::new(share));
    }

    /// What was seen of watched blocks that lost their contents, since the last call.
    pub fn take_evicted(&mut self) -> Vec<BlockResidency> {
        self.residency.as_mut().map(Residency::take).unwrap_or_default()
    }

    /// A table without blocks, for a sequence with this salt that may have siblings.
    pub fn table(&self, salt: Option<&str>, siblings: Option<Siblings>) -> BlockTable {
        let root = match self.enable_prefix_caching {
            true => Some(BlockHash::root(salt)),
            false => siblings.map(BlockHash::root_of_siblings),
        };
        let groups = vec![Vec::new(); self.windows.len()];
        BlockTable { groups, hashes: Vec::new(), root, num_registered: 0 }
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Whether equal prefixes are shared.
    pub fn enable_prefix_caching(&self) -> bool {
        self.enable_prefix_caching
    }

    /// Blocks that nobody holds; cached ones among them.
    pub fn num_free(&self) -> usize {
        self.pool.num_free()
    }

    /// Share of the blocks that sequences hold, 0 to 1; the null block does not count.
    pub fn usage(&self) -> f64 {
        1.0 - self.pool.num_free() as f64 / (self.pool.num_blocks() - 1) as f64
    }

    /// Share of the blocks that sequences hold for layers with a window, 0 to 1.
    pub fn windowed_usage(&self) -> f64 {
        self.num_windowed_held as f64 / (self.pool.num_blocks() - 1) as f64
    }

    /// Blocks that nobody holds and whose contents a prefix could still hit.
    pub fn num_evictable(&self) -> usize {
        self.pool.num_evictable()
    }

    /// Such blocks that were overwritten since the last call.
    pub fn take_num_evicted(&mut self) -> u64 {
        self.pool.take_num_evicted()
    }

    /// Hashes the full blocks of `tokens`, the sequence's known tokens, that have no hash yet.
    pub fn extend_hashes(&self, table: &mut BlockTable, tokens: &[u32]) {
        let Some(root) = table.root else { return };
        let known = table.hashes.len() * self.block_size;
        for block in tokens[known..].chunks_exact(self.block_size) {
            let hash = table.hashes.last().unwrap_or(&root).child(block);
            table.hashes.push(hash);
        }
    }

    /// Finds the blocks that already hold the beginning of a sequence of `num_tokens` tokens and writes them
    /// to `prefix`. At least the last token is left to compute, so that there are logits to sample from.
    pub fn find_prefix(&self, table: &BlockTable, num_tokens: usize, prefix: &mut Prefix) {
        prefix.clear(self.windows.len());
        let limit = ((num_tokens - 1) / self.block_size).min(table.hashes.len());
        let lookup = |group: usize, index: usize| self.pool.lookup(&table.hashes[index].in_group(group));
        let mut end = limit;
        for (group, window) in self.windows.iter().enumerate() {
            if window.is_none() {
                end = (0..end).find(|index| lookup(group, *index).is_none()).unwrap_or(end);
            }
        }
        // A window that lacks one of its blocks ends before it, which moves the other windows as well.
        let missing = |end: usize| {
            let windows = self.windows.iter().enumerate();
            windows
                .filter_map(|(group, window)| {
                    let first = end.saturating_sub(self.blocks_seen((*window)?));
                    (first..end).rev().find(|index| lookup(group, *index).is_none())
                })
                .min()
        };
        while let Some(index) = missing(end) {
            end = index;
        }
        for (group, (window, blocks)) in self.windows.iter().zip(&mut prefix.groups).enumerate() {
            let first = window.map_or(0, |window| end.saturating_sub(self.blocks_seen(window)));
            blocks.resize(first, BlockId::NULL);
            blocks.extend((first..end).map(|index| lookup(group, index).expect("it was there")));
        }
    }

    /// Blocks before the first token of a block that it sees through a window.
    fn blocks_seen(&self, window: usize) -> usize {
        (window - 1).div_ceil(self.block_size)
    }

    /// Whether the sequence can hold `num_tokens` tokens, of which the blocks of `prefix` are shared.
    pub fn can_allocate(&self, table: &BlockTable, prefix: &Prefix, num_tokens: usize) -> bool {
        let blocks = num_tokens.div_ceil(self.block_size);
        let needed = blocks.saturating_sub(table.num_blocks() + prefix.num_blocks()) * self.windows.len();
        // A hit on a free block takes it out of the free list like an allocation.
        let revived = held(&prefix.groups).filter(|id| self.pool.is_free(*id)).count();
        needed + revived <= self.pool.num_free()
    }

    /// Gives the sequence the shared blocks of `prefix` and new blocks up to `num_tokens` tokens, and registers
    /// those that will be full. `now` is the stamp of the step.
    ///
    /// # Panics
    /// If [`KvCache::can_allocate`] says no, or a prefix comes for a sequence that has blocks.
    pub fn allocate(&mut self, table: &mut BlockTable, prefix: &Prefix, num_tokens: usize, now: Instant) {
        if prefix.num_blocks() > 0 {
            assert_eq!(table.num_blocks(), 0, "a prefix is found before anything is computed");
            for (group, hits) in prefix.groups.iter().enumerate() {
                for id in hits.iter().filter(|id| **id != BlockId::NULL) {
                    self.count_taken(group, *id);
                    self.pool.touch(*id);
                    if let Some(residency) = &mut self.residency {
                        residency.touched(*id, now);
                    }
                }
                table.groups[group].extend_from_slice(hits);
            }
            table.num_registered = prefix.num_blocks();
        }
        for index in table.num_blocks()..num_tokens.div_ceil(self.block_size) {
            for group in 0..self.windows.len() {
                let id = self.pool.allocate();
                self.num_windowed_held += usize::from(self.windows[group].is_some());
                if let Some(residency) = &mut self.residency {
                    residency.allocated(id, now);
                }
                table.groups[group].push(id);
            }
            debug_assert_eq!(table.num_blocks(), index + 1);
        }
        if table.root.is_some() {
            for index in table.num_registered..num_tokens / self.block_size {
                for (group, blocks) in table.groups.iter().enumerate() {
                    self.pool.register(blocks[index], table.hashes[index].in_group(group));
                }
                table.num_registered = index + 1;
            }
        }
    }

    /// Gives back the blocks that no token from position `num_computed_tokens` on sees, and puts the null block
    /// in their place.
    pub fn slide(&mut self, table: &mut BlockTable, num_computed_tokens: usize) {
        for group in 0..self.windows.len() {
            let Some(window) = self.windows[group] else { continue };
            let passed = (num_computed_tokens + 1).saturating_sub(window) / self.block_size;
            let blocks = &mut table.groups[group][..passed];
            let first = blocks.iter().rposition(|id| *id == BlockId::NULL).map_or(0, |last| last + 1);
            self.release(group, &blocks[first..]);
            blocks[first..].fill(BlockId::NULL);
        }
    }

    /// Makes the sequence's blocks from position `num_valid_tokens` on unfindable: their contents were
    /// never computed, or are not to be trusted.
    pub fn forget(&mut self, table: &mut BlockTable, num_valid_tokens: usize) {
        let valid = (num_valid_tokens / self.block_size).min(table.num_registered);
        for (group, blocks) in table.groups.iter().enumerate() {
            for (index, id) in blocks.iter().enumerate().take(table.num_registered).skip(valid) {
                match *id {
                    // The window has passed; whoever has the block now has the same contents.
                    BlockId::NULL => {
                        let hash = table.hashes[index].in_group(group);
                        while let Some(id) = self.pool.lookup(&hash) {
                            self.pool.forget(id);
                        }
                    }
                    id => self.pool.forget(id),
                }
            }
        }
        table.num_registered = valid;
    }

    /// Gives all blocks of the sequence back. The table keeps its hashes.
    pub fn free(&mut self, table: &mut BlockTable) {
        for (group, blocks) in table.groups.iter_mut().enumerate() {
            let first = blocks.iter().rposition(|id| *id == BlockId::NULL).map_or(0, |last| last + 1);
            self.release(group, &blocks[first..]);
            blocks.clear();
        }
        table.num_registered = 0;
    }

    fn release(&mut self, group: usize, ids: &[BlockId]) {
        self.pool.release(ids);
        if self.windows[group].is_some() {
            self.num_windowed_held -= ids.iter().filter(|id| self.pool.is_free(**id)).count();
        }
    }

    /// To be called before a shared block gets another owner.
    fn count_taken(&mut self, group: usize, id: BlockId) {
        self.num_windowed_held += usize::from(self.windows[group].is_some() && self.pool.is_free(id));
    }

    /// Forgets every cached prefix. `false`, and nothing happens, while a sequence holds a block.
    pub fn reset_prefix_cache(&mut self) -> bool {
        let reset = self.pool.reset();
        if let Some(residency) = self.residency.as_mut().filter(|_| reset) {
            residency.reset();
        }
        reset
    }

    /// The pool, for tests that plant faults in it.
    #[doc(hidden)]
    pub fn pool_mut(&mut self) -> &mut BlockPool {
        &mut self.pool
    }

    /// Asserts that these are all sequences that hold blocks, and that pool and tables agree.
    ///
    /// # Panics
    /// If they do not.
    pub fn assert_invariants<'a>(&self, tables: impl Iterator<Item = &'a BlockTable>) {
        let mut owners = vec![0; self.pool.num_blocks()];
        let mut windowed = HashSet::new();
        for table in tables {
            let len = table.num_blocks();
            assert!(table.num_registered <= len.min(table.hashes.len()), "{table:?}");
            for (group, blocks) in table.groups.iter().enumerate() {
                assert_eq!(blocks.len(), len, "the tables of a sequence: {table:?}");
                let passed = blocks.iter().take_while(|id| **id == BlockId::NULL).count();
                assert!(
                    passed == 0 || self.windows[group].is_some(),
                    "group {group} passes nothing: {table:?}"
                );
                for (index, id) in blocks.iter().enumerate().skip(passed) {
                    owners[id.index()] += 1;
                    if self.windows[group].is_some() {
                        windowed.insert(*id);
                    }
                    // A block whose contents another sequence gave up is held on, without a hash.
                    if let Some(hash) = self.pool.hash(*id) {
                        assert!(index < table.num_registered, "block {} is shared before it is full", id.0);
                        assert_eq!(hash, table.hashes[index].in_group(group), "contents of block {}", id.0);
                    }
                }
            }
        }
        assert_eq!(self.num_windowed_held, windowed.len(), "blocks held for layers with a window");
        assert_eq!(owners[0], 0, "the null block lies between others");
        self.pool.assert_invariants(&owners);
    }
}
