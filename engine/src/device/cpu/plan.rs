//! Which ops of a program form one stage, and who has done how much of it.
//!
//! Matrix products that neither read nor overwrite what another of them writes share a stage (query, key and
//! value; gate and up), so that their panels are one pool of work. Ops that treat rows on their own share a
//! stage as long as they have the same rows: a thread that has computed a row of one has what it needs for
//! that row of the next.
//!
//! A stage is a pool of units that threads take as they come, so that a thread the system has put aside holds
//! up the others only while it is in the middle of a unit.
//!
//! Invariant: the units of a stage write disjoint places, and read nothing that another unit of the same stage
//! writes.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::program::{BufferId, Op, OpKind, Program, Rows};

/// Ops that run together. The next stage begins when all their units are done.
pub(super) struct Stage {
    pub(super) work: Work,
    /// The second is for work that has two parts.
    pub(super) passes: [Pass; 2],
}

/// A pool of units, on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Pass {
    /// First unit that nobody has taken.
    next: AtomicUsize,
    /// Units that are finished.
    done: AtomicUsize,
}

/// How the ops of a stage are split among threads. The numbers are places in the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// By panels of weights, of all ops together.
    MatMuls(Vec<usize>),
    /// By ranges of rows, the ops one after the other.
    ByRow(Rows, Vec<usize>),
    /// By tiles and KV heads.
    Attention(usize),
}

impl Pass {
    /// Takes up to `count` of `units` units; `None` if all are taken.
    pub(super) fn take(&self, count: usize, units: usize) -> Option<Range<usize>> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        (first < units).then(|| first..(first + count).min(units))
    }

    /// Says that units it took are finished.
    pub(super) fn finish(&self, count: usize) {
        self.done.fetch_add(count, Ordering::AcqRel);
    }

    /// Whether all units are finished; then what they wrote is seen by the caller.
    pub(super) fn is_done(&self, units: usize) -> bool {
        self.done.load(Ordering::Acquire) >= units
    }

    /// Gives all units back, before a step.
    pub(super) fn reset(&mut self) {
        *self = Pass::default();
    }
}

impl Stage {
    /// Gives all units back, before a step.
    pub(super) fn reset(&mut self) {
        self.passes.iter_mut().for_each(Pass::reset);
    }
}

/// The stages of a program, in order.
pub(super) fn plan(program: &Program) -> Vec<Stage> {
    let mut stages: Vec<Work> = Vec::new();
    for (index, op) in program.ops.iter().enumerate() {
        let work = alone(program, index, op);
        match (stages.last_mut(), work) {
            (Some(Work::MatMuls(ops)), Work::MatMuls(_)) if independent(program, ops, op) => ops.push(index),
            (Some(Work::ByRow(rows, ops)), Work::ByRow(same, _))
                if *rows == same && !matches!(op.kind, OpKind::GatherRows { .. }) =>
            {
                ops.push(index);
            }
            (_, work) => stages.push(work),
        }
    }
    stages.into_iter().map(|work| Stage { work, passes: Default::default() }).collect()
}

/// The same with a stage for each op, so that each can be timed.
pub(super) fn plan_op_by_op(program: &Program) -> Vec<Stage> {
    let works = program.ops.iter().enumerate().map(|(index, op)| alone(program, index, op));
    works.map(|work| Stage { work, passes: Default::default() }).collect()
}

/// The stage of an op that shares it with no other.
fn alone(program: &Program, index: usize, op: &Op) -> Work {
    let by_row = |buffer: BufferId| Work::ByRow(program.buffers[buffer.0].rows, vec![index]);
    match op.kind {
        OpKind::MatMul { .. } => Work::MatMuls(vec![index]),
        OpKind::Attention { .. } => Work::Attention(index),
        OpKind::Embed { out, .. }
        | OpKind::RmsNorm { out, .. }
        | OpKind::GateMul { out, .. }
        | OpKind::Add { out, .. }
        | OpKind::GatherRows { out, .. } => by_row(out),
        OpKind::Rope { buffer, .. } | OpKind::AddBias { buffer, .. } => by_row(buffer),
        OpKind::StoreKv { key, .. } => by_row(key),
    }
}

/// Whether a matrix product may run beside others.
fn independent(program: &Program, others: &[usize], op: &Op) -> bool {
    let OpKind::MatMul { input, out, .. } = op.kind else { return false };
    others.iter().all(|other| match program.ops[*other].kind {
        OpKind::MatMul { input: other_input, out: other_out, .. } => {
            input != other_out && out != other_input && out != other_out
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::synthetic::{LlamaShape, SyntheticModel};
    use crate::program::WeightId;

    #[test]
    fn independent_products_share_a_stage_and_rows_stay_with_their_thread() {
        let program = SyntheticModel::new(&LlamaShape { num_layers: 1, ..LlamaShape::TINY }, 1).program;
        let works: Vec<Work> = plan(&program).into_iter().map(|stage| stage.work).collect();
        assert_eq!(
            works,
            [
                Work::ByRow(Rows::Tokens, vec![0, 1]),
                Work::MatMuls(vec![2, 3, 4]),
                Work::ByRow(Rows::Tokens, vec![5, 6, 7]),
                Work::Attention(8),
                Work::MatMuls(vec![9]),
                Work::ByRow(Rows::Tokens, vec![10]),
                Work::MatMuls(vec![11, 12]),
                Work::ByRow(Rows::Tokens, vec![13]),
                Work::MatMuls(vec![14]),
                Work::ByRow(Rows::Logits, vec![15, 16]),
                Work::MatMuls(vec![17]),
            ]
        );
    }

    #[test]
    fn products_that_depend_on_each_other_run_one_after_the_other() {
        let (a, b, c) = (BufferId(0), BufferId(1), BufferId(2));
        let product = |input, out| OpKind::MatMul { input, weight: WeightId(0), out, accumulate: true };
        let model = SyntheticModel::new(&LlamaShape::TINY, 1);
        for (first, second) in [((a, b), (b, c)), ((a, b), (c, a)), ((a, b), (c, b))] {
            let ops = [product(first.0, first.1), product(second.0, second.1)];
            let ops = ops.map(|kind| Op { name: String::new(), kind });
            let program = Program { ops: ops.to_vec(), ..model.program.clone() };
            assert_eq!(plan(&program).len(), 2, "{first:?} {second:?}");
        }
    }

    #[test]
    fn gathered_rows_wait_for_the_threads_that_compute_them() {
        let buffer = BufferId(0);
        let ops = [(); 2].map(|()| OpKind::GatherRows { input: buffer, out: buffer });
        let ops = ops.map(|kind| Op { name: String::new(), kind });
        let model = SyntheticModel::new(&LlamaShape::TINY, 1);
        let program = Program { ops: ops.to_vec(), ..model.program };
        assert_eq!(plan(&program).len(), 2);
    }
}
