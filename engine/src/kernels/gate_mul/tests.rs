use super::reference::gate_mul;
use crate::device::wgpu::testing::{
    MAPPINGS, Random, Rig, Stored, assert_close, limits_for, one_op, one_sequence, tokens, weight,
};
use crate::kernels::matmul::reference::matmul;
use crate::program::{Activation, BufferId, Op, OpKind, Program, WeightId};
use crate::tensor_type::TensorType;

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

#[test]
fn with_the_products_of_gate_and_up_it_agrees_with_the_reference() {
    let (columns, rows) = (40, 9);
    // In fours, in pairs, and neither, with and without a rest behind the last workgroup.
    for (activation, width) in ACTIVATIONS.into_iter().flat_map(|of| [8, 10, 13, 32, 52].map(|n| (of, n))) {
        let mut program = program(activation, width, 0);
        program.buffers.push(tokens("input", columns));
        let input = BufferId(program.buffers.len() - 1);
        program.weights = vec![weight(TensorType::F32, width, columns); 2];
        let product = |number: usize| {
            let kind =
                OpKind::MatMul { input, weight: WeightId(number), out: BufferId(number), accumulate: false };
            Op { name: format!("product.{number}"), kind }
        };
        program.ops.splice(0..0, [0, 1].map(product));
        let mut random = Random::new(12);
        let stored: Vec<Vec<u8>> = program.weights.iter().map(|weight| random.weight(weight, 1.0)).collect();
        let values = random.values(rows * columns);
        let [gate, up] = [0, 1].map(|number: usize| {
            let mut out = vec![0.0; rows * width];
            matmul(&values, &program.weights[number], &stored[number], false, &mut out);
            out
        });
        let mut expected = vec![0.0; rows * width];
        gate_mul(activation, &gate, &up, &mut expected);
        let stored = Stored(stored);
        for mapping in MAPPINGS {
            let Some(mut rig) = Rig::mapped(&program, &stored, limits_for(rows), mapping) else { return };
            rig.poison(0);
            rig.write(input.0, &values);
            rig.run(&one_sequence(rows, 16));
            let what = format!("{activation:?}, {width} features, {mapping:?}");
            assert_close(&what, &rig.read(0, rows), &expected, &vec![1.0; expected.len()], 3e-5);
        }
    }
}
