//! From the scheduler's plan to the device's batch.

use crate::device::{Batch, BatchSequence};
use crate::scheduler::{Scheduler, StepPlan};

/// Fills `batch` with what `plan`, which is out, wants computed. Rows and wanted logits are in plan order.
pub fn fill_batch(scheduler: &Scheduler, plan: &StepPlan, block_size: usize, batch: &mut Batch) {
    batch.clear();
    let num_groups = scheduler.num_cache_groups();
    for scheduled in plan.scheduled() {
        let share = scheduler.scheduled_tokens(scheduled);
        let first_row = batch.tokens.len();
        let positions = scheduled.first_position..scheduled.first_position + scheduled.num_tokens;
        batch.sequences.push(BatchSequence {
            first_row: first_row as u32,
            num_rows: scheduled.num_tokens as u32,
            context_len: positions.end as u32,
            block_table_start: batch.block_tables.len() as u32,
        });
        batch.tokens.extend_from_slice(share.tokens);
        batch.positions.extend(positions.map(|position| position as u32));
        for group in 0..num_groups {
            batch.block_tables.extend(share.table.blocks(group).iter().map(|block| block.0));
        }
        if scheduled.samples {
            batch.logits_rows.push(batch.tokens.len() as u32 - 1);
        }
    }
    for group in 0..num_groups {
        for scheduled in plan.scheduled() {
            let blocks = scheduler.scheduled_tokens(scheduled).table.blocks(group);
            let positions = scheduled.first_position..scheduled.first_position + scheduled.num_tokens;
            batch.slots.extend(positions.map(|position| {
                blocks[position / block_size].0 * block_size as u32 + (position % block_size) as u32
            }));
        }
    }
}
