use super::reference::{AttentionShape, attention};
use crate::device::wgpu::shader::Mapping;
use crate::device::wgpu::testing::{
    HARDWARE, MAPPINGS, Random, Rig, Stored, assert_close, one_op, one_sequence, tokens,
};
use crate::device::{Batch, BatchSequence, DeviceLimits};
use crate::program::{BufferId, OpKind, Program};

const BLOCK_SIZE: usize = 4;
const LIMITS: DeviceLimits = DeviceLimits {
    num_blocks: 96,
    block_size: BLOCK_SIZE,
    max_tokens: 48,
    max_sequences: 8,
    max_blocks_per_sequence: 260,
};

fn shape(num_heads: usize, num_kv_heads: usize, head_size: usize) -> AttentionShape {
    let scale = 1.0 / (head_size as f32).sqrt();
    AttentionShape {
        num_heads,
        num_kv_heads,
        head_size,
        value_head_size: head_size,
        block_size: BLOCK_SIZE,
        scale,
        window: None,
        cache_group: 0,
    }
}

fn program(shape: AttentionShape, out: usize) -> Program {
    let [query, attended] = [shape.head_size, shape.value_head_size].map(|size| shape.num_heads * size);
    let kind = OpKind::Attention {
        query: BufferId(0),
        out: BufferId(out),
        layer: 0,
        num_heads: shape.num_heads,
        scale: shape.scale,
        window: shape.window,
    };
    let mut program = one_op(kind, vec![tokens("query", query), tokens("out", attended)], vec![]);
    program.num_kv_heads = shape.num_kv_heads;
    (program.head_size, program.value_head_size) = (shape.head_size, shape.value_head_size);
    program
}

/// Sequences of (context, rows), their blocks scattered over the pool.
fn batch(sequences: &[(u32, u32)], random: &mut Random) -> Batch {
    let mut batch = Batch::default();
    for (context, rows) in sequences {
        batch.sequences.push(BatchSequence {
            first_row: batch.tokens.len() as u32,
            num_rows: *rows,
            context_len: *context,
            block_table_start: batch.block_tables.len() as u32,
        });
        let blocks = context.div_ceil(BLOCK_SIZE as u32);
        batch.block_tables.extend((0..blocks).map(|_| random.below(LIMITS.num_blocks as u32)));
        for position in context - rows..*context {
            batch.tokens.push(0);
            batch.positions.push(position);
            batch.slots.push(0);
        }
    }
    batch
}

fn check(shape: AttentionShape, sequences: &[(u32, u32)], mapping: Option<Mapping>, out: usize, folded: u32) {
    let mut random = Random::new(12);
    let batch = batch(sequences, &mut random);
    let (rows, width) = (batch.tokens.len(), shape.num_heads * shape.value_head_size);
    let stored_heads = LIMITS.num_blocks * BLOCK_SIZE * shape.num_kv_heads;
    // Large scores, so that a wrong maximum shows.
    let query = random.values(rows * shape.num_heads * shape.head_size);
    let query: Vec<f32> = query.iter().map(|value| value * 8.0).collect();
    let keys = random.values(stored_heads * shape.head_size);
    let values = random.values(stored_heads * shape.value_head_size);
    let rig = Rig::try_open(&program(shape, out), &Stored(vec![]), LIMITS, |options| {
        options.mapping = mapping.unwrap_or(options.mapping);
        options.max_workgroups = options.max_workgroups.min(folded);
    });
    let Some(rig) = rig else { return };
    let mut rig = rig.expect("it opens");
    rig.poison(out);
    rig.write(0, &query);
    rig.write_cache(0, &keys);
    rig.write_cache(1, &values);
    rig.run(&batch);
    let mut expected = vec![0.0; rows * width];
    attention(&query, &keys, &values, &batch, shape, &mut expected);
    let what = format!("{shape:?}, {sequences:?}, {mapping:?}");
    assert_close(&what, &rig.read(out, rows), &expected, &vec![1.0; rows * width], 1e-5);
}

#[test]
fn contexts_around_every_tile_and_block_border_agree_with_the_reference() {
    let lengths: Vec<(u32, u32)> = [1, 7, 8, 9, 31, 33].map(|context| (context, 1)).to_vec();
    let long: Vec<(u32, u32)> = [63, 64, 65, 127, 255, 257].map(|context| (context, 1)).to_vec();
    for mapping in MAPPINGS {
        check(shape(9, 3, 64), &lengths, mapping, 1, u32::MAX);
        check(shape(9, 3, 64), &long, mapping, 1, u32::MAX);
    }
}

#[test]
fn chunks_of_prompts_beside_single_tokens_see_their_own_past_only() {
    for mapping in MAPPINGS {
        check(shape(4, 2, 8), &[(9, 9), (40, 1), (33, 7), (3, 2)], mapping, 1, u32::MAX);
    }
}

#[test]
fn rows_see_no_further_back_than_their_window() {
    let sequences = [(9, 9), (40, 1), (257, 1), (77, 20), (3, 2)];
    for window in [1, 3, 4, 5, 16, 63, 64, 65, 1000] {
        let shape = AttentionShape { window: Some(window), ..shape(4, 2, 8) };
        for mapping in MAPPINGS {
            check(shape, &sequences, mapping, 1, u32::MAX);
        }
    }
}

#[test]
fn pasts_of_several_partitions_agree_with_the_reference() {
    // Few rows with a long past, which GPUs split, beside rows without one; then too many rows to be split.
    let few = [(1040, 1), (1024, 2), (513, 1), (512, 3), (300, 1), (256, 1), (3, 3)];
    let many = [(1040, 20), (600, 1), (20, 20)];
    for shape in [shape(4, 2, 8), shape(3, 1, 7), AttentionShape { value_head_size: 12, ..shape(4, 2, 260) }]
    {
        for window in [None, Some(5), Some(256), Some(400)] {
            let shape = AttentionShape { window, ..shape };
            for mapping in MAPPINGS {
                check(shape, &few, mapping, 1, u32::MAX);
                check(shape, &few, mapping, 1, 15);
                check(shape, &many, mapping, 1, u32::MAX);
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_whether_its_past_is_split_or_not() {
    let shape = AttentionShape { window: Some(900), ..shape(6, 2, 64) };
    let mut random = Random::new(13);
    let query = random.values(LIMITS.max_tokens * 6 * 64);
    let [keys, values] = [(); 2].map(|()| random.values(LIMITS.num_blocks * BLOCK_SIZE * 2 * 64));
    let (alone, company) = ((1040, 1), (40, 40));
    for mapping in [HARDWARE, Mapping::Hardware { subgroups: false }] {
        let rig = Rig::mapped(&program(shape, 1), &Stored(vec![]), LIMITS, Some(mapping));
        let Some(mut rig) = rig else { return };
        rig.write_cache(0, &keys);
        rig.write_cache(1, &values);
        let mut first_row = |sequences: &[(u32, u32)], splits: bool| {
            let batch = batch(sequences, &mut Random::new(14));
            assert_eq!(rig.splits(&batch), splits);
            let rows = batch.tokens.len();
            rig.poison(1);
            rig.write(0, &query[..rows * 6 * 64]);
            rig.run(&batch);
            rig.read(1, rows)[..6 * 64].iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(first_row(&[alone], true), first_row(&[alone, company], false), "{mapping:?}");
    }
}

#[test]
fn odd_head_sizes_and_groups_agree_with_the_reference() {
    let odd = [(1, 1, 1), (3, 1, 7), (7, 7, 9), (5, 1, 33), (8, 1, 4), (6, 2, 12)];
    let multiples_of_eight = [(2, 2, 24), (3, 1, 40), (2, 1, 120), (4, 1, 256)];
    for (num_heads, num_kv_heads, head_size) in odd.into_iter().chain(multiples_of_eight) {
        for mapping in MAPPINGS {
            check(shape(num_heads, num_kv_heads, head_size), &[(35, 2), (5, 5)], mapping, 1, u32::MAX);
        }
    }
    check(shape(2, 1, 257), &[(35, 2), (5, 5)], Some(HARDWARE), 1, u32::MAX);
}

#[test]
fn heads_of_keys_and_of_values_may_differ_in_size() {
    // Of keys and of values: in fours or not, in one load of the lanes or several, longer than they keep.
    let sizes = [(8, 16), (16, 8), (64, 32), (7, 4), (4, 7), (192, 128), (24, 8), (8, 260), (5, 6)];
    let sequences = [(9, 9), (40, 1), (33, 7), (3, 2)];
    for (head_size, value_head_size) in sizes {
        for (num_heads, num_kv_heads) in [(6, 2), (4, 1)] {
            let shape = AttentionShape { value_head_size, ..shape(num_heads, num_kv_heads, head_size) };
            for mapping in MAPPINGS {
                check(shape, &sequences, mapping, 1, u32::MAX);
                check(AttentionShape { window: Some(5), ..shape }, &sequences, mapping, 1, u32::MAX);
            }
        }
    }
}

#[test]
fn the_output_may_be_the_query_and_dispatches_may_be_folded() {
    for mapping in MAPPINGS {
        check(shape(4, 2, 8), &[(9, 9), (40, 1)], mapping, 0, u32::MAX);
        check(shape(4, 2, 8), &[(30, 30)], mapping, 1, 15);
    }
}

#[test]
fn a_row_that_sees_nothing_is_zero_and_a_nan_it_sees_is_not_hidden() {
    let shape = shape(4, 2, 8);
    let cache = LIMITS.num_blocks * BLOCK_SIZE * 16;
    for mapping in MAPPINGS {
        let Some(mut rig) = Rig::mapped(&program(shape, 1), &Stored(vec![]), LIMITS, mapping) else { return };
        let batch = one_sequence(3, BLOCK_SIZE);
        for (half, slot) in [(0, 1), (1, 1)] {
            let mut with_nan = vec![0.5; cache];
            with_nan[slot * 16] = f32::NAN;
            rig.write_cache(half, &with_nan);
            rig.write_cache(1 - half, &vec![0.5; cache]);
            rig.write(0, &[0.5; 3 * 32]);
            rig.poison(1);
            rig.run(&batch);
            let out = rig.read(1, 3);
            assert!(out[..32].iter().all(|value| *value == 0.5), "row 0 sees slot 0 only");
            // Query heads 0 and 1 read KV head 0, which has the NaN.
            assert!(out[32].is_nan() && out[64 + 8].is_nan() && out[32 + 16] == 0.5, "{out:?}");
        }
        rig.poison(1);
        // Position −1: it sees no position at all.
        rig.run_unchecked(
            |words| {
                let positions = words[3] as usize;
                words[positions + 1] = u32::MAX;
            },
            &batch,
        );
        assert!(rig.read(1, 3)[32..64].iter().all(|value| *value == 0.0));
    }
}
