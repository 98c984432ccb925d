use super::reference::add_bias;
use crate::device::wgpu::testing::{Random, Rig, Stored, limits_for, one_op, one_sequence, tokens, weight};
use crate::program::{BufferId, OpKind, WeightId};
use crate::tensor_type::TensorType;

fn check(width: usize, rows: usize, max_workgroups: u32) {
    let mut random = Random::new(12);
    let kind = OpKind::AddBias { buffer: BufferId(0), bias: WeightId(0) };
    let program = one_op(kind, vec![tokens("values", width)], vec![weight(TensorType::F32, 1, width)]);
    let (values, bias) = (random.values(rows * width), random.values(width));
    let mut expected = values.clone();
    add_bias(&mut expected, &bias);
    let stored = Stored(vec![bias.iter().flat_map(|value| value.to_le_bytes()).collect()]);
    let Some(mut rig) = Rig::folded(&program, &stored, limits_for(rows), max_workgroups) else { return };
    rig.poison(0);
    rig.write(0, &values);
    rig.run(&one_sequence(rows, 16));
    assert_eq!(rig.read(0, rows), expected, "{rows} rows of {width}");
}

#[test]
fn odd_widths_are_the_reference_to_the_last_bit() {
    for (width, rows) in [(1, 1), (7, 3), (31, 9), (33, 8), (255, 1), (257, 2)] {
        check(width, rows, 65_535);
    }
}

#[test]
fn folded_dispatches_miss_nothing_and_write_nothing_else() {
    // Two rows a workgroup, 7 workgroups a dimension.
    for rows in [14, 15, 90] {
        check(32, rows, 7);
    }
}
