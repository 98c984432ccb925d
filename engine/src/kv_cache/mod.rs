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
//! Invariant: a sequence's blocks are in the order of its positions; position p is in block
//! `p / block_size`.

mod block_hash;
mod block_list;
mod block_pool;
#[cfg(test)]
mod tests;

pub use block_hash::BlockHash;
pub use block_pool::BlockPool;

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

/// The blocks of one sequence and the hashes of its full blocks, held or not.
#[derive(Debug)]
pub struct BlockTable {
    blocks: Vec<BlockId>,
    /// Of every full block of the sequence's known tokens; kept when the blocks are given back, because a
    /// preempted sequence looks itself up again. Empty if prefix caching is off.
    hashes: Vec<BlockHash>,
    root: BlockHash,
    num_registered: usize,
}

impl BlockTable {
    /// A table without blocks, for a sequence with this salt.
    pub fn new(salt: Option<&str>) -> BlockTable {
        BlockTable { blocks: Vec::new(), hashes: Vec::new(), root: BlockHash::root(salt), num_registered: 0 }
    }

    /// The blocks held, in the order of positions.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// Leading blocks that were registered under their hash.
    pub fn num_registered(&self) -> usize {
        self.num_registered
    }
}

/// See the module.
#[derive(Debug)]
pub struct KvCache {
    pool: BlockPool,
    block_size: usize,
    enable_prefix_caching: bool,
}

impl KvCache {
    /// A cache of `num_blocks` blocks, the null block included, of `block_size` tokens.
    pub fn new(num_blocks: usize, block_size: usize, enable_prefix_caching: bool) -> KvCache {
        assert!(block_size > 0, "a block holds at least one token");
        KvCache { pool: BlockPool::new(num_blocks), block_size, enable_prefix_caching }
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
        if !self.enable_prefix_caching {
            return;
        }
        let known = table.hashes.len() * self.block_size;
        for block in tokens[known..].chunks_exact(self.block_size) {
            let hash = table.hashes.last().unwrap_or(&table.root).child(block);
            table.hashes.push(hash);
        }
    }

    /// Finds the blocks that already hold the beginning of a sequence of `num_tokens` tokens and writes them
    /// to `hits`. At least the last token is left to compute, so that there are logits to sample from.
    pub fn find_prefix(&self, table: &BlockTable, num_tokens: usize, hits: &mut Vec<BlockId>) {
        hits.clear();
        let limit = (num_tokens - 1) / self.block_size;
        hits.extend(table.hashes.iter().take(limit).map_while(|hash| self.pool.lookup(hash)));
    }

    /// Whether the sequence can hold `num_tokens` tokens, of which the blocks `hits` are shared.
    pub fn can_allocate(&self, table: &BlockTable, hits: &[BlockId], num_tokens: usize) -> bool {
        let needed = num_tokens.div_ceil(self.block_size).saturating_sub(table.blocks.len() + hits.len());
        // A hit on a free block takes it out of the free list like an allocation.
        let revived = hits.iter().filter(|id| self.pool.is_free(**id)).count();
        needed + revived <= self.pool.num_free()
    }

    /// Gives the sequence the shared blocks `hits` and new blocks up to `num_tokens` tokens, and registers
    /// those that will be full.
    ///
    /// # Panics
    /// If [`KvCache::can_allocate`] says no, or hits come for a sequence that has blocks.
    pub fn allocate(&mut self, table: &mut BlockTable, hits: &[BlockId], num_tokens: usize) {
        if !hits.is_empty() {
            assert!(table.blocks.is_empty(), "a prefix is found before anything is computed");
            for id in hits {
                self.pool.touch(*id);
            }
            table.blocks.extend_from_slice(hits);
            table.num_registered = hits.len();
        }
        for _ in table.blocks.len()..num_tokens.div_ceil(self.block_size) {
            table.blocks.push(self.pool.allocate());
        }
        if self.enable_prefix_caching {
            for index in table.num_registered..num_tokens / self.block_size {
                self.pool.register(table.blocks[index], table.hashes[index]);
                table.num_registered = index + 1;
            }
        }
    }

    /// Makes the sequence's blocks from position `num_valid_tokens` on unfindable: their contents were
    /// never computed, or are not to be trusted.
    pub fn forget(&mut self, table: &mut BlockTable, num_valid_tokens: usize) {
        let valid = (num_valid_tokens / self.block_size).min(table.num_registered);
        for id in &table.blocks[valid..table.num_registered] {
            self.pool.forget(*id);
        }
        table.num_registered = valid;
    }

    /// Gives all blocks of the sequence back. The table keeps its hashes.
    pub fn free(&mut self, table: &mut BlockTable) {
        self.pool.release(&table.blocks);
        table.blocks.clear();
        table.num_registered = 0;
    }

    /// Forgets every cached prefix. `false`, and nothing happens, while a sequence holds a block.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.pool.reset()
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
        for table in tables {
            assert!(table.num_registered <= table.blocks.len().min(table.hashes.len()), "{table:?}");
            for (index, id) in table.blocks.iter().enumerate() {
                owners[id.index()] += 1;
                // A block whose contents another sequence gave up is held on, without a hash.
                if let Some(hash) = self.pool.hash(*id) {
                    assert!(index < table.num_registered, "block {} is shared before it is full", id.0);
                    assert_eq!(hash, table.hashes[index], "contents of block {}", id.0);
                }
            }
        }
        assert_eq!(owners[0], 0, "the null block is in a table");
        self.pool.assert_invariants(&owners);
    }
}
