//! Every level and number of threads against the references, and each row against itself in other company.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::matmul::{MatMulOut, MatMulScratch, matmul_panel};
use super::rows::{GateMul, RmsNorm};
use super::shared::SharedBuffer;
use super::*;
use crate::device::BatchSequence;
use crate::kernels::gate_mul::reference::gate_mul;
use crate::kernels::matmul::reference::matmul;
use crate::kernels::reference_device::ReferenceDevice;
use crate::kernels::rms_norm::reference::rms_norm;
use crate::kernels::synthetic::{LlamaShape, SequenceSet, SyntheticModel, random_weight};
use crate::program::{Activation, BufferId, Op, RopeScaling, RopeStyle, Weight, Yarn};
use crate::tensor_type::TensorType;

/// Sums of a few hundred products of order one differ from the reference by no more than this.
const TOLERANCE: f32 = 2e-5;

fn random_values(count: usize, random: &mut ChaCha8Rng) -> Vec<f32> {
    (0..count).map(|_| random.random_range(-1.7f32..1.7)).collect()
}

#[track_caller]
fn assert_close(ours: &[f32], reference: &[f32], tolerance: f32, what: &str) {
    assert_eq!(ours.len(), reference.len(), "{what}: length");
    for (index, (a, b)) in ours.iter().zip(reference).enumerate() {
        let error = (a - b).abs();
        assert!(error <= tolerance * b.abs().max(1.0), "{what}: value {index} is {a}, the reference has {b}");
    }
}

fn weight(format: TensorType, rows: usize, columns: usize) -> Weight {
    Weight { name: format!("{} {rows}x{columns}", format.name()), format, rows, columns }
}

/// Rows and columns of weights: odd sizes first, then whole panels and more than one tile of columns.
fn shapes(format: TensorType) -> impl Iterator<Item = (usize, usize)> {
    let block = format.block_elements();
    let columns = if block == 1 { [1, 7, 33, 300] } else { [block, 3 * block, 5 * block, 10 * block] };
    [1, 3, 31, 33, 64, 95].into_iter().flat_map(move |rows| columns.map(|columns| (rows, columns)))
}

#[test]
fn a_packed_row_is_the_dequantised_stored_row() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    // The last has enough panels to be packed on several threads, and not the same number on each.
    let large = TensorType::ALL.map(|format| (format, (67 * 32 + 5, 2 * format.block_elements())));
    let small = TensorType::ALL.into_iter().flat_map(|format| shapes(format).map(move |s| (format, s)));
    for (format, (rows, columns)) in small.chain(large) {
        let weight = weight(format, rows, columns);
        let stored = random_weight(&weight, &mut random);
        let packed = PackedWeight::new(&weight, &stored, 3).unwrap();
        let (mut ours, mut reference) = (vec![f32::NAN; columns], vec![f32::NAN; columns]);
        for (row, stored) in stored.chunks_exact(stored.len() / rows).enumerate() {
            packed.row(row, &mut ours);
            format.dequantize(stored, &mut reference);
            assert_eq!(ours, reference, "{} row {row}", weight.name);
        }
    }
}

#[test]
fn a_weight_of_the_wrong_size_is_an_error() {
    let weight = weight(TensorType::Q8_0, 4, 32);
    let error = PackedWeight::new(&weight, &[0; 100], 1).err().unwrap().to_string();
    assert!(error.contains("100 bytes, 136 expected"), "{error}");
}

/// The product of all panels, on a poisoned output.
fn product(level: SimdLevel, packed: &PackedWeight, input: &[f32], out: Option<&[f32]>) -> Vec<f32> {
    let rows = input.len() / packed.columns;
    let buffer = SharedBuffer::new("test", rows * packed.rows).unwrap();
    // SAFETY: one thread.
    let values = unsafe { buffer.write(0..rows * packed.rows) };
    match out {
        Some(out) => values.copy_from_slice(out),
        None => values.fill(f32::NAN),
    }
    let mut scratch = MatMulScratch::new(rows);
    for panel in 0..packed.panels() {
        let out = MatMulOut { buffer: &buffer, accumulate: out.is_some() };
        // SAFETY: one thread.
        unsafe { matmul_panel(level, packed, panel, input, out, &mut scratch) };
    }
    // SAFETY: one thread.
    unsafe { buffer.read(0..rows * packed.rows) }.to_vec()
}

#[test]
fn matrix_products_are_the_reference_on_every_level_format_and_shape() {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    for format in TensorType::ALL {
        for (rows, columns) in shapes(format) {
            let weight = weight(format, rows, columns);
            let stored = random_weight(&weight, &mut random);
            let packed = PackedWeight::new(&weight, &stored, 2).unwrap();
            for batch in [1, 2, 3, 4, 5, 7, 8, 13, 22] {
                let input = random_values(batch * columns, &mut random);
                let before = random_values(batch * rows, &mut random);
                let (mut plain, mut added) = (vec![f32::NAN; batch * rows], before.clone());
                matmul(&input, &weight, &stored, false, &mut plain);
                matmul(&input, &weight, &stored, true, &mut added);
                for level in SimdLevel::available() {
                    let what = format!("{} batch {batch} {}", weight.name, level.name());
                    assert_close(&product(level, &packed, &input, None), &plain, TOLERANCE, &what);
                    assert_close(&product(level, &packed, &input, Some(&before)), &added, TOLERANCE, &what);
                }
            }
        }
    }
}

#[test]
fn a_row_of_a_product_is_the_same_to_the_bit_in_any_batch() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    for format in TensorType::ALL {
        let columns = 320usize.next_multiple_of(format.block_elements());
        let weight = weight(format, 67, columns);
        let packed = PackedWeight::new(&weight, &random_weight(&weight, &mut random), 1).unwrap();
        let input = random_values(37 * columns, &mut random);
        for level in SimdLevel::available() {
            let all = product(level, &packed, &input, None);
            for batch in 1..37 {
                let some = product(level, &packed, &input[(37 - batch) * columns..], None);
                assert_eq!(some, all[(37 - batch) * 67..], "{} {batch} rows {}", weight.name, level.name());
            }
        }
    }
}

#[test]
fn norms_and_gates_are_the_reference_on_every_level_and_in_place() {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    for width in [1, 5, 15, 16, 17, 96, 577] {
        let input = random_values(3 * width, &mut random);
        let weight = random_values(width, &mut random);
        let up = random_values(3 * width, &mut random).iter().map(|v| v * 60.0).collect::<Vec<_>>();
        let mut normed = vec![f32::NAN; 3 * width];
        rms_norm(&input, &weight, 1e-5, &mut normed);
        let gates: [(&[f32], &[f32]); 3] = [(&input, &up), (&up, &input), (&up, &up)];
        for level in SimdLevel::available() {
            let what = format!("width {width} {}", level.name());
            let (mut apart, mut in_place) = (vec![f32::NAN; 3 * width], input.clone());
            let (weight, epsilon) = (&weight[..], 1e-5);
            level.run(RmsNorm { input: Some(&input), weight, epsilon, out: &mut apart });
            level.run(RmsNorm { input: None, weight, epsilon, out: &mut in_place });
            assert_close(&apart, &normed, TOLERANCE, &what);
            assert_eq!(apart, in_place, "{what}");
            for activation in [Activation::Silu, Activation::Gelu] {
                for (gate, up) in gates {
                    let mut reference = vec![f32::NAN; 3 * width];
                    gate_mul(activation, gate, up, &mut reference);
                    let mut out = [vec![f32::NAN; 3 * width], gate.to_vec(), up.to_vec()];
                    level.run(GateMul { activation, gate: Some(gate), up: Some(up), out: &mut out[0] });
                    level.run(GateMul { activation, gate: None, up: Some(up), out: &mut out[1] });
                    level.run(GateMul { activation, gate: Some(gate), up: None, out: &mut out[2] });
                    out.iter().for_each(|out| assert_close(out, &reference, TOLERANCE, &what));
                }
                let (mut both, mut reference) = (input.clone(), vec![f32::NAN; 3 * width]);
                gate_mul(activation, &input, &input, &mut reference);
                level.run(GateMul { activation, gate: None, up: None, out: &mut both });
                assert_close(&both, &reference, TOLERANCE, &what);
            }
        }
    }
}

const LIMITS: DeviceLimits = DeviceLimits {
    num_blocks: 90,
    block_size: 16,
    max_tokens: 40,
    max_sequences: 5,
    max_blocks_per_sequence: 60,
};

fn open(model: &SyntheticModel, limits: DeviceLimits, level: SimdLevel, threads: usize) -> CpuDevice {
    CpuDevice::open(&CpuAdapter::at(level, threads), &model.program, model, limits).unwrap()
}

/// Compares all buffers after a batch, which shows the op that went wrong rather than the last.
fn assert_same_buffers(device: &CpuDevice, reference: &ReferenceDevice, what: &str) {
    for (id, buffer) in device.memory.program.buffers.iter().enumerate() {
        let expected = reference.buffer(BufferId(id));
        if expected.iter().all(|value| value.is_nan()) {
            // No op writes it: the reference leaves its poison.
            continue;
        }
        // SAFETY: no step is running.
        let ours = unsafe { device.memory.buffers[id].read(0..expected.len()) };
        assert_close(ours, expected, 2e-4, &format!("{what}: {}", buffer.name));
    }
}

fn tokens(count: usize, random: &mut ChaCha8Rng) -> Vec<u32> {
    (0..count).map(|_| random.random_range(0..LlamaShape::TINY.vocabulary as u32)).collect()
}

/// Runs random mixed batches on both and compares everything after each.
fn compare_with_reference(
    model: &SyntheticModel,
    block_size: usize,
    level: SimdLevel,
    threads: usize,
    seed: u64,
) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let limits =
        DeviceLimits { block_size, num_blocks: 900 / block_size, max_blocks_per_sequence: 900, ..LIMITS };
    let mut device = open(model, limits, level, threads);
    let mut reference = ReferenceDevice::open(&model.program, model, limits);
    let mut set = SequenceSet::new(4, limits.num_blocks, block_size, seed).for_program(&model.program);
    let (mut ours, mut expected) = (Vec::new(), Vec::new());
    for step in 0..6 {
        let mut additions: Vec<(usize, Vec<u32>)> = Vec::new();
        for index in 0..4 {
            let count = match random.random_range(0..4) {
                0 => continue,
                1 | 2 => 1,
                _ => random.random_range(1..=10),
            };
            additions.push((index, tokens(count, &mut random)));
        }
        let additions: Vec<(usize, &[u32])> = additions.iter().map(|(index, t)| (*index, &t[..])).collect();
        let mut batch = set.batch(&additions);
        if step % 3 == 2 && batch.logits_rows.len() > 1 {
            batch.logits_rows.remove(0);
        }
        device.execute(&batch, &mut ours).unwrap();
        reference.execute(&batch, &mut expected).unwrap();
        let what = format!("{} {threads} threads block size {block_size} step {step}", level.name());
        assert_same_buffers(&device, &reference, &what);
        assert_close(&ours, &expected, 2e-4, &what);
    }
}

#[test]
fn programs_in_every_format_agree_with_the_reference_on_every_level() {
    for format in TensorType::ALL {
        let shape = LlamaShape { format, embedding_format: format, ..LlamaShape::TINY };
        let model = SyntheticModel::new(&shape.in_whole_blocks(), 5);
        for level in SimdLevel::available() {
            compare_with_reference(&model, 16, level, 2, 6);
        }
    }
}

#[test]
fn programs_of_every_head_shape_agree_with_the_reference() {
    // Heads, KV heads, sizes of keys and of values, rotary: groups of 1, 2, 3, 5, 8 and 11 queries, odd heads.
    let shapes = [
        (1, 1, [2, 2], 2),
        (2, 1, [5, 5], 4),
        (3, 1, [16, 48], 8),
        (10, 2, [24, 24], 24),
        (8, 1, [33, 20], 16),
        (11, 1, [64, 64], 64),
    ];
    for (index, (num_heads, num_kv_heads, sizes, rotary)) in shapes.into_iter().enumerate() {
        let style = if index % 2 == 0 { RopeStyle::Halves } else { RopeStyle::Pairs };
        // The output matrix has heads · head size columns: a format without blocks takes any.
        let format = TensorType::F16;
        let [head_size, value_head_size] = sizes;
        let heads = LlamaShape { num_heads, num_kv_heads, head_size, value_head_size, ..LlamaShape::TINY };
        let model = SyntheticModel::new(&LlamaShape { style, format, rotary, ..heads }, 7);
        for (level, threads) in SimdLevel::available().into_iter().zip([1, 2, 3]) {
            compare_with_reference(&model, [1, 3, 5, 16, 24, 32][index], level, threads, 8);
        }
    }
}

#[test]
fn programs_with_windowed_layers_agree_with_the_reference() {
    for (index, window) in [1, 2, 7, 9, 16, 500].into_iter().enumerate() {
        let model = SyntheticModel::new(&LlamaShape { window: Some(window), ..LlamaShape::TINY }, 7);
        for (level, threads) in SimdLevel::available().into_iter().zip([1, 2, 3]) {
            compare_with_reference(&model, [1, 3, 5, 16, 24, 32][index], level, threads, 8);
        }
    }
}

#[test]
fn ops_that_work_in_place_agree_with_the_reference() {
    let model = SyntheticModel::new(&LlamaShape::TINY, 9);
    let mut program = model.program.clone();
    for op in &mut program.ops {
        match &mut op.kind {
            OpKind::Attention { query, out, .. } => *out = *query,
            OpKind::MatMul { input, .. } if op.name.ends_with("output") => {
                // The query buffer, where the attention's results are now.
                *input = BufferId(2);
            }
            OpKind::GateMul { up, out, .. } => *out = *up,
            OpKind::MatMul { input, .. } if op.name.ends_with("down") => *input = BufferId(7),
            _ => {}
        }
    }
    program.check();
    let model = model.with_program(program);
    for level in SimdLevel::available() {
        compare_with_reference(&model, 16, level, 2, 10);
    }
}

/// Logits of each sequence's last token, computed in batches of the given sizes.
fn last_logits(device: &mut CpuDevice, sequence: &[u32], chunk: usize, seed: u64) -> Vec<f32> {
    let (limits, program) = (device.limits, &device.memory.program);
    let mut set = SequenceSet::new(1, limits.num_blocks, limits.block_size, seed).for_program(program);
    let mut logits = Vec::new();
    for chunk in sequence.chunks(chunk) {
        device.execute(&set.batch(&[(0, chunk)]), &mut logits).unwrap();
    }
    logits
}

#[test]
fn logits_are_the_same_to_the_bit_in_any_company_chunking_and_number_of_threads() {
    // A window that begins in the middle of a chunk for some rows of a tile and in the next one for others.
    for window in [None, Some(attention::CHUNK + 23)] {
        same_logits_in_any_company(&SyntheticModel::new(&LlamaShape { window, ..LlamaShape::TINY }, 11));
    }
}

fn same_logits_in_any_company(model: &SyntheticModel) {
    let mut random = ChaCha8Rng::seed_from_u64(12);
    // Longer than two chunks of attention, so that their results are merged, in both ways of spreading them.
    let long = tokens(2 * attention::CHUNK + 21, &mut random);
    let others = [tokens(3, &mut random), tokens(17, &mut random), tokens(1, &mut random)];
    for level in SimdLevel::available() {
        let mut device = open(model, LIMITS, level, 2);
        let alone = last_logits(&mut device, &long, 40, 1);
        for (threads, chunk) in [(1, 40), (2, 1), (2, 7), (3, 13), (5, 32)] {
            let mut other = open(model, LIMITS, level, threads);
            assert_eq!(last_logits(&mut other, &long, chunk, 2), alone, "{} {chunk}", level.name());
        }
        // Its last rows in the middle of a mixed batch.
        for rows in [1, 6] {
            let mut set =
                SequenceSet::new(4, LIMITS.num_blocks, LIMITS.block_size, 3).for_program(&model.program);
            let mut logits = Vec::new();
            let (start, end) = long.split_at(long.len() - rows);
            for chunk in start.chunks(40) {
                device.execute(&set.batch(&[(0, chunk)]), &mut logits).unwrap();
            }
            let mixed = [(1, &others[0][..]), (2, &others[1]), (0, end), (3, &others[2])];
            device.execute(&set.batch(&mixed), &mut logits).unwrap();
            let vocabulary = LlamaShape::TINY.vocabulary;
            assert_eq!(logits[2 * vocabulary..3 * vocabulary], alone, "{} {rows} rows", level.name());
        }
    }
}

#[test]
fn a_long_context_agrees_with_the_reference() {
    for window in [None, Some(attention::CHUNK + 23), Some(30)] {
        compare_long_context(&SyntheticModel::new(&LlamaShape { window, ..LlamaShape::TINY }, 13));
    }
}

fn compare_long_context(model: &SyntheticModel) {
    let sequence = tokens(2 * attention::CHUNK + 21, &mut ChaCha8Rng::seed_from_u64(14));
    let mut reference = ReferenceDevice::open(&model.program, model, LIMITS);
    let mut set = SequenceSet::new(1, LIMITS.num_blocks, LIMITS.block_size, 1).for_program(&model.program);
    let mut expected = Vec::new();
    for chunk in sequence.chunks(40) {
        reference.execute(&set.batch(&[(0, chunk)]), &mut expected).unwrap();
    }
    for level in SimdLevel::available() {
        let mut device = open(model, LIMITS, level, 2);
        for chunk in [40, 1] {
            assert_close(&last_logits(&mut device, &sequence, chunk, 1), &expected, 2e-4, level.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_models_and_schedules_agree_with_the_reference(
        seed in any::<u64>(),
        kv_heads in 1usize..4,
        group in 1usize..5,
        heads in [1usize..6, 1usize..6],
        format in prop::sample::select(TensorType::ALL.to_vec()),
        block_size in 1usize..40,
        threads in 1usize..5,
    ) {
        let [head_size, value_head_size] = heads.map(|head| 32 * head.div_ceil(2) / (1 + head % 2));
        let shape = LlamaShape {
            num_heads: kv_heads * group,
            num_kv_heads: kv_heads,
            head_size,
            value_head_size,
            rotary: head_size / 2,
            format,
            ..LlamaShape::TINY
        };
        let model = SyntheticModel::new(&shape.in_whole_blocks(), seed);
        compare_with_reference(&model, block_size, SimdLevel::best(), threads, seed);
    }
}

#[test]
fn a_batch_without_rows_or_without_logits_computes_nothing_it_need_not() {
    let model = SyntheticModel::new(&LlamaShape::TINY, 15);
    let mut device = open(&model, LIMITS, SimdLevel::best(), 2);
    let mut logits = vec![1.0];
    device.execute(&Batch::default(), &mut logits).unwrap();
    assert!(logits.is_empty());
    let mut set = SequenceSet::new(1, LIMITS.num_blocks, LIMITS.block_size, 1);
    let mut batch = set.batch(&[(0, &[1, 2, 3])]);
    batch.logits_rows.clear();
    let times = device.execute(&batch, &mut logits).unwrap();
    assert!(logits.is_empty() && times.forward.is_some());
}

#[test]
fn a_batch_out_of_bounds_is_an_error_and_the_device_goes_on() {
    let model = SyntheticModel::new(&LlamaShape::TINY, 16);
    let mut device = open(&model, LIMITS, SimdLevel::best(), 2);
    let mut set = SequenceSet::new(1, LIMITS.num_blocks, LIMITS.block_size, 1);
    let good = set.batch(&[(0, &[1, 2, 3])]);
    let mut logits = Vec::new();
    let bad = Batch { tokens: vec![1, 133, 3], ..good.clone() };
    let error = device.execute(&bad, &mut logits).unwrap_err().to_string();
    assert_eq!(error, "the token id of row 1 needs 134 embedding rows, the device allows 133");
    device.execute(&good, &mut logits).unwrap();
    assert_eq!(logits.len(), 133);
}

#[test]
fn sizes_no_machine_has_are_errors() {
    let model = SyntheticModel::new(&LlamaShape::TINY, 17);
    for limits in [
        DeviceLimits { num_blocks: usize::MAX / 4, ..LIMITS },
        DeviceLimits { max_tokens: usize::MAX / 64, ..LIMITS },
    ] {
        let adapter = CpuAdapter::new();
        assert!(matches!(adapter.open(&model.program, &model, limits), Err(DeviceError::Limit { .. })));
    }
}

#[test]
fn the_adapter_names_the_processor_and_its_instructions() {
    let adapter = CpuAdapter::new();
    let info = adapter.info();
    assert_eq!((info.kind, &info.device_type[..], &info.backend[..]), ("cpu", "Cpu", "rust"));
    assert!(!info.name.is_empty());
    assert_eq!(info.driver, SimdLevel::best().name());
}

#[test]
fn rotations_of_two_bases_have_tables_of_their_own() {
    let model = SyntheticModel::new(&LlamaShape::TINY, 18);
    let mut program = model.program.clone();
    for Op { name, kind } in &mut program.ops {
        if let OpKind::Rope { rotation, .. } = kind
            && name.starts_with("layer.1")
        {
            // With yarn in one of them, whose magnitude and mix both show.
            let scaling = RopeScaling::Yarn(Yarn { factor: 4.0, first: 1.0, last: 5.0 });
            *rotation = Rotation { base: 500.0, scaling, magnitude: 1.2, ..*rotation };
        }
    }
    let model = model.with_program(program);
    assert_eq!(open(&model, LIMITS, SimdLevel::best(), 1).memory.angles.len(), 2);
    compare_with_reference(&model, 16, SimdLevel::best(), 2, 19);
}

#[test]
fn a_timed_step_gives_the_same_logits_and_the_time_of_every_op() {
    let model = SyntheticModel::new(&LlamaShape::TINY, 7);
    let limits = DeviceLimits {
        num_blocks: 5,
        block_size: 4,
        max_tokens: 8,
        max_sequences: 2,
        max_blocks_per_sequence: 4,
    };
    let batch = Batch {
        tokens: vec![1, 2, 3],
        positions: vec![0, 1, 2],
        slots: vec![4, 5, 6],
        sequences: vec![BatchSequence { first_row: 0, num_rows: 3, context_len: 3, block_table_start: 0 }],
        block_tables: vec![1],
        logits_rows: vec![2],
        candidates: vec![],
    };
    for threads in [1, 3] {
        let adapter = CpuAdapter::at(SimdLevel::best(), threads);
        let mut device = CpuDevice::open(&adapter, &model.program, &model, limits).unwrap();
        let (mut plain, mut timed) = (Vec::new(), Vec::new());
        device.execute(&batch, &mut plain).unwrap();
        let mut detail = ExecuteDetail::default();
        let times = device.execute_detailed(&batch, &mut timed, &mut detail).unwrap();
        assert_eq!(plain, timed, "{threads} threads");
        let (from, to) = detail.forward.expect("the CPU has a clock");
        assert_eq!(times.forward, Some(to - from));
        let names: Vec<&str> = detail.ops.iter().map(|op| op.name.as_str()).collect();
        let expected: Vec<&str> = model.program.ops.iter().map(|op| op.name.as_str()).collect();
        assert_eq!(names, expected);
        let mut end = from;
        for op in &detail.ops {
            assert!(op.started >= end && op.started + op.duration <= to, "{} is out of order", op.name);
            end = op.started + op.duration;
        }
        let total = model.program.total_cost(batch.shape(None));
        assert_eq!(detail.ops.iter().map(|op| op.flops).sum::<u64>(), total.flops);
        assert_eq!(detail.ops.iter().map(|op| op.bytes_read).sum::<u64>(), total.bytes_read);
    }
}

#[test]
fn engines_on_one_cpu_have_one_copy_of_the_weights_as_long_as_one_of_them_is_open() {
    let model = SyntheticModel::new(&LlamaShape::TINY, 23);
    let adapters = adapters(3);
    assert!(adapters.iter().all(|adapter| adapter.sharing() == Sharing { engines: 3, weights: true }));
    let weights = SharedWeights::default();
    let adapter = |threads| CpuAdapter {
        engines: 2,
        weights: Arc::clone(&weights),
        ..CpuAdapter::at(SimdLevel::best(), threads)
    };
    let (one, other) = (adapter(1), adapter(2));
    let open = |adapter: &CpuAdapter| CpuDevice::open(adapter, &model.program, &model, LIMITS).unwrap();
    let (first, second) = (open(&one), open(&other));
    assert!(Arc::ptr_eq(&first.memory.weights, &second.memory.weights));
    drop(first);
    let again = open(&one);
    assert!(Arc::ptr_eq(&again.memory.weights, &second.memory.weights));
    drop((again, second));
    assert!(weights.lock().unwrap().upgrade().is_none(), "nobody holds them any more");
}
