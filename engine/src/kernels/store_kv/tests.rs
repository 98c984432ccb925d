use super::reference::store_kv;
use crate::device::Batch;
use crate::device::wgpu::shader::Mapping;
use crate::device::wgpu::testing::{
    MAPPINGS, POISON, Random, Rig, Stored, assert_close, limits_for, one_op, one_sequence, tokens,
};
use crate::kernels::rope::reference::{frequencies, rope};
use crate::program::{BufferId, Op, OpKind, Program, RopeStyle, Rotation};

/// Heads of keys and of values of these sizes.
fn program(num_kv_heads: usize, sizes: [usize; 2]) -> Program {
    let kind = OpKind::StoreKv { key: BufferId(0), value: BufferId(1), layer: 0 };
    let [key, value] = sizes.map(|size| num_kv_heads * size);
    let mut program = one_op(kind, vec![tokens("key", key), tokens("value", value)], vec![]);
    program.num_kv_heads = num_kv_heads;
    [program.head_size, program.value_head_size] = sizes;
    program
}

/// One sequence whose slots are in reverse order.
fn batch(rows: usize) -> Batch {
    let mut batch = one_sequence(rows, 16);
    batch.slots.reverse();
    batch
}

fn check(num_kv_heads: usize, sizes: [usize; 2], rows: usize, mapping: Option<Mapping>, max_workgroups: u32) {
    let (limits, batch) = (limits_for(rows), batch(rows));
    let rig = Rig::try_open(&program(num_kv_heads, sizes), &Stored(vec![]), limits, |options| {
        options.mapping = mapping.unwrap_or(options.mapping);
        options.max_workgroups = max_workgroups;
    });
    let Some(rig) = rig else { return };
    let mut rig = rig.expect("it opens");
    let slots = limits.num_blocks * limits.block_size;
    let widths = sizes.map(|size| num_kv_heads * size);
    let rows = [0, 1].map(|half| {
        let sign = [1.0, -1.0][half];
        (0..rows * widths[half]).map(|index| sign * index as f32).collect::<Vec<_>>()
    });
    for half in [0, 1] {
        rig.write(half, &rows[half]);
        rig.write_cache(half, &vec![f32::from_bits(POISON); slots * widths[half]]);
    }
    rig.run(&batch);
    for half in [0, 1] {
        let mut expected = vec![f32::from_bits(POISON); slots * widths[half]];
        store_kv(&rows[half], &batch.slots, widths[half], &mut expected);
        let found = rig.read_cache(half);
        let same = found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same && found.len() == expected.len(), "{num_kv_heads} heads of {sizes:?}, half {half}");
    }
}

/// Sizes of heads of keys and of values.
const DIFFERING: [[usize; 2]; 9] =
    [[8, 16], [16, 8], [64, 32], [7, 4], [4, 7], [192, 128], [24, 8], [12, 5], [5, 6]];

#[test]
fn rows_go_to_their_slots_and_other_slots_stay() {
    for (width, rows) in [(1, 1), (7, 9), (31, 8), (33, 7), (192, 5), (257, 3)] {
        check(1, [width; 2], rows, None, 65_535);
    }
}

#[test]
fn heads_of_keys_and_of_values_may_differ_in_size() {
    for sizes in DIFFERING {
        for mapping in MAPPINGS {
            check(1, sizes, 9, mapping, 65_535);
            check(2, sizes, 7, mapping, 65_535);
        }
    }
}

#[test]
fn keys_turn_on_their_way_into_the_cache_and_queries_in_place() {
    let (num_heads, num_kv_heads, rows) = (4, 2, 5);
    let equal = [[8, 8], [64, 64]];
    for [head_size, value_head_size] in DIFFERING.into_iter().chain(equal) {
        let rotation = Rotation::plain(head_size / 4 * 2, 100.0);
        let turn = |buffer, num_heads, style| {
            let kind = OpKind::Rope { buffer: BufferId(buffer), num_heads, head_size, rotation, style };
            Op { name: "turn".to_owned(), kind }
        };
        let styles = [RopeStyle::Pairs, RopeStyle::Halves].into_iter();
        for (style, mapping) in styles.flat_map(|style| MAPPINGS.map(|mapping| (style, mapping))) {
            let mut program = program(num_kv_heads, [head_size, value_head_size]);
            program.buffers.push(tokens("query", num_heads * head_size));
            let query = program.buffers.len() - 1;
            program.ops.splice(0..0, [turn(query, num_heads, style), turn(0, num_kv_heads, style)]);
            let (limits, batch) = (limits_for(rows), batch(rows));
            let Some(mut rig) = Rig::mapped(&program, &Stored(vec![]), limits, mapping) else { return };
            let mut random = Random::new(3);
            let widths = [num_kv_heads * head_size, num_kv_heads * value_head_size];
            let [mut keys, values] = widths.map(|width| random.values(rows * width));
            let mut queries = random.values(rows * num_heads * head_size);
            let slots = limits.num_blocks * limits.block_size;
            rig.poison(query);
            for (buffer, rows) in [(0, &keys), (1, &values), (query, &queries)] {
                rig.write(buffer, rows);
            }
            let mut expected = widths.map(|width| vec![0.0; slots * width]);
            for half in [0, 1] {
                rig.write_cache(half, &expected[half]);
            }
            rig.run(&batch);
            let frequencies = frequencies(&rotation, None);
            for (rows, num_heads) in [(&mut keys, num_kv_heads), (&mut queries, num_heads)] {
                rope(rows, &batch.positions, num_heads, head_size, &frequencies, 1.0, style);
            }
            for (half, rows) in [&keys, &values].into_iter().enumerate() {
                store_kv(rows, &batch.slots, widths[half], &mut expected[half]);
            }
            let close = |part: &str, found: &[f32], expected: &[f32]| {
                let what =
                    format!("{part}, heads of {head_size} and {value_head_size}, {style:?}, {mapping:?}");
                assert_close(&what, found, expected, &vec![1.0; expected.len()], 1e-6);
            };
            close("queries", &rig.read(query, rows), &queries);
            close("keys", &rig.read_cache(0), &expected[0]);
            close("values", &rig.read_cache(1), &expected[1]);
        }
    }
}

#[test]
fn folded_dispatches_miss_nothing_and_write_nothing_else() {
    for rows in [7 * 64, 7 * 64 + 1, 8 * 64 + 1] {
        check(1, [1, 1], rows, None, 7);
    }
}

#[test]
fn elements_around_the_real_limit_of_one_dimension_are_all_stored() {
    for (width, rows, elements) in
        [(255, 16_448, 65_535 * 64), (29, 144_629, 65_535 * 64 + 1), (1985, 2113, 65_536 * 64 + 1)]
    {
        assert_eq!(width * rows, elements);
        check(1, [width; 2], rows, None, 65_535);
    }
}
