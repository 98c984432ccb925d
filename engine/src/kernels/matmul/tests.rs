use super::reference::matmul;
use crate::device::wgpu::testing::{
    HARDWARE, MAPPINGS, Random, Rig, Stored, assert_close, limits_for, one_op, one_sequence, tokens, weight,
};
use crate::kernels::rms_norm::reference::rms_norm;
use crate::program::{BufferId, Op, OpKind, Program, WeightId};
use crate::tensor_type::TensorType;

fn program(format: TensorType, features: usize, columns: usize, accumulate: bool) -> Program {
    let kind = OpKind::MatMul { input: BufferId(0), weight: WeightId(0), out: BufferId(1), accumulate };
    let buffers = vec![tokens("input", columns), tokens("out", features)];
    one_op(kind, buffers, vec![weight(format, features, columns)])
}

/// (features, columns, rows); columns are rounded up to whole blocks where a format has blocks.
const SHAPES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (7, 31, 2),
    (9, 33, 3),
    (8, 257, 1),
    (33, 7, 9),
    (65, 255, 5),
    (31, 64, 33),
    (129, 96, 10),
    (255, 9, 1),
    (64, 1056, 37),
];

#[test]
fn every_format_and_mapping_agrees_with_the_reference() {
    let mut random = Random::new(1);
    for format in TensorType::ALL {
        for (features, columns, rows) in SHAPES {
            let columns = columns.next_multiple_of(format.block_elements());
            let accumulate = rows % 2 == 1;
            let program = program(format, features, columns, accumulate);
            let stored = random.weight(&program.weights[0], 1.0);
            let input = random.values(rows * columns);
            let before = random.values(rows * features);
            let (mut expected, mut sizes) = (before.clone(), vec![1.0; rows * features]);
            matmul(&input, &program.weights[0], &stored, accumulate, &mut expected);
            absolute(&input, &program, &stored, &mut sizes);
            let stored = Stored(vec![stored]);
            for mapping in MAPPINGS {
                let what = format!("{format:?} {features} × {columns}, {rows} rows, {mapping:?}");
                let Some(mut rig) = Rig::mapped(&program, &stored, limits_for(rows), mapping) else { return };
                rig.write(0, &input);
                rig.poison(1);
                if accumulate {
                    rig.write(1, &before);
                }
                rig.run(&one_sequence(rows, 16));
                assert_close(&what, &rig.read(1, rows), &expected, &sizes, 2e-6);
            }
        }
    }
}

/// Σ |input · weight|, what rounding is in proportion to.
fn absolute(input: &[f32], program: &Program, stored: &[u8], sizes: &mut [f32]) {
    let weight = &program.weights[0];
    let mut values = vec![0.0; weight.rows * weight.columns];
    weight.format.dequantize(stored, &mut values);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.abs().to_le_bytes()).collect();
    let input: Vec<f32> = input.iter().map(|value| value.abs()).collect();
    let weight = crate::program::Weight { format: TensorType::F32, ..weight.clone() };
    matmul(&input, &weight, &bytes, true, sizes);
}

/// What becomes of all rows together, after a look at whether fewer of them have the same bits.
fn in_any_company(rig: &mut Rig, what: &str, input: &[f32], rows: usize) -> Vec<f32> {
    let mut output = |rows: usize, input: &[f32]| {
        rig.write(0, input);
        rig.poison(1);
        rig.run(&one_sequence(rows, 16));
        rig.read(1, rows)
    };
    let together = output(rows, input);
    for company in [1, 2, 4, 9, 31] {
        let fewer = output(company, &input[..input.len() / rows * company]);
        let same = fewer.iter().zip(&together).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{what}: {company} rows of {rows}");
    }
    together
}

#[test]
fn a_row_is_the_same_to_the_last_bit_in_any_company() {
    let mut random = Random::new(2);
    for format in TensorType::ALL {
        let (features, columns, rows) = (65, 96usize.next_multiple_of(format.block_elements()), 37);
        let program = program(format, features, columns, false);
        let stored = Stored(vec![random.weight(&program.weights[0], 1.0)]);
        let input = random.values(rows * columns);
        for mapping in MAPPINGS {
            let Some(mut rig) = Rig::mapped(&program, &stored, limits_for(rows), mapping) else { return };
            in_any_company(&mut rig, &format!("{format:?} {mapping:?}"), &input, rows);
        }
    }
}

const EPSILON: f32 = 1e-5;

/// A norm of `input` into `normed`, and the product of that.
fn normed(format: TensorType, features: usize, columns: usize) -> Program {
    let mut program = program(format, features, columns, false);
    program.buffers.push(tokens("normed", columns));
    program.weights.push(weight(TensorType::F32, 1, columns));
    let (input, out) = (BufferId(0), BufferId(program.buffers.len() - 1));
    let kind = OpKind::RmsNorm { input, weight: WeightId(1), out, epsilon: EPSILON };
    let OpKind::MatMul { input, .. } = &mut program.ops[0].kind else { unreachable!("the product") };
    *input = out;
    program.ops.insert(0, Op { name: "norm".to_owned(), kind });
    program
}

#[test]
fn with_the_norm_of_its_input_it_agrees_with_the_reference_and_is_the_same_in_any_company() {
    let mut random = Random::new(5);
    for format in [TensorType::F32, TensorType::Q4_1, TensorType::Q4_K] {
        let (features, columns, rows) = (65, 96usize.next_multiple_of(format.block_elements()), 37);
        let program = normed(format, features, columns);
        let stored: Vec<Vec<u8>> = program.weights.iter().map(|weight| random.weight(weight, 1.0)).collect();
        // Rows of very different sizes.
        let mut input = random.values(rows * columns);
        for (row, values) in input.chunks_exact_mut(columns).enumerate() {
            values.iter_mut().for_each(|value| *value *= 0.1 * 1.3f32.powi(row as i32));
        }
        let mut scale = vec![0.0; columns];
        TensorType::F32.dequantize(&stored[1], &mut scale);
        let mut between = vec![0.0; rows * columns];
        rms_norm(&input, &scale, EPSILON, &mut between);
        let (mut expected, mut sizes) = (vec![0.0; rows * features], vec![0.0; rows * features]);
        matmul(&between, &program.weights[0], &stored[0], false, &mut expected);
        absolute(&between, &program, &stored[0], &mut sizes);
        let stored = Stored(stored);
        for mapping in MAPPINGS {
            let Some(mut rig) = Rig::mapped(&program, &stored, limits_for(rows), mapping) else { return };
            let what = format!("{format:?} {mapping:?}");
            let together = in_any_company(&mut rig, &what, &input, rows);
            assert_close(&what, &together, &expected, &sizes, 4e-6);
        }
    }
}

#[test]
fn dispatches_folded_into_two_dimensions_miss_nothing_and_write_nothing_else() {
    let mut random = Random::new(3);
    for mapping in MAPPINGS {
        // At most 9 workgroups to a dimension: fewer, just as many, one more, many more.
        for (features, rows) in [(7, 1), (9 * 8, 1), (9 * 64, 1), (9 * 64 + 1, 1), (65, 29), (300, 33)] {
            let program = program(TensorType::Q4_1, features, 32, false);
            let stored = random.weight(&program.weights[0], 1.0);
            let input = random.values(rows * 32);
            let (mut expected, mut sizes) = (vec![0.0; rows * features], vec![0.0; rows * features]);
            matmul(&input, &program.weights[0], &stored, false, &mut expected);
            absolute(&input, &program, &stored, &mut sizes);
            let rig = Rig::try_open(&program, &Stored(vec![stored]), limits_for(rows), |options| {
                options.mapping = mapping.unwrap_or(options.mapping);
                options.max_workgroups = 9;
            });
            let Some(rig) = rig else { return };
            let mut rig = rig.expect("it opens");
            rig.write(0, &input);
            rig.poison(1);
            rig.run(&one_sequence(rows, 16));
            assert_close("folded", &rig.read(1, rows), &expected, &sizes, 2e-6);
        }
    }
}

#[test]
fn a_weight_over_the_binding_limit_is_cut_between_rows_and_both_sides_of_each_seam_are_right() {
    let mut random = Random::new(4);
    for format in TensorType::ALL {
        let (features, columns, rows) = (211, 64usize.next_multiple_of(format.block_elements()), 3);
        let program = program(format, features, columns, true);
        let stored = random.weight(&program.weights[0], 1.0);
        let input = random.values(rows * columns);
        let before = random.values(rows * features);
        let (mut expected, mut sizes) = (before.clone(), vec![1.0; rows * features]);
        matmul(&input, &program.weights[0], &stored, true, &mut expected);
        absolute(&input, &program, &stored, &mut sizes);
        let rig = Rig::try_open(&program, &Stored(vec![stored]), limits_for(rows), |options| {
            // Room for the activations, not for the whole weight.
            options.mapping = HARDWARE;
            options.max_binding = 6000;
        });
        let Some(rig) = rig else { return };
        let mut rig = rig.expect("it opens");
        rig.write(0, &input);
        rig.poison(1);
        rig.write(1, &before);
        rig.run(&one_sequence(rows, 16));
        assert_close(&format!("{format:?}"), &rig.read(1, rows), &expected, &sizes, 2e-6);
    }
}

#[test]
fn a_nan_in_a_weight_reaches_the_output() {
    let program = program(TensorType::F32, 2, 32, false);
    let mut stored = vec![0; program.weights[0].bytes()];
    stored[32 * 4..32 * 4 + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let stored = Stored(vec![stored]);
    for mapping in MAPPINGS {
        let Some(mut rig) = Rig::mapped(&program, &stored, limits_for(1), mapping) else { return };
        rig.write(0, &[1.0; 32]);
        rig.poison(1);
        rig.run(&one_sequence(1, 16));
        let out = rig.read(1, 1);
        assert!(out[0] == 0.0 && out[1].is_nan(), "{out:?}");
    }
}
