//! Quantised values come back, and every format is read as ggml reads it.

use proptest::prelude::*;

use super::*;

/// Half of the largest gap between two neighbouring codes, for values in −1..=1, with room for the f16
/// rounding of the scale.
fn tolerance(format: TensorType) -> f32 {
    match format {
        TensorType::F32 => 0.0,
        TensorType::F16 => 0.000_5,
        TensorType::Bf16 => 0.004,
        // The positive end is cut off at 7 · scale, so up to a whole step is lost there.
        TensorType::Q4_0 => 1.0 / 8.0 + 0.002,
        TensorType::Q4_1 => 1.0 / 15.0 + 0.002,
        TensorType::Q5_0 => 1.0 / 16.0 + 0.002,
        TensorType::Q5_1 => 1.0 / 31.0 + 0.002,
        TensorType::Q8_0 => 0.5 / 127.0 + 0.000_5,
        // The scales of groups are rounded too, and the less bits they have the more that costs.
        TensorType::Q2_K => 1.0 / 3.0 + 0.14,
        TensorType::Q3_K => 1.0 / 4.0 + 0.05,
        TensorType::Q4_K => 1.0 / 15.0 + 0.03,
        TensorType::Q5_K => 1.0 / 31.0 + 0.03,
        TensorType::Q6_K => 1.0 / 32.0 + 0.01,
        // Levels end at −127 and 113, and their largest gap is 24.
        TensorType::IQ4_NL => 14.0 / 127.0 + 0.002,
        // Above three quarters of a power of two there is nothing before the next.
        TensorType::MXFP4 => 0.25,
    }
}

proptest! {
    #[test]
    fn quantised_values_come_back_within_half_a_step(values in prop::collection::vec(-1f32..=1.0, 512)) {
        for format in TensorType::ALL {
            let bytes = format.quantize(&values);
            prop_assert_eq!(bytes.len(), format.row_bytes(512).unwrap());
            let mut back = vec![f32::NAN; 512];
            format.dequantize(&bytes, &mut back);
            for (value, back) in values.iter().zip(&back) {
                prop_assert!((value - back).abs() <= tolerance(format), "{}: {value} {back}", format.name());
            }
        }
    }
}

/// A row whose values need no rounding, so every implementation must give these bytes.
#[test]
fn blocks_have_the_documented_layout() {
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    let ramp: Vec<f32> = (0..32).map(|index| (index % 16) as f32 - 8.0).collect();
    let nibbles: Vec<u8> = (0..16).map(|index| index | index << 4).collect();
    assert_eq!(TensorType::Q4_0.quantize(&ramp), [&half(1.0)[..], &nibbles].concat());
    assert_eq!(TensorType::Q4_1.quantize(&ramp), [&half(1.0)[..], &half(-8.0), &nibbles].concat());

    let mut wide: Vec<f32> = (0..32).map(|index| index as f32).collect();
    wide[31] = -127.0;
    let codes: Vec<u8> = wide.iter().map(|value| *value as i8 as u8).collect();
    assert_eq!(TensorType::Q8_0.quantize(&wide), [&half(1.0)[..], &codes].concat());
}

#[test]
fn blocks_of_zeros_stay_zeros() {
    for format in TensorType::ALL {
        let mut back = [f32::NAN; 256];
        format.dequantize(&format.quantize(&[0.0; 256]), &mut back);
        assert_eq!(back, [0.0; 256], "{}", format.name());
    }
}

#[test]
fn rows_of_partial_blocks_have_no_size() {
    assert_eq!(TensorType::Q8_0.row_bytes(33), None);
    assert_eq!(TensorType::Q8_0.row_bytes(64), Some(68));
    assert_eq!(TensorType::F32.row_bytes(usize::MAX), None);
}

#[test]
fn the_table_has_a_row_for_every_format_in_the_order_of_the_variants() {
    for (index, format) in TensorType::ALL.into_iter().enumerate() {
        assert_eq!((format as usize, ROWS[index].0), (index, format));
        assert!(format.block_bytes() <= MAX_BLOCK_BYTES);
        assert_eq!(TensorType::from_ggml(format.ggml_number()), Some(format));
    }
}

/// Random blocks and the values that ggml's Python package reads from them (`scripts/quantisation-golden.py`).
#[test]
fn blocks_are_read_as_the_gguf_package_reads_them() {
    const BLOCKS: [(TensorType, &[u8]); 12] = [
        (TensorType::Q4_0, include_bytes!("../../testdata/blocks/q4_0.bin")),
        (TensorType::Q4_1, include_bytes!("../../testdata/blocks/q4_1.bin")),
        (TensorType::Q5_0, include_bytes!("../../testdata/blocks/q5_0.bin")),
        (TensorType::Q5_1, include_bytes!("../../testdata/blocks/q5_1.bin")),
        (TensorType::Q8_0, include_bytes!("../../testdata/blocks/q8_0.bin")),
        (TensorType::Q2_K, include_bytes!("../../testdata/blocks/q2_k.bin")),
        (TensorType::Q3_K, include_bytes!("../../testdata/blocks/q3_k.bin")),
        (TensorType::Q4_K, include_bytes!("../../testdata/blocks/q4_k.bin")),
        (TensorType::Q5_K, include_bytes!("../../testdata/blocks/q5_k.bin")),
        (TensorType::Q6_K, include_bytes!("../../testdata/blocks/q6_k.bin")),
        (TensorType::IQ4_NL, include_bytes!("../../testdata/blocks/iq4_nl.bin")),
        (TensorType::MXFP4, include_bytes!("../../testdata/blocks/mxfp4.bin")),
    ];
    for (format, file) in BLOCKS {
        let (stored, values) = file.split_at(format.row_bytes(512).unwrap());
        let expected: Vec<f32> =
            values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let mut ours = [f32::NAN; 512];
        format.dequantize(stored, &mut ours);
        assert_eq!(ours.to_vec(), expected, "{}", format.name());
    }
}
