use super::reference::store_kv;
use crate::device::wgpu::testing::{POISON, Rig, Stored, limits_for, one_op, one_sequence, tokens};
use crate::program::{BufferId, OpKind, Program};

fn program(width: usize) -> Program {
    let kind = OpKind::StoreKv { key: BufferId(0), value: BufferId(1), layer: 0 };
    let mut program = one_op(kind, vec![tokens("key", width), tokens("value", width)], vec![]);
    program.head_size = width;
    program
}

fn check(width: usize, rows: usize, max_workgroups: u32) {
    let (limits, batch) = (limits_for(rows), {
        let mut batch = one_sequence(rows, 16);
        batch.slots.reverse();
        batch
    });
    let Some(mut rig) = Rig::folded(&program(width), &Stored(vec![]), limits, max_workgroups) else { return };
    let slots = limits.num_blocks * limits.block_size;
    let rows = [1.0, -1.0].map(|sign| (0..rows * width).map(|index| sign * index as f32).collect::<Vec<_>>());
    for half in [0, 1] {
        rig.write(half, &rows[half]);
        rig.write_cache(half, &vec![f32::from_bits(POISON); slots * width]);
    }
    rig.run(&batch);
    for half in [0, 1] {
        let mut expected = vec![f32::from_bits(POISON); slots * width];
        store_kv(&rows[half], &batch.slots, width, &mut expected);
        let found = rig.read_cache(half);
        let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same && found.len() == expected.len(), "width {width}, half {half}");
    }
}

#[test]
fn rows_go_to_their_slots_and_other_slots_stay() {
    for (width, rows) in [(1, 1), (7, 9), (31, 8), (33, 7), (192, 5), (257, 3)] {
        check(width, rows, 65_535);
    }
}

#[test]
fn folded_dispatches_miss_nothing_and_write_nothing_else() {
    for rows in [7 * 64, 7 * 64 + 1, 8 * 64 + 1] {
        check(1, rows, 7);
    }
}

#[test]
fn elements_around_the_real_limit_of_one_dimension_are_all_stored() {
    for (width, rows, elements) in
        [(255, 16_448, 65_535 * 64), (29, 144_629, 65_535 * 64 + 1), (1985, 2113, 65_536 * 64 + 1)]
    {
        assert_eq!(width * rows, elements);
        check(width, rows, 65_535);
    }
}
