//! From the scheduler's plan to the device's batch.

use crate::device::{Batch, BatchSequence};
use crate::scheduler::{Scheduler, StepPlan};

/// Fills `batch` with what `plan`, which is out, wants computed. Rows and wanted logits are in plan order.
pub fn fill_batch(scheduler: &Scheduler, plan: &StepPlan, block_size: usize, batch: &mut Batch) {
    batch.clear();
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
        batch.positions.extend(positions.clone().map(|position| position as u32));
        batch.slots.extend(positions.map(|position| {
            share.blocks[position / block_size].0 * block_size as u32 + (position % block_size) as u32
        }));
        batch.block_tables.extend(share.blocks.iter().map(|block| block.0));
        if scheduled.samples {
            batch.logits_rows.push(batch.tokens.len() as u32 - 1);
        }
    }
}
