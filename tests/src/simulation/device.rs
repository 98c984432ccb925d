//! A device whose keys and values are hashes.
//!
//! The entry for position p is a hash of the entry for p − 1, as found through the block table, and the
//! token at p. So it stands for everything the real entry depends on.

use limpid_engine::device::Batch;

/// Hash of a sequence up to one position.
pub(super) type History = u64;

/// The history before the first token; the salt is part of it, so that a block shared between salts shows.
pub(super) fn root(salt: Option<&str>) -> History {
    salt.map_or(1, |salt| salt.bytes().fold(2, |history, byte| extend(history, u32::from(byte))))
}

/// The history with one more token (the finaliser of SplitMix64).
pub(super) fn extend(history: History, token: u32) -> History {
    let mut mixed =
        history.wrapping_mul(31).wrapping_add(u64::from(token)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The token that the model says follows.
pub(super) fn next_token(history: History, vocabulary: u32) -> u32 {
    (history % u64::from(vocabulary)) as u32
}

/// The KV store.
pub(super) struct FakeDevice {
    slots: Vec<Option<History>>,
    block_size: usize,
    num_groups: usize,
}

impl FakeDevice {
    pub(super) fn new(num_blocks: usize, block_size: usize, num_groups: usize) -> FakeDevice {
        FakeDevice { slots: vec![None; num_blocks * block_size], block_size, num_groups }
    }

    fn slot(&self, batch: &Batch, sequence: usize, group: usize, position: usize) -> usize {
        let start = batch.sequences[sequence].table_start(group, self.block_size);
        let block = batch.block_tables[start + position / self.block_size];
        assert_ne!(block, 0, "group {group} needs position {position}, and the null block is there");
        block as usize * self.block_size + position % self.block_size
    }

    /// What a group of layers has stored for a position of a sequence of the batch.
    pub(super) fn read(
        &self,
        batch: &Batch,
        sequence: usize,
        group: usize,
        position: usize,
    ) -> Option<History> {
        self.slots[self.slot(batch, sequence, group, position)]
    }

    /// What the last slot of a block holds: it stands for all the others.
    pub(super) fn end_of_block(&self, number: usize) -> Option<History> {
        self.slots[(number + 1) * self.block_size - 1]
    }

    /// Stores the entries of the first `num_rows` rows in every group, but not those of row `lost`. `roots` are the
    /// sequences' histories before their first token. Windows have to be 2 or more, for an entry is made from the
    /// one before it.
    pub(super) fn store(&mut self, batch: &Batch, roots: &[History], num_rows: usize, lost: Option<usize>) {
        assert_eq!(batch.sequences.len(), roots.len());
        for (index, sequence) in batch.sequences.iter().enumerate() {
            for row in sequence.first_row as usize..(sequence.first_row + sequence.num_rows) as usize {
                if row >= num_rows {
                    return;
                }
                let position = batch.positions[row] as usize;
                for group in 0..self.num_groups {
                    let slot = batch.slots[group * batch.tokens.len() + row] as usize;
                    assert_eq!(slot, self.slot(batch, index, group, position), "slot of row {row}");
                    let before = match position {
                        0 => Some(roots[index]),
                        _ => self.read(batch, index, group, position - 1),
                    };
                    if lost != Some(row) {
                        self.slots[slot] = before.map(|history| extend(history, batch.tokens[row]));
                    }
                }
            }
        }
    }
}
