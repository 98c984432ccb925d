//! Is a batch something a device can run? Every device asks before it computes, so that a scheduler's
//! mistake is an error with numbers in it and never an access out of bounds.
//!
//! Invariant: a batch that passes indexes no table, pool or buffer of a device opened with the same program
//! and limits out of bounds.

use super::{Batch, DeviceError, DeviceLimits};
use crate::cache_layout::CacheLayout;
use crate::program::{OpKind, Program};

/// Checks the lengths of a batch, and every number in it, against the program, the limits, and how many candidates
/// the device picks of a row at most.
///
/// # Errors
/// [`DeviceError::Limit`] where a number exceeds a limit, [`DeviceError::Failed`] where the parts of the
/// batch contradict each other.
pub fn check_batch(
    batch: &Batch,
    program: &Program,
    layout: &CacheLayout,
    limits: &DeviceLimits,
    max_candidates: usize,
) -> Result<(), DeviceError> {
    let rows = batch.tokens.len();
    at_most("a batch", rows, "rows", limits.max_tokens)?;
    at_most("a batch", batch.sequences.len(), "sequences", limits.max_sequences)?;
    at_most("a batch", batch.logits_rows.len(), "logits rows", limits.max_sequences)?;
    let groups = layout.num_groups();
    if batch.positions.len() != rows || batch.slots.len() != groups * rows {
        return Err(DeviceError::Failed(format!(
            "a batch of {rows} tokens has {} positions and {} slots in {groups} groups",
            batch.positions.len(),
            batch.slots.len()
        )));
    }
    let entries = program.ops.iter().filter_map(|op| match op.kind {
        OpKind::Embed { table, .. } => Some(program.weights[table.0].rows),
        _ => None,
    });
    let (entries, slots) = (entries.min().unwrap_or(usize::MAX), limits.num_blocks * limits.block_size);
    for row in 0..rows {
        below(|| format!("the token id of row {row}"), batch.tokens[row], "embedding rows", entries)?;
        for group in 0..groups {
            below(|| format!("the slot of row {row}"), batch.slots[group * rows + row], "slots", slots)?;
        }
    }
    check_sequences(batch, groups, limits)?;
    for pair in batch.logits_rows.windows(2) {
        if pair[0] >= pair[1] {
            return Err(DeviceError::Failed(format!("logits row {} comes before {}", pair[0], pair[1])));
        }
    }
    let (wanted, asked) = (batch.logits_rows.len(), batch.candidates.len());
    if asked != 0 && asked != wanted {
        return Err(DeviceError::Failed(format!("of {wanted} logits rows {asked} are asked for candidates")));
    }
    for index in 0..asked {
        at_most("a logits row", batch.num_candidates(index), "candidates", max_candidates)?;
    }
    match batch.logits_rows.last() {
        Some(row) => below(|| "the last logits row".to_owned(), *row, "rows", rows),
        None => Ok(()),
    }
}

/// The sequences cover the rows one after the other, and each has the blocks its positions need in every group.
fn check_sequences(batch: &Batch, groups: usize, limits: &DeviceLimits) -> Result<(), DeviceError> {
    let mut next_row = 0;
    for (index, sequence) in batch.sequences.iter().enumerate() {
        let (first, rows) = (sequence.first_row as usize, sequence.num_rows as usize);
        if first != next_row || rows == 0 || rows > batch.tokens.len() - first {
            return Err(DeviceError::Failed(format!(
                "sequence {index} has rows {first} to {} of {}, after row {next_row}",
                first.saturating_add(rows),
                batch.tokens.len()
            )));
        }
        next_row = first + rows;
        let context = sequence.context_len as usize;
        let blocks = sequence.num_blocks(limits.block_size);
        at_most(&format!("sequence {index}"), blocks, "blocks", limits.max_blocks_per_sequence)?;
        for (offset, position) in batch.positions[first..next_row].iter().enumerate() {
            if *position as usize + (rows - offset) != context {
                return Err(DeviceError::Failed(format!(
                    "row {} is at position {position} of a context of {context} with {} rows to come",
                    first + offset,
                    rows - offset
                )));
            }
        }
        let (start, blocks) = (sequence.block_table_start as usize, groups * blocks);
        let Some(table) = batch.block_tables.get(start..start.saturating_add(blocks)) else {
            return Err(DeviceError::Failed(format!(
                "sequence {index} needs {blocks} block numbers from {start}, there are {}",
                batch.block_tables.len()
            )));
        };
        for block in table {
            below(|| format!("a block number of sequence {index}"), *block, "blocks", limits.num_blocks)?;
        }
    }
    if next_row != batch.tokens.len() {
        return Err(DeviceError::Failed(format!(
            "the sequences have {next_row} rows, the batch {}",
            batch.tokens.len()
        )));
    }
    Ok(())
}

fn at_most(what: &str, needed: usize, unit: &'static str, allowed: usize) -> Result<(), DeviceError> {
    if needed <= allowed {
        return Ok(());
    }
    Err(DeviceError::Limit { what: what.to_owned(), needed: needed as u64, allowed: allowed as u64, unit })
}

fn below(
    what: impl Fn() -> String,
    index: u32,
    unit: &'static str,
    length: usize,
) -> Result<(), DeviceError> {
    if (index as usize) < length {
        return Ok(());
    }
    Err(DeviceError::Limit { what: what(), needed: u64::from(index) + 1, allowed: length as u64, unit })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::BatchSequence;
    use crate::program::{Buffer, BufferId, Op, Rows, Weight, WeightId};
    use crate::tensor_type::TensorType;

    const LIMITS: DeviceLimits = DeviceLimits {
        num_blocks: 8,
        block_size: 4,
        max_tokens: 6,
        max_sequences: 2,
        max_blocks_per_sequence: 3,
    };

    fn program() -> Program {
        Program {
            buffers: vec![Buffer { name: "hidden", rows: Rows::Tokens, width: 4 }],
            weights: vec![Weight { name: "table".to_owned(), format: TensorType::F32, rows: 10, columns: 4 }],
            ops: vec![Op {
                name: "embed".to_owned(),
                kind: OpKind::Embed { table: WeightId(0), out: BufferId(0), scale: 1.0 },
            }],
            logits: BufferId(0),
            num_layers: 1,
            num_kv_heads: 1,
            head_size: 4,
            value_head_size: 4,
        }
    }

    /// Two sequences: a prefill of positions 3..=5 and a decode at position 7.
    fn batch() -> Batch {
        Batch {
            tokens: vec![9, 0, 1, 2],
            positions: vec![3, 4, 5, 7],
            slots: vec![3, 4, 5, 31],
            sequences: vec![
                BatchSequence { first_row: 0, num_rows: 3, context_len: 6, block_table_start: 0 },
                BatchSequence { first_row: 3, num_rows: 1, context_len: 8, block_table_start: 2 },
            ],
            block_tables: vec![0, 1, 2, 7],
            logits_rows: vec![2, 3],
            candidates: vec![0, 5],
        }
    }

    fn check(batch: &Batch) -> Result<(), DeviceError> {
        check_batch(batch, &program(), &CacheLayout::of(&program()), &LIMITS, 5)
    }

    #[test]
    fn every_group_of_layers_has_slots_and_tables() {
        let layout = CacheLayout { windows: vec![None, Some(3)], ..CacheLayout::of(&program()) };
        let one = batch();
        let mut two = Batch {
            slots: [&one.slots[..], &one.slots].concat(),
            block_tables: vec![0, 1, 3, 4, 2, 7, 0, 5],
            ..one.clone()
        };
        two.sequences[1].block_table_start = 4;
        let check =
            |batch: &Batch| check_batch(batch, &program(), &layout, &LIMITS, 5).map_err(|e| e.to_string());
        check(&two).unwrap();
        assert!(check(&one).unwrap_err().contains("4 slots in 2 groups"));
        let spoiled = Batch { slots: [&one.slots[..], &[3, 4, 32, 31]].concat(), ..two.clone() };
        assert!(check(&spoiled).unwrap_err().contains("slot of row 2 needs 33 slots"));
        two.block_tables.pop();
        assert!(check(&two).unwrap_err().contains("sequence 1 needs 4 block numbers from 4"));
    }

    #[test]
    fn a_sound_batch_and_an_empty_one_pass() {
        check(&batch()).unwrap();
        check(&Batch::default()).unwrap();
    }

    #[test]
    fn every_way_a_batch_can_be_wrong_is_an_error_that_says_so() {
        type Spoil = fn(&mut Batch);
        let table: [(&str, Spoil); 17] = [
            ("token id of row 0 needs 11", |batch| batch.tokens[0] = 10),
            ("slot of row 3 needs 33 slots", |batch| batch.slots[3] = 32),
            ("7 rows", |batch| batch.tokens.extend([0, 0, 0])),
            ("3 positions", |batch| batch.positions.truncate(3)),
            ("3 slots in 1 groups", |batch| batch.slots.truncate(3)),
            ("3 sequences", |batch| batch.sequences.push(batch.sequences[1])),
            ("3 logits rows", |batch| batch.logits_rows = vec![0, 1, 2]),
            ("last logits row needs 5 rows", |batch| batch.logits_rows[1] = 4),
            ("logits row 2 comes before 2", |batch| batch.logits_rows[1] = 2),
            ("of 2 logits rows 1 are asked", |batch| batch.candidates.truncate(1)),
            ("a logits row needs 6 candidates", |batch| batch.candidates[0] = 6),
            ("after row 3", |batch| batch.sequences[1].first_row = 2),
            ("rows 3 to 4294967298", |batch| batch.sequences[1].num_rows = u32::MAX),
            ("the sequences have 3 rows", |batch| batch.sequences.truncate(1)),
            ("position 5 of a context of 6", |batch| batch.positions[1] = 5),
            ("sequence 1 needs 4 blocks", |batch| {
                batch.sequences[1].context_len = 13;
                batch.positions[3] = 12;
            }),
            ("needs 2 block numbers from 3", |batch| batch.sequences[1].block_table_start = 3),
        ];
        for (message, spoil) in table {
            let mut spoiled = batch();
            spoil(&mut spoiled);
            let error = check(&spoiled).unwrap_err().to_string();
            assert!(error.contains(message), "expected {message:?} in {error:?}");
        }
    }

    #[test]
    fn a_block_number_outside_the_pool_is_refused() {
        let mut batch = batch();
        batch.block_tables[1] = 8;
        let error = check(&batch).unwrap_err().to_string();
        assert_eq!(error, "a block number of sequence 0 needs 9 blocks, the device allows 8");
    }
}
