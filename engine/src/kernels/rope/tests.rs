use super::reference::{frequencies, rope};
use crate::device::wgpu::testing::{
    Random, Rig, Stored, assert_close, limits_for, one_op, one_sequence, tokens, weight,
};
use crate::program::{BufferId, Op, OpKind, Program, RopeScaling, RopeStyle, Rotation, WeightId};
use crate::tensor_type::TensorType;

const BASE: f32 = 10_000.0;

fn program(num_heads: usize, head_size: usize, rotary: usize, base: f32, style: RopeStyle) -> Program {
    let rotation = Rotation::plain(rotary, base);
    let kind = OpKind::Rope { buffer: BufferId(0), num_heads, head_size, rotation, style };
    one_op(kind, vec![tokens("values", num_heads * head_size)], vec![])
}

fn check(num_heads: usize, head_size: usize, rotary: usize, rows: usize, max_workgroups: u32) {
    let mut random = Random::new(7);
    for style in [RopeStyle::Pairs, RopeStyle::Halves] {
        let program = program(num_heads, head_size, rotary, BASE, style);
        let values = random.values(rows * num_heads * head_size);
        // Far from the start of the context, where a GPU's own sine would be worth little.
        let mut limits = limits_for(rows);
        limits.max_blocks_per_sequence = 10_000;
        let mut batch = one_sequence(rows, 16);
        batch.positions.iter_mut().for_each(|position| *position += 100_003);
        batch.sequences[0].context_len += 100_003;
        batch.block_tables = vec![0; 10_000];
        let mut expected = values.clone();
        let frequencies = frequencies(&Rotation::plain(rotary, BASE), None);
        rope(&mut expected, &batch.positions, num_heads, head_size, &frequencies, 1.0, style);
        let Some(mut rig) = Rig::folded(&program, &Stored(vec![]), limits, max_workgroups) else { return };
        rig.poison(0);
        rig.write(0, &values);
        rig.run(&batch);
        let what = format!("{rows} rows of {num_heads} × {head_size}, {rotary} rotate, {style:?}");
        assert_close(&what, &rig.read(0, rows), &expected, &vec![1.0; expected.len()], 1e-6);
    }
}

#[test]
fn odd_heads_and_partial_rotation_agree_with_the_reference() {
    for (num_heads, head_size, rotary, rows) in [
        (1, 2, 2, 1),
        (3, 7, 6, 2),
        (9, 8, 8, 7),
        (5, 33, 2, 9),
        (7, 64, 64, 3),
        (2, 80, 20, 31),
        (3, 9, 0, 2),
    ] {
        check(num_heads, head_size, rotary, rows, 65_535);
    }
}

#[test]
fn folded_dispatches_miss_nothing_and_write_nothing_else() {
    // One pair a row, 64 a workgroup, 7 workgroups a dimension.
    for rows in [7 * 64, 7 * 64 + 1, 8 * 64 + 1] {
        check(1, 3, 2, rows, 7);
    }
}

#[test]
fn two_bases_in_one_program_each_use_their_own_table() {
    let mut random = Random::new(8);
    let mut program = program(3, 8, 8, BASE, RopeStyle::Halves);
    program.buffers.push(tokens("other", 24));
    program.ops.push(Op {
        name: "other".to_owned(),
        kind: OpKind::Rope {
            buffer: BufferId(program.buffers.len() - 1),
            num_heads: 3,
            head_size: 8,
            rotation: Rotation::plain(6, 77.0),
            style: RopeStyle::Halves,
        },
    });
    let other = program.buffers.len() - 1;
    let values = random.values(5 * 24);
    let batch = one_sequence(5, 16);
    let Some(mut rig) = Rig::open(&program, &Stored(vec![]), limits_for(5)) else { return };
    for (id, rotary, base) in [(0, 8, BASE), (other, 6, 77.0)] {
        rig.poison(0);
        rig.poison(other);
        rig.write(id, &values);
        rig.run(&batch);
        let mut expected = values.clone();
        let frequencies = frequencies(&Rotation::plain(rotary, base), None);
        rope(&mut expected, &batch.positions, 3, 8, &frequencies, 1.0, RopeStyle::Halves);
        let all: Vec<f32> = rig.read(id, 5);
        assert_close("table", &all, &expected, &vec![1.0; expected.len()], 1e-6);
    }
}

#[test]
fn factors_and_scaling_divide_the_frequencies_and_the_magnitude_multiplies() {
    let mut random = Random::new(9);
    let mut program = program(2, 8, 8, BASE, RopeStyle::Pairs);
    let factors = [1.0, 2.5, 8.0, 32.0];
    let scaling = RopeScaling::Linear(2.0);
    let plain = Rotation::plain(8, BASE);
    let rotated = Rotation { factors: Some(WeightId(0)), scaling, magnitude: 1.5, ..plain };
    program.weights.push(weight(TensorType::F32, 1, 4));
    for op in &mut program.ops {
        let OpKind::Rope { rotation, .. } = &mut op.kind else { unreachable!("a program of one rope") };
        *rotation = rotated;
    }
    let stored = Stored(vec![factors.iter().flat_map(|factor: &f32| factor.to_le_bytes()).collect()]);
    let values = random.values(9 * 16);
    let mut expected = values.clone();
    let batch = one_sequence(9, 16);
    let frequencies = frequencies(&rotated, Some(&factors));
    rope(&mut expected, &batch.positions, 2, 8, &frequencies, 1.5, RopeStyle::Pairs);
    let Some(mut rig) = Rig::open(&program, &stored, limits_for(9)) else { return };
    rig.poison(0);
    rig.write(0, &values);
    rig.run(&batch);
    assert_close("factors", &rig.read(0, 9), &expected, &vec![1.0; expected.len()], 1e-6);
}
