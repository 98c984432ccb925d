use super::reference::embed;
use crate::device::wgpu::testing::{
    Random, Rig, Stored, assert_close, limits_for, one_op, one_sequence, tokens, weight,
};
use crate::program::{BufferId, OpKind, Program, WeightId};
use crate::tensor_type::TensorType;

/// No power of two, so that a scale applied twice or not at all shows.
const SCALE: f32 = 1.3;

fn program(format: TensorType, entries: usize, width: usize) -> Program {
    let kind = OpKind::Embed { table: WeightId(0), out: BufferId(0), scale: SCALE };
    one_op(kind, vec![tokens("out", width)], vec![weight(format, entries, width)])
}

fn check(format: TensorType, entries: usize, width: usize, rows: usize, max_binding: u64, workgroups: u32) {
    let mut random = Random::new(5);
    let program = program(format, entries, width);
    let stored = random.weight(&program.weights[0], 1.0);
    let mut batch = one_sequence(rows, 16);
    batch.tokens = (0..rows).map(|_| random.below(entries as u32)).collect();
    // The ends of the table, wherever it is cut.
    batch.tokens[0] = 0;
    batch.tokens[rows - 1] = entries as u32 - 1;
    let mut expected = vec![0.0; rows * width];
    embed(&batch.tokens, &program.weights[0], &stored, SCALE, &mut expected);
    let rig = Rig::try_open(&program, &Stored(vec![stored]), limits_for(rows), |options| {
        options.max_binding = options.max_binding.min(max_binding);
        options.max_workgroups = options.max_workgroups.min(workgroups);
    });
    let Some(rig) = rig else { return };
    let mut rig = rig.expect("it opens");
    rig.poison(0);
    rig.run(&batch);
    let what = format!("{format:?} {entries} × {width}, {rows} rows");
    assert_close(&what, &rig.read(0, rows), &expected, &vec![1.0; rows * width], 1e-6);
}

#[test]
fn every_format_agrees_with_the_reference() {
    for format in TensorType::ALL {
        for (entries, width, rows) in [(1, 1usize, 1), (7, 31, 9), (33, 33, 8), (255, 64, 31), (257, 257, 7)]
        {
            let width = width.next_multiple_of(format.block_elements());
            check(format, entries, width, rows, u64::MAX, u32::MAX);
        }
    }
}

#[test]
fn a_table_cut_into_parts_gives_every_row_once() {
    for format in TensorType::ALL {
        // Room for 42 rows of activations; tables of 256 columns need more entries to be cut.
        let width = format.block_elements().max(32);
        check(format, 301, width, 40, 6000 * (width as u64 / 32), u32::MAX);
    }
}

#[test]
fn folded_dispatches_miss_nothing_and_write_nothing_else() {
    // 8 threads a row, 64 a workgroup, 7 workgroups a dimension.
    for rows in [56, 57, 65, 300] {
        check(TensorType::Q8_0, 9, 32, rows, u64::MAX, 7);
    }
}
