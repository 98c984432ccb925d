use super::reference::rms_norm;
use crate::device::wgpu::testing::{
    MAPPINGS, Random, Rig, Stored, assert_close, limits_for, one_op, one_sequence, tokens, weight,
};
use crate::program::{BufferId, OpKind, Program, WeightId};
use crate::tensor_type::TensorType;

const EPSILON: f32 = 1e-5;

fn program(width: usize, format: TensorType, out: usize) -> Program {
    let (input, out, weight_id) = (BufferId(0), BufferId(out), WeightId(0));
    let kind = OpKind::RmsNorm { input, weight: weight_id, out, epsilon: EPSILON };
    one_op(kind, vec![tokens("input", width), tokens("out", width)], vec![weight(format, 1, width)])
}

fn check(width: usize, rows: usize, format: TensorType, out: usize, max_workgroups: u32) {
    let mut random = Random::new(6);
    let program = program(width, format, out);
    let stored = random.weight(&program.weights[0], 1.0);
    let mut scale = vec![0.0; width];
    format.dequantize(&stored, &mut scale);
    let input = random.values(rows * width);
    let mut expected = vec![0.0; rows * width];
    rms_norm(&input, &scale, EPSILON, &mut expected);
    let sizes: Vec<f32> = expected.iter().map(|value| value.abs() + 0.1).collect();
    let stored = Stored(vec![stored]);
    for mapping in MAPPINGS {
        let rig = Rig::try_open(&program, &stored, limits_for(rows), |options| {
            options.mapping = mapping.unwrap_or(options.mapping);
            options.max_workgroups = options.max_workgroups.min(max_workgroups);
        });
        let Some(rig) = rig else { return };
        let mut rig = rig.expect("it opens");
        rig.poison(out);
        rig.write(0, &input);
        rig.run(&one_sequence(rows, 16));
        let what = format!("{rows} rows of {width}, {mapping:?}");
        assert_close(&what, &rig.read(out, rows), &expected, &sizes, 3e-6);
    }
}

#[test]
fn odd_widths_agree_with_the_reference() {
    for (width, rows) in [(1, 1), (7, 3), (8, 1), (9, 2), (31, 5), (33, 1), (255, 2), (257, 3), (1000, 1)] {
        check(width, rows, TensorType::F32, 1, u32::MAX);
    }
}

#[test]
fn weights_of_other_formats_and_rows_in_place_agree_too() {
    check(33, 3, TensorType::F16, 1, u32::MAX);
    check(64, 3, TensorType::Q8_0, 1, u32::MAX);
    check(257, 5, TensorType::F32, 0, u32::MAX);
}

#[test]
fn folded_dispatches_miss_nothing_and_write_nothing_else() {
    for rows in [7, 8, 9, 47] {
        check(9, rows, TensorType::F32, 1, 7);
    }
}

#[test]
fn narrow_weights_norm_each_run_of_a_row_on_its_own() {
    let mut random = Random::new(13);
    for (width, runs, rows) in [(7, 3, 5), (16, 1, 2), (32, 9, 3), (5, 2, 1)] {
        let (input, out) = (BufferId(0), BufferId(1));
        let kind = OpKind::RmsNorm { input, weight: WeightId(0), out, epsilon: EPSILON };
        let buffers = vec![tokens("input", runs * width), tokens("out", runs * width)];
        let program = one_op(kind, buffers, vec![weight(TensorType::F32, 1, width)]);
        let scale = random.values(width);
        let stored = Stored(vec![scale.iter().flat_map(|value| value.to_le_bytes()).collect()]);
        let input = random.values(rows * runs * width);
        let mut expected = vec![0.0; input.len()];
        rms_norm(&input, &scale, EPSILON, &mut expected);
        for mapping in MAPPINGS {
            let Some(mut rig) = Rig::mapped(&program, &stored, limits_for(rows), mapping) else { return };
            rig.poison(1);
            rig.write(0, &input);
            rig.run(&one_sequence(rows, 16));
            let what = format!("{rows} rows of {runs} runs of {width}, {mapping:?}");
            assert_close(&what, &rig.read(1, rows), &expected, &vec![1.0; expected.len()], 3e-6);
        }
    }
}
