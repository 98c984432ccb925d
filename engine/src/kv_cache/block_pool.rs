//! The pool of KV blocks: who holds a block, which block is used next, which block holds a known prefix.
//!
//! The free list is ordered. Allocation takes its head. A block that loses its last reference goes to the
//! tail if its contents are known by a hash (so that the least recently used one is overwritten first) and
//! to the head if they are not (nobody can ask for it again). A free block keeps its hash until it is
//! allocated, and may be taken back by a hit before that.
//!
//! Several blocks may have one hash, because two requests can compute the same tokens side by side; a
//! look-up takes the one that was registered first.
//!
//! Invariant: a block other than the null block is in the free list exactly while it has no reference.
//! Asking for a block that is not there, or giving one back twice, is a fault of the caller and panics.

use std::collections::HashMap;

use super::BlockId;
use super::block_hash::BlockHash;
use super::block_list::{BlockList, Links};

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    references: u32,
    hash: Option<BlockHash>,
}

/// See the module.
#[derive(Debug)]
pub struct BlockPool {
    blocks: Vec<Block>,
    free: BlockList,
    free_links: Vec<Links>,
    num_free: usize,
    /// Free blocks with a hash.
    num_evictable: usize,
    /// Blocks whose known contents were overwritten, since somebody asked.
    num_evicted: u64,
    by_hash: HashMap<BlockHash, BlockList>,
    same_hash_links: Vec<Links>,
}

impl BlockPool {
    /// A pool of `num_blocks` blocks, block 0 being the null block, which is never handed out.
    ///
    /// # Panics
    /// If there is no block besides the null block, or more than block numbers.
    pub fn new(num_blocks: usize) -> BlockPool {
        assert!((2..=u32::MAX as usize).contains(&num_blocks), "a pool of {num_blocks} blocks");
        let mut free = BlockList::default();
        let mut free_links = vec![Links::default(); num_blocks];
        for number in 1..num_blocks {
            free.push_back(&mut free_links, BlockId(number as u32));
        }
        BlockPool {
            blocks: vec![Block::default(); num_blocks],
            free,
            free_links,
            num_free: num_blocks - 1,
            num_evictable: 0,
            num_evicted: 0,
            by_hash: HashMap::new(),
            same_hash_links: vec![Links::default(); num_blocks],
        }
    }

    /// Blocks, the null block included.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that nobody holds.
    pub fn num_free(&self) -> usize {
        self.num_free
    }

    /// Blocks that nobody holds and whose contents are known by a hash.
    pub fn num_evictable(&self) -> usize {
        self.num_evictable
    }

    /// Blocks whose known contents were overwritten since the last call.
    pub fn take_num_evicted(&mut self) -> u64 {
        std::mem::take(&mut self.num_evicted)
    }

    /// Whether nobody holds the block.
    pub fn is_free(&self, id: BlockId) -> bool {
        self.blocks[id.index()].references == 0
    }

    /// The block that was registered first for these contents, free or held.
    pub fn lookup(&self, hash: &BlockHash) -> Option<BlockId> {
        self.by_hash.get(hash).and_then(BlockList::first)
    }

    /// Takes the block at the head of the free list; what it held is forgotten.
    ///
    /// # Panics
    /// If no block is free.
    pub fn allocate(&mut self) -> BlockId {
        let id = self.free.first().expect("a free block");
        self.take_from_free_list(id);
        self.blocks[id.index()].references = 1;
        self.num_evicted += u64::from(self.hash(id).is_some());
        self.forget(id);
        id
    }

    /// Adds a reference to a block found by [`BlockPool::lookup`].
    pub fn touch(&mut self, id: BlockId) {
        assert_ne!(id, BlockId::NULL, "the null block is never shared");
        if self.is_free(id) {
            self.take_from_free_list(id);
        }
        self.blocks[id.index()].references += 1;
    }

    /// Gives back one reference to each of a request's blocks, which come in the order of the request.
    /// Its last block becomes the first to be overwritten, among those with a hash and among those without.
    ///
    /// # Panics
    /// If a block has no reference left to give back.
    pub fn release(&mut self, ids: &[BlockId]) {
        for &id in ids {
            let block = &mut self.blocks[id.index()];
            assert!(block.references > 0, "block {} was given back more often than taken", id.0);
            block.references -= 1;
            if block.references == 0 && block.hash.is_none() {
                self.free.push_front(&mut self.free_links, id);
                self.num_free += 1;
            }
        }
        for &id in ids.iter().rev() {
            let block = &self.blocks[id.index()];
            if block.references == 0 && block.hash.is_some() {
                self.free.push_back(&mut self.free_links, id);
                self.num_free += 1;
                self.num_evictable += 1;
            }
        }
    }

    /// Makes a held block findable by the hash of the contents it is about to have.
    ///
    /// # Panics
    /// If the block is free or already has a hash.
    pub fn register(&mut self, id: BlockId, hash: BlockHash) {
        let block = &mut self.blocks[id.index()];
        assert!(block.references > 0 && block.hash.is_none(), "block {} is {block:?}", id.0);
        block.hash = Some(hash);
        self.by_hash.entry(hash).or_default().push_back(&mut self.same_hash_links, id);
    }

    /// Makes a block unfindable. Does nothing to a block without a hash.
    pub fn forget(&mut self, id: BlockId) {
        if let Some(hash) = self.blocks[id.index()].hash.take() {
            let list = self.by_hash.get_mut(&hash).expect("a hash that a block has is in the table");
            list.remove(&mut self.same_hash_links, id);
            if list.first().is_none() {
                self.by_hash.remove(&hash);
            }
            if self.is_free(id) {
                self.num_evictable -= 1;
            }
        }
    }

    /// Forgets the contents of all blocks. `false`, and nothing happens, while a block is held.
    pub fn reset(&mut self) -> bool {
        if self.num_free != self.num_blocks() - 1 {
            return false;
        }
        self.num_evictable = 0;
        self.by_hash.clear();
        self.same_hash_links.fill(Links::default());
        for block in &mut self.blocks {
            block.hash = None;
        }
        true
    }

    /// Contents of a block, if they are known.
    pub fn hash(&self, id: BlockId) -> Option<BlockHash> {
        self.blocks[id.index()].hash
    }

    /// The free blocks in the order in which they will be used.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.free.iter(&self.free_links)
    }

    /// Asserts the module's invariant, given how many owners each block has.
    ///
    /// # Panics
    /// If it is broken.
    pub fn assert_invariants(&self, owners: &[u32]) {
        let mut free = vec![false; self.num_blocks()];
        for id in self.free_blocks() {
            assert!(!std::mem::replace(&mut free[id.index()], true), "block {} is free twice", id.0);
        }
        assert_eq!(self.num_free, free.iter().filter(|free| **free).count(), "length of the free list");
        let evictable = self.free_blocks().filter(|id| self.hash(*id).is_some()).count();
        assert_eq!(self.num_evictable, evictable, "free blocks with a hash");
        assert!(!free[0] && self.blocks[0].hash.is_none(), "the null block takes part in nothing");
        for (number, block) in self.blocks.iter().enumerate() {
            assert_eq!(block.references, owners[number], "references of block {number} against its owners");
            assert!(number == 0 || free[number] == (block.references == 0), "block {number}: {block:?}");
        }
        let mut num_hashed = 0;
        for (hash, list) in &self.by_hash {
            for id in list.iter(&self.same_hash_links) {
                assert_eq!(self.hash(id), Some(*hash), "block {} in the table", id.0);
                num_hashed += 1;
            }
        }
        let expected = self.blocks.iter().filter(|block| block.hash.is_some()).count();
        assert_eq!(num_hashed, expected, "every hash is in the table");
    }

    fn take_from_free_list(&mut self, id: BlockId) {
        self.free.remove(&mut self.free_links, id);
        self.num_free -= 1;
        if self.hash(id).is_some() {
            self.num_evictable -= 1;
        }
    }
}
