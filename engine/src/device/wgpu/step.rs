//! The data of one step: counts, tokens, positions, slots, block tables, wanted rows and rope tables, laid
//! out as one run of words and sent in one copy.

use crate::device::{Batch, DeviceLimits};
use crate::kernels::rope::RopeTable;

/// Words of `Header` in `prelude.wgsl`, filled up to a uniform binding.
pub(super) const HEADER_WORDS: usize = 16;

/// Most words a step can take, with this many groups of layers in the cache.
pub(super) fn capacity(limits: &DeviceLimits, groups: usize, ropes: &[RopeTable]) -> usize {
    let rope_words: usize = ropes.iter().map(RopeTable::words).sum();
    HEADER_WORDS
        + limits.max_tokens * (2 + 2 * groups + rope_words)
        + limits.max_sequences * (1 + groups * limits.max_blocks_per_sequence)
}

/// Writes a checked batch to `words` (cleared first).
pub(super) fn lay_out(
    batch: &Batch,
    limits: &DeviceLimits,
    groups: usize,
    ropes: &[RopeTable],
    words: &mut Vec<u32>,
) {
    words.clear();
    words.resize(HEADER_WORDS, 0);
    let mut header = [batch.tokens.len() as u32, batch.logits_rows.len() as u32, 0, 0, 0, 0, 0, 0, 0];
    header[2] = append(words, &batch.tokens);
    header[3] = append(words, &batch.positions);
    header[4] = append(words, &batch.slots);
    // Tables are copied sequence by sequence, so that what lies between them takes no room.
    header[5] = words.len() as u32;
    for group in 0..groups {
        let mut start = 0;
        for sequence in &batch.sequences {
            let blocks = sequence.num_blocks(limits.block_size);
            let table = (start + group * blocks) as u32;
            words.extend((0..sequence.num_rows).map(|_| table));
            start += groups * blocks;
        }
    }
    header[6] = words.len() as u32;
    for sequence in &batch.sequences {
        let run = sequence.table_start(0, limits.block_size)..sequence.table_start(groups, limits.block_size);
        words.extend(&batch.block_tables[run]);
    }
    header[7] = append(words, &batch.logits_rows);
    header[8] = words.len() as u32;
    for rope in ropes {
        rope.append(&batch.positions, words);
    }
    words[..header.len()].copy_from_slice(&header);
}

fn append(words: &mut Vec<u32>, section: &[u32]) -> u32 {
    let start = words.len() as u32;
    words.extend_from_slice(section);
    start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::BatchSequence;
    use crate::program::Rotation;

    #[test]
    fn a_full_batch_fits_the_capacity_and_unused_table_entries_are_left_behind() {
        let limits = DeviceLimits {
            num_blocks: 9,
            block_size: 4,
            max_tokens: 3,
            max_sequences: 2,
            max_blocks_per_sequence: 2,
        };
        let ropes = [RopeTable::new(Rotation::plain(6, 100.0), None)];
        let batch = Batch {
            tokens: vec![5, 6, 7],
            positions: vec![4, 5, 7],
            slots: vec![0, 1, 2],
            sequences: vec![
                BatchSequence { first_row: 0, num_rows: 2, context_len: 6, block_table_start: 3 },
                BatchSequence { first_row: 2, num_rows: 1, context_len: 8, block_table_start: 0 },
            ],
            block_tables: vec![1, 2, 99, 3, 4, 99],
            logits_rows: vec![1, 2],
            candidates: vec![],
        };
        let mut words = Vec::new();
        lay_out(&batch, &limits, 1, &ropes, &mut words);
        assert_eq!(words.len(), capacity(&limits, 1, &ropes));
        assert_eq!(words[words[5] as usize..][..3], [0, 0, 2]);
        assert_eq!(words[words[6] as usize..][..4], [3, 4, 1, 2]);
        assert_eq!(words[words[7] as usize..][..2], [1, 2]);
        assert_eq!(f32::from_bits(words[words[8] as usize]), 4.0f32.cos());

        // The same for two groups: both tables of a sequence are one run.
        let slots = [0, 1, 2, 10, 11, 12].to_vec();
        let block_tables = vec![1, 2, 5, 6, 99, 3, 4, 7, 8, 99];
        let mut sequences = batch.sequences.clone();
        sequences[0].block_table_start = 5;
        let batch = Batch { slots, block_tables, sequences, ..batch };
        lay_out(&batch, &limits, 2, &ropes, &mut words);
        assert_eq!(words.len(), capacity(&limits, 2, &ropes));
        assert_eq!(words[words[4] as usize..][..6], [0, 1, 2, 10, 11, 12]);
        assert_eq!(words[words[5] as usize..][..6], [0, 0, 4, 2, 2, 6]);
        assert_eq!(words[words[6] as usize..][..8], [3, 4, 7, 8, 1, 2, 5, 6]);
    }
}
