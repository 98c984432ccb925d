//! The device as a whole: whole programs against the references, faults, limits and times.

use std::time::Instant;

use super::testing::{HARDWARE, MAPPINGS, Random, Rig, Stored, assert_close, own_gpu, shared_gpu, skip};
use crate::cache_layout::CacheLayout;
use crate::device::{Batch, BatchSequence, Device, DeviceError, DeviceLimits, ExecuteDetail};
use crate::kernels::reference_device::ReferenceDevice;
use crate::program::{
    Activation, Buffer, BufferId, Op, OpKind, Program, RopeStyle, Rotation, Rows, Weight, WeightId,
};
use crate::tensor_type::TensorType;

/// Sizes of a llama.
#[derive(Clone, Copy)]
struct Sizes {
    layers: usize,
    width: usize,
    feed_forward: usize,
    heads: usize,
    kv_heads: usize,
    vocabulary: usize,
    /// What every second layer attends to.
    window: Option<usize>,
}

/// A llama with tied embeddings; layer i's matrices have the i-th of `formats`, the embedding the last.
fn llama(sizes: Sizes, formats: &[TensorType]) -> Program {
    let Sizes { layers, width, feed_forward, heads, kv_heads, vocabulary, window } = sizes;
    let head_size = width / heads;
    let kv_width = kv_heads * head_size;
    let mut weights = Vec::new();
    let mut weight = |format, rows, columns| {
        weights.push(Weight { name: format!("weight {}", weights.len()), format, rows, columns });
        WeightId(weights.len() - 1)
    };
    let widths = [
        ("hidden", Rows::Tokens, width),
        ("normed", Rows::Tokens, width),
        ("query", Rows::Tokens, width),
        ("key", Rows::Tokens, kv_width),
        ("value", Rows::Tokens, kv_width),
        ("attended", Rows::Tokens, width),
        ("gate", Rows::Tokens, feed_forward),
        ("up", Rows::Tokens, feed_forward),
        ("wanted", Rows::Logits, width),
        ("wanted normed", Rows::Logits, width),
        ("logits", Rows::Logits, vocabulary),
    ];
    let [hidden, normed, query, key, value, attended, gate, up, wanted, wanted_normed, logits] =
        std::array::from_fn(BufferId);
    let embedding = weight(*formats.last().expect("a format"), vocabulary, width);
    let epsilon = 1e-5;
    let mut ops = vec![OpKind::Embed { table: embedding, out: hidden, scale: 1.0 }];
    for layer in 0..layers {
        let format = formats[layer % formats.len()];
        let mut matmul = |input, rows, columns, out, accumulate| OpKind::MatMul {
            input,
            weight: weight(format, rows, columns),
            out,
            accumulate,
        };
        let rope = |buffer, num_heads| OpKind::Rope {
            buffer,
            num_heads,
            head_size,
            rotation: Rotation::plain(head_size / 2 * 2, 10_000.0),
            style: RopeStyle::Pairs,
        };
        let attention = [
            matmul(normed, width, width, query, false),
            matmul(normed, kv_width, width, key, false),
            matmul(normed, kv_width, width, value, false),
            rope(query, heads),
            rope(key, kv_heads),
            OpKind::StoreKv { key, value, layer },
            OpKind::Attention {
                query,
                out: attended,
                layer,
                num_heads: heads,
                scale: 1.0 / (head_size as f32).sqrt(),
                window: window.filter(|_| layer % 2 == 1),
            },
            matmul(attended, width, width, hidden, true),
        ];
        let feed_forward = [
            matmul(normed, feed_forward, width, gate, false),
            matmul(normed, feed_forward, width, up, false),
            OpKind::GateMul { activation: Activation::Silu, gate, up, out: gate },
            matmul(gate, width, feed_forward, hidden, true),
        ];
        for part in [attention.as_slice(), feed_forward.as_slice()] {
            let norm = weight(TensorType::F32, 1, width);
            ops.push(OpKind::RmsNorm { input: hidden, weight: norm, out: normed, epsilon });
            ops.extend_from_slice(part);
        }
    }
    let norm = weight(TensorType::F32, 1, width);
    ops.push(OpKind::GatherRows { input: hidden, out: wanted });
    ops.push(OpKind::RmsNorm { input: wanted, weight: norm, out: wanted_normed, epsilon });
    ops.push(OpKind::MatMul { input: wanted_normed, weight: embedding, out: logits, accumulate: false });
    Program {
        buffers: widths.map(|(name, rows, width)| Buffer { name, rows, width }).to_vec(),
        weights,
        ops: ops.into_iter().enumerate().map(|(i, kind)| Op { name: format!("op.{i}"), kind }).collect(),
        logits,
        num_layers: layers,
        num_kv_heads: kv_heads,
        head_size,
        value_head_size: head_size,
    }
}

fn random_weights(program: &Program, random: &mut Random) -> Stored {
    let weights = program.weights.iter();
    Stored(weights.map(|weight| random.weight(weight, 3.0 / (weight.columns as f32).sqrt())).collect())
}

const LIMITS: DeviceLimits = DeviceLimits {
    num_blocks: 61,
    block_size: 4,
    max_tokens: 48,
    max_sequences: 6,
    max_blocks_per_sequence: 16,
};

/// A sequence as a scheduler would keep it: its tokens, how many are in the cache, and its blocks in each group of
/// layers.
struct Sequence {
    tokens: Vec<u32>,
    stored: u32,
    blocks: Vec<Vec<u32>>,
}

/// The batch that stores the next `rows` tokens of each sequence, and wants the logits of the last of them.
fn next_batch(sequences: &mut [(&mut Sequence, u32)], block_size: u32) -> Batch {
    let mut batch = Batch::default();
    let mut slots = vec![Vec::new(); sequences[0].0.blocks.len()];
    for (sequence, rows) in sequences {
        let context_len = sequence.stored + *rows;
        batch.sequences.push(BatchSequence {
            first_row: batch.tokens.len() as u32,
            num_rows: *rows,
            context_len,
            block_table_start: batch.block_tables.len() as u32,
        });
        for position in sequence.stored..context_len {
            batch.tokens.push(sequence.tokens[position as usize]);
            batch.positions.push(position);
            for (slots, blocks) in slots.iter_mut().zip(&sequence.blocks) {
                slots.push(blocks[(position / block_size) as usize] * block_size + position % block_size);
            }
        }
        for blocks in &sequence.blocks {
            batch.block_tables.extend(&blocks[..context_len.div_ceil(block_size) as usize]);
        }
        batch.logits_rows.push(batch.tokens.len() as u32 - 1);
        sequence.stored = context_len;
    }
    batch.slots = slots.concat();
    batch
}

fn sequences(program: &Program, random: &mut Random) -> [Sequence; 3] {
    [0u32, 1, 2].map(|index| Sequence {
        tokens: (0..40).map(|_| random.below(program.vocabulary() as u32)).collect(),
        stored: 0,
        // Blocks of different sequences alternate in the pool.
        blocks: (0..CacheLayout::of(program).num_groups() as u32)
            .map(|group| (0..10).map(|block| 1 + group * 30 + block * 3 + index).collect())
            .collect(),
    })
}

#[test]
fn tiny_llamas_in_mixed_batches_agree_with_the_references_on_every_mapping() {
    let tiny = Sizes {
        layers: 2,
        width: 64,
        feed_forward: 96,
        heads: 4,
        kv_heads: 2,
        vocabulary: 97,
        window: Some(5),
    };
    let odd = Sizes {
        layers: 2,
        width: 45,
        feed_forward: 33,
        heads: 9,
        kv_heads: 3,
        vocabulary: 31,
        window: Some(5),
    };
    let quantised = [TensorType::Q4_1, TensorType::Q4_0, TensorType::Q8_0];
    let floats = [TensorType::F32, TensorType::F16, TensorType::Bf16];
    for (sizes, formats, seed) in [(tiny, quantised, 20), (odd, floats, 21), (tiny, floats, 22)] {
        let mut random = Random::new(seed);
        let program = llama(sizes, &formats);
        let weights = random_weights(&program, &mut random);
        for mapping in MAPPINGS {
            let mut random = Random::new(seed);
            let Some(mut rig) = Rig::mapped(&program, &weights, LIMITS, mapping) else { return };
            let mut reference = ReferenceDevice::open(&program, &weights, LIMITS);
            let [mut a, mut b, mut c] = sequences(&program, &mut random);
            // Whole prompts, chunks, single tokens, and all of them together.
            let steps = [[17, 0, 0], [1, 9, 0], [1, 13, 30], [1, 1, 1], [3, 1, 1], [1, 1, 2]];
            for (step, rows) in steps.into_iter().enumerate() {
                let mut taken: Vec<_> = [&mut a, &mut b, &mut c].into_iter().zip(rows).collect();
                taken.retain(|(_, rows)| *rows > 0);
                let batch = next_batch(&mut taken, 4);
                let (mut found, mut expected) = (Vec::new(), Vec::new());
                rig.execute(&batch, &mut found).expect("the batch runs");
                reference.execute(&batch, &mut expected).expect("the batch runs");
                let largest = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                let sizes = vec![largest; expected.len()];
                assert_close(&format!("step {step}, {mapping:?}"), &found, &expected, &sizes, 1e-4);
            }
        }
    }
}

#[test]
fn logits_are_the_same_to_the_last_bit_alone_and_in_company() {
    let sizes = Sizes {
        layers: 2,
        width: 64,
        feed_forward: 96,
        heads: 4,
        kv_heads: 2,
        vocabulary: 97,
        window: Some(5),
    };
    let program = llama(sizes, &[TensorType::Q4_1, TensorType::Q8_0]);
    let mut random = Random::new(23);
    let weights = random_weights(&program, &mut random);
    for mapping in MAPPINGS {
        let Some(mut rig) = Rig::mapped(&program, &weights, LIMITS, mapping) else { return };
        // The prompt at once in company, then token by token and in chunks alone: other kernels, other blocks.
        let [mut a, mut b, mut c] = sequences(&program, &mut Random::new(24));
        let batch = next_batch(&mut [(&mut a, 13), (&mut b, 20), (&mut c, 1)], 4);
        let (mut together, mut alone) = (Vec::new(), Vec::new());
        rig.execute(&batch, &mut together).expect("the batch runs");
        for chunks in [vec![1; 13], vec![5, 8], vec![12, 1], vec![13]] {
            a.stored = 0;
            a.blocks = vec![vec![39, 38, 37, 36], vec![60, 59, 58, 57]];
            for rows in chunks {
                let batch = next_batch(&mut [(&mut a, rows)], 4);
                rig.execute(&batch, &mut alone).expect("the batch runs");
            }
            let same = alone.iter().zip(&together).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && alone.len() == 97, "{mapping:?}");
        }
    }
}

#[test]
fn a_step_that_wants_no_logits_gives_none_and_an_empty_one_does_nothing() {
    let sizes =
        Sizes { layers: 1, width: 32, feed_forward: 32, heads: 2, kv_heads: 1, vocabulary: 33, window: None };
    let program = llama(sizes, &[TensorType::F32]);
    let mut random = Random::new(25);
    let weights = random_weights(&program, &mut random);
    let Some(mut rig) = Rig::open(&program, &weights, LIMITS) else { return };
    let [mut a, ..] = sequences(&program, &mut random);
    let mut batch = next_batch(&mut [(&mut a, 5)], 4);
    batch.logits_rows.clear();
    let mut logits = vec![1.0];
    rig.execute(&batch, &mut logits).expect("the batch runs");
    assert!(logits.is_empty());
    let times = rig.execute(&Batch::default(), &mut logits).expect("nothing runs");
    assert!(logits.is_empty() && times.forward.is_none());
    batch.slots[0] = 61 * 4;
    assert!(matches!(rig.execute(&batch, &mut logits), Err(DeviceError::Limit { .. })));
    batch.slots[0] = 0;
    rig.execute(&batch, &mut logits).expect("a refused batch leaves the device as it was");
}

#[test]
fn forward_time_is_measured_where_there_are_timestamps_and_left_out_where_not() {
    let sizes =
        Sizes { layers: 1, width: 64, feed_forward: 64, heads: 2, kv_heads: 1, vocabulary: 33, window: None };
    let program = llama(sizes, &[TensorType::F32]);
    let mut random = Random::new(26);
    let weights = random_weights(&program, &mut random);
    let Some(gpu) = shared_gpu() else { return };
    for measured in [true, false] {
        if measured && !gpu.options().timestamps {
            skip("the adapter has no timestamps");
            continue;
        }
        let rig = Rig::try_open(&program, &weights, LIMITS, |options| options.timestamps = measured);
        let mut rig = rig.expect("there is an adapter").expect("it opens");
        let [mut a, ..] = sequences(&program, &mut random);
        for rows in [20, 1] {
            let batch = next_batch(&mut [(&mut a, rows)], 4);
            let start = Instant::now();
            let times = rig.execute(&batch, &mut Vec::new()).expect("the batch runs");
            let elapsed = start.elapsed();
            assert_eq!(times.forward.is_some(), measured);
            if let Some(forward) = times.forward {
                assert!(!forward.is_zero() && forward <= elapsed, "{forward:?} of {elapsed:?}");
            }
        }
    }
}

#[test]
fn a_timed_step_gives_the_same_logits_and_the_time_of_every_op() {
    let sizes =
        Sizes { layers: 2, width: 64, feed_forward: 64, heads: 2, kv_heads: 1, vocabulary: 33, window: None };
    let program = llama(sizes, &[TensorType::F32]);
    let mut random = Random::new(31);
    let weights = random_weights(&program, &mut random);
    let Some(gpu) = shared_gpu() else { return };
    let has_timestamps = gpu.options().timestamps;
    let mut rig = Rig::open(&program, &weights, LIMITS).expect("there is an adapter");
    let [mut a, ..] = sequences(&program, &mut random);
    for (rows, wants_logits) in [(20, true), (1, true), (3, false)] {
        let mut batch = next_batch(&mut [(&mut a, rows)], 4);
        if !wants_logits {
            batch.logits_rows.clear();
        }
        let (mut plain, mut timed) = (Vec::new(), Vec::new());
        rig.execute(&batch, &mut plain).expect("the batch runs");
        let (mut detail, start) = (ExecuteDetail::default(), Instant::now());
        let times = rig.device.execute_detailed(&batch, &mut timed, &mut detail).expect("the batch runs");
        let end = Instant::now();
        assert!(plain == timed && plain.is_empty() != wants_logits);
        if !has_timestamps {
            skip("the adapter has no timestamps");
            continue;
        }
        let needed = |op: &&Op| wants_logits || !matches!(op.kind, OpKind::GatherRows { .. });
        let expected: Vec<&str> = program.ops.iter().take_while(needed).map(|op| op.name.as_str()).collect();
        // Ops computed together have a name of all: `op.3+4`.
        let names: Vec<String> = detail.ops.iter().flat_map(|op| names_of(&op.name)).collect();
        assert_eq!(names, expected);
        assert!(detail.ops.len() < expected.len());
        let (from, to) = detail.forward.expect("it was measured");
        assert!(
            start <= from && from <= to && to <= end && times.forward.is_some_and(|time| !time.is_zero())
        );
        assert!(detail.ops.iter().all(|op| op.started >= from && op.flops + op.bytes_read > 0));
    }
}

fn names_of(joined: &str) -> Vec<String> {
    let mut parts = joined.split('+');
    let first = parts.next().unwrap_or_default();
    let place = first.rsplit_once('.').map_or("", |(place, _)| place);
    std::iter::once(first.to_owned()).chain(parts.map(|own| format!("{place}.{own}"))).collect()
}

/// Every matrix is larger than a binding, the embedding (also the output) has several seams, and there is a token on
/// both sides of each; so is, among the logits, the feature.
#[test]
fn a_model_whose_matrices_exceed_a_binding_is_right_on_both_sides_of_each_seam() {
    const MAX_BINDING: u64 = 32 << 10;
    let sizes = Sizes {
        layers: 2,
        width: 128,
        feed_forward: 160,
        heads: 4,
        kv_heads: 1,
        vocabulary: 1001,
        window: None,
    };
    for last in [TensorType::Q8_0, TensorType::Q4_1, TensorType::F16] {
        let program = llama(sizes, &[TensorType::F32, last]);
        let weights = random_weights(&program, &mut Random::new(32));
        let part = MAX_BINDING as usize / (4 * 4 * super::packing::block_words(last));
        let seams: Vec<u32> = (0..1001).step_by(part).skip(1).map(|row| row as u32).collect();
        assert!(!seams.is_empty(), "{last:?}");
        for mapping in MAPPINGS {
            let open = |max_binding: u64| {
                let rig = Rig::try_open(&program, &weights, LIMITS, |options| {
                    options.mapping = mapping.unwrap_or(options.mapping);
                    options.max_binding = options.max_binding.min(max_binding);
                });
                rig.map(|rig| rig.expect("it opens"))
            };
            let Some((whole, mut rig)) = open(u64::MAX).zip(open(MAX_BINDING)) else { return };
            // Software adapters load weights from textures, which are larger.
            if mapping.is_some_and(|mapping| !mapping.is_software()) {
                let [whole, cut] = [&whole, &rig].map(|rig| rig.device.plan.dispatches.len());
                assert!(cut >= whole + 2 * seams.len(), "{cut} dispatches instead of {whole}");
            }
            let mut reference = ReferenceDevice::open(&program, &weights, LIMITS);
            let [mut sequence, ..] = sequences(&program, &mut Random::new(33));
            let around = seams.iter().flat_map(|seam| [seam - 1, *seam]);
            sequence.tokens = [0, 1000].into_iter().chain(around).collect();
            let rows = sequence.tokens.len() as u32;
            let mut batch = next_batch(&mut [(&mut sequence, rows)], 4);
            batch.logits_rows = (0..rows.min(6)).map(|row| rows - rows.min(6) + row).collect();
            let (mut found, mut expected) = (Vec::new(), Vec::new());
            rig.execute(&batch, &mut found).expect("the batch runs");
            reference.execute(&batch, &mut expected).expect("the batch runs");
            let largest = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            let sizes = vec![largest; expected.len()];
            assert_close(&format!("{last:?}, {mapping:?}"), &found, &expected, &sizes, 1e-4);
        }
    }
}

#[test]
fn what_is_over_a_limit_is_refused_by_name_before_it_is_allocated() {
    let sizes =
        Sizes { layers: 1, width: 32, feed_forward: 32, heads: 2, kv_heads: 1, vocabulary: 33, window: None };
    let program = llama(sizes, &[TensorType::F32]);
    let weights = random_weights(&program, &mut Random::new(27));
    let open = |limits: DeviceLimits, max_binding: u64, max_workgroups: u32| {
        let rig = Rig::try_open(&program, &weights, limits, |options| {
            options.mapping = HARDWARE;
            options.max_binding = options.max_binding.min(max_binding);
            options.max_workgroups = max_workgroups;
        });
        rig.map(|rig| rig.map(|_| ()).expect_err("it cannot be opened").to_string())
    };
    let Some(cache) = open(DeviceLimits { num_blocks: 1 << 30, ..LIMITS }, u64::MAX, 65_535) else { return };
    assert!(cache.starts_with("the keys of cache 0 needs 274877906944 bytes in one binding"), "{cache}");
    let step = open(LIMITS, 1000, 65_535).expect("there is an adapter");
    assert_eq!(step, "the data of a step needs 4312 bytes in one binding, the device allows 1000");
    let buffers = open(LIMITS, 6000, 65_535).expect("there is an adapter");
    assert_eq!(buffers, "buffer hidden needs 6144 bytes in one binding, the device allows 6000");
    let workgroups = open(LIMITS, u64::MAX, 2).expect("there is an adapter");
    assert!(workgroups.starts_with("op.") && workgroups.ends_with("the device allows 4"), "{workgroups}");
}

#[test]
fn what_the_adapter_can_do_at_most_is_measured() {
    let sizes =
        Sizes { layers: 1, width: 32, feed_forward: 32, heads: 2, kv_heads: 1, vocabulary: 33, window: None };
    let program = llama(sizes, &[TensorType::F32]);
    let weights = random_weights(&program, &mut Random::new(32));
    let Some(mut rig) = Rig::open(&program, &weights, LIMITS) else { return };
    let peak = rig.device.peak().expect("it is measured");
    // No machine that runs this reads less than 10 MB, or computes less than 10 million times, a second.
    assert!(peak.bytes_per_second > 1e7 && peak.bytes_per_second < 1e14, "{peak:?}");
    assert!(peak.flops_per_second > 1e7 && peak.flops_per_second < 1e16, "{peak:?}");
}

#[test]
fn a_lost_device_answers_every_step_with_an_error() {
    let sizes =
        Sizes { layers: 1, width: 32, feed_forward: 32, heads: 2, kv_heads: 1, vocabulary: 33, window: None };
    let program = llama(sizes, &[TensorType::F32]);
    let mut random = Random::new(28);
    let weights = random_weights(&program, &mut random);
    let Some(gpu) = own_gpu() else { return };
    let device = gpu.device.clone();
    let mut rig = Rig::on(gpu, &program, &weights, LIMITS, |_| ()).expect("it opens");
    let [mut a, ..] = sequences(&program, &mut random);
    let batch = next_batch(&mut [(&mut a, 5)], 4);
    rig.execute(&batch, &mut Vec::new()).expect("the batch runs");
    device.destroy();
    for _ in 0..3 {
        let error = rig.execute(&batch, &mut Vec::new()).expect_err("the device is gone");
        assert!(matches!(error, DeviceError::Lost(_)), "{error}");
    }
}

#[test]
fn a_wrong_number_of_stored_bytes_is_an_error() {
    let sizes =
        Sizes { layers: 1, width: 32, feed_forward: 32, heads: 2, kv_heads: 1, vocabulary: 33, window: None };
    let program = llama(sizes, &[TensorType::Q8_0]);
    let mut weights = random_weights(&program, &mut Random::new(29));
    weights.0[0].pop();
    let Some(opened) = Rig::try_open(&program, &weights, LIMITS, |_| ()) else { return };
    let error = opened.map(|_| ()).expect_err("a byte is missing").to_string();
    assert!(error.contains("weight 0 has 1121 bytes; 33 rows of 32 Q8_0 values"), "{error}");
}
