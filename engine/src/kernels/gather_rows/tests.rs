use super::reference::gather_rows;
use crate::device::wgpu::testing::{Random, Rig, Stored, limits_for, one_op, one_sequence, tokens};
use crate::program::{Buffer, BufferId, OpKind, Rows};

fn check(width: usize, rows: usize, wanted: &[u32], max_workgroups: u32) {
    let mut random = Random::new(11);
    let kind = OpKind::GatherRows { input: BufferId(0), out: BufferId(1) };
    let out = Buffer { name: "out", rows: Rows::Logits, width };
    let program = one_op(kind, vec![tokens("input", width), out], vec![]);
    let mut limits = limits_for(rows);
    limits.max_sequences = wanted.len() + 2;
    let Some(mut rig) = Rig::folded(&program, &Stored(vec![]), limits, max_workgroups) else { return };
    let input = random.values(rows * width);
    let mut batch = one_sequence(rows, 16);
    batch.logits_rows = wanted.to_vec();
    rig.write(0, &input);
    rig.poison(1);
    rig.run(&batch);
    let mut expected = vec![0.0; wanted.len() * width];
    gather_rows(&input, wanted, width, &mut expected);
    assert_eq!(rig.read(1, wanted.len()), expected, "width {width}, rows {wanted:?}");
}

#[test]
fn wanted_rows_arrive_in_order_and_nothing_else_is_written() {
    check(1, 1, &[0], 65_535);
    check(7, 9, &[8], 65_535);
    check(33, 8, &[0, 3, 7], 65_535);
    check(257, 31, &[1, 2, 30], 65_535);
    check(64, 5, &[], 65_535);
}

#[test]
fn folded_dispatches_miss_nothing_and_write_nothing_else() {
    for count in [56u32, 57, 65, 300] {
        check(32, count as usize + 1, &(1..=count).collect::<Vec<_>>(), 7);
    }
}
