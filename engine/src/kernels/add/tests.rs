use super::reference::add;
use crate::device::wgpu::testing::{Random, Rig, Stored, limits_for, one_op, one_sequence, tokens};
use crate::program::{BufferId, OpKind};

fn check(width: usize, rows: usize, max_workgroups: u32) {
    let mut random = Random::new(13);
    let kind = OpKind::Add { input: BufferId(0), out: BufferId(1) };
    let program = one_op(kind, vec![tokens("input", width), tokens("out", width)], vec![]);
    let (input, before) = (random.values(rows * width), random.values(rows * width));
    let mut expected = before.clone();
    add(&input, &mut expected);
    let Some(mut rig) = Rig::folded(&program, &Stored(vec![]), limits_for(rows), max_workgroups) else {
        return;
    };
    rig.poison(1);
    rig.write(0, &input);
    rig.write(1, &before);
    rig.run(&one_sequence(rows, 16));
    assert_eq!(rig.read(1, rows), expected, "{rows} rows of {width}");
}

#[test]
fn odd_widths_are_the_reference_to_the_last_bit() {
    for (width, rows) in [(1, 1), (7, 3), (31, 9), (33, 8), (255, 1), (257, 2)] {
        check(width, rows, 65_535);
    }
}

#[test]
fn folded_dispatches_miss_nothing_and_write_nothing_else() {
    // 8 threads a row, 64 a workgroup, 7 workgroups a dimension.
    for rows in [56, 57, 65, 300] {
        check(32, rows, 7);
    }
}
