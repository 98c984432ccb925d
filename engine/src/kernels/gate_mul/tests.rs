use super::reference::gate_mul;
use crate::device::wgpu::testing::{
    Random, Rig, Stored, assert_close, limits_for, one_op, one_sequence, tokens,
};
use crate::program::{Activation, BufferId, OpKind, Program};

const ACTIVATIONS: [Activation; 2] = [Activation::Silu, Activation::Gelu];

fn program(activation: Activation, width: usize, out: usize) -> Program {
    let kind = OpKind::GateMul { activation, gate: BufferId(0), up: BufferId(1), out: BufferId(out) };
    one_op(kind, vec![tokens("gate", width), tokens("up", width), tokens("out", width)], vec![])
}

fn check(activation: Activation, width: usize, rows: usize, out: usize, max_workgroups: u32) {
    let mut random = Random::new(10);
    let program = program(activation, width, out);
    let Some(mut rig) = Rig::folded(&program, &Stored(vec![]), limits_for(rows), max_workgroups) else {
        return;
    };
    // From where the exponential overflows to where it vanishes.
    let gate: Vec<f32> = random.values(rows * width).iter().map(|value| value * 120.0).collect();
    let up = random.values(rows * width);
    let mut expected = vec![0.0; rows * width];
    gate_mul(activation, &gate, &up, &mut expected);
    let sizes: Vec<f32> = expected.iter().map(|value| value.abs()).collect();
    rig.poison(out);
    rig.write(0, &gate);
    rig.write(1, &up);
    rig.run(&one_sequence(rows, 16));
    assert_close(
        &format!("{activation:?}, {rows} rows of {width}"),
        &rig.read(out, rows),
        &expected,
        &sizes,
        1e-5,
    );
}

#[test]
fn odd_widths_agree_with_the_reference_in_place_and_not() {
    for (width, rows) in [(1, 1), (7, 3), (31, 9), (33, 8), (255, 1), (257, 2), (1536, 3)] {
        for activation in ACTIVATIONS {
            check(activation, width, rows, 2, 65_535);
            check(activation, width, rows, 0, 65_535);
        }
    }
}

#[test]
fn folded_dispatches_miss_nothing_and_write_nothing_else() {
    // 8 threads a row, 64 a workgroup, 7 workgroups a dimension.
    for rows in [56, 57, 65, 300] {
        check(Activation::Silu, 32, rows, 2, 7);
    }
}
