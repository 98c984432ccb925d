use super::reference::top_k;
use super::{CHUNK, Input, MOST, Stage};
use crate::device::wgpu::testing::{HARDWARE, Random, Rig, Stored, limits_for, one_op, one_sequence, tokens};
use crate::device::{Batch, Candidate, ExecuteDetail};
use crate::program::{Buffer, BufferId, OpKind, Rows};

/// A device whose logits are their input, rows of `vocabulary` values, mapped as for hardware.
fn open(vocabulary: usize, rows: usize, max_workgroups: u32) -> Option<Rig> {
    let kind = OpKind::GatherRows { input: BufferId(0), out: BufferId(1) };
    let logits = Buffer { name: "logits", rows: Rows::Logits, width: vocabulary };
    let program = one_op(kind, vec![tokens("input", vocabulary), logits], vec![]);
    let mut limits = limits_for(rows);
    limits.max_sequences = rows + 1;
    let rig = Rig::try_open(&program, &Stored(vec![]), limits, |options| {
        options.mapping = HARDWARE;
        options.max_workgroups = options.max_workgroups.min(max_workgroups);
    });
    Some(rig?.expect("it opens"))
}

/// Every row asks for the number of candidates beside it.
fn batch(asked: &[usize]) -> Batch {
    let mut batch = one_sequence(asked.len(), 16);
    batch.logits_rows = (0..asked.len() as u32).collect();
    batch.candidates = asked.iter().map(|count| *count as u32).collect();
    batch
}

/// Few values, so that there are ties, and among them those that have no place on the line of numbers.
fn row(random: &mut Random, vocabulary: usize) -> Vec<f32> {
    let special =
        [f32::NEG_INFINITY, f32::INFINITY, 0.0, -0.0, f32::MIN_POSITIVE / 4.0, -f32::MIN_POSITIVE / 4.0];
    let mut row: Vec<f32> = (0..vocabulary)
        .map(|_| match random.below(8) {
            0 => special[random.below(special.len() as u32) as usize],
            1..4 => random.below(9) as f32 - 4.0,
            _ => 30.0 * random.values(1)[0],
        })
        .collect();
    if random.below(4) == 0 {
        let place = random.below(vocabulary as u32) as usize;
        row[place] = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)][random.below(3) as usize];
    }
    row
}

fn assert_same(found: &[Candidate], expected: &[Candidate], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same_logit = found.logit == expected.logit || found.logit.is_nan() && expected.logit.is_nan();
        assert!(found.id == expected.id && same_logit, "{what}, place {place}: {found:?}, not {expected:?}");
    }
}

fn check(vocabulary: usize, asked: &[usize], max_workgroups: u32) {
    let Some(mut rig) = open(vocabulary, asked.len(), max_workgroups) else { return };
    let mut random = Random::new(vocabulary as u64);
    let rows: Vec<Vec<f32>> = asked.iter().map(|_| row(&mut random, vocabulary)).collect();
    rig.write(0, &rows.concat());
    let mut logits = Vec::new();
    rig.execute(&batch(asked), &mut logits).expect("the batch runs");
    let (mut whole, mut picked) = (logits.chunks_exact(vocabulary), rig.candidates());
    for (index, (row, asked)) in rows.iter().zip(asked).enumerate() {
        let what = format!("row {index} of {vocabulary}, {asked} candidates");
        if *asked == 0 {
            let found = whole.next().expect("a whole row");
            assert!(found.iter().zip(row).all(|(a, b)| a == b || a.is_nan() && b.is_nan()), "{what}");
            continue;
        }
        let (own, rest) = picked.split_at(*asked);
        assert_same(own, &top_k(row, *asked), &what);
        picked = rest;
    }
    assert!(whole.next().is_none() && picked.is_empty(), "nothing that was not asked for");
}

#[test]
fn the_best_candidate_is_the_references() {
    for vocabulary in [2, 255, 257, 2048, 2049, 5001, 49_152] {
        check(vocabulary, &[1; 3], u32::MAX);
    }
    check(CHUNK * CHUNK + 1, &[1], u32::MAX);
}

#[test]
fn the_best_k_are_the_references_in_their_order() {
    for vocabulary in [65, 255, 2047, 2048, 2049, 5001, 49_153] {
        check(vocabulary, &[MOST, 2, 40], u32::MAX);
    }
    // Three stages.
    check(CHUNK * CHUNK / MOST + 1, &[MOST], u32::MAX);
}

#[test]
fn rows_that_are_wanted_whole_come_whole_between_those_that_are_not() {
    for asked in [[0, 1, 0, 0, 1], [1, 1, 0, 0, 0], [3, 0, 1, 64, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 7]] {
        check(777, &asked, u32::MAX);
    }
}

#[test]
fn folded_dispatches_miss_no_row() {
    // Three workgroups a row.
    for rows in [6, 7, 13] {
        check(2 * CHUNK + 1, &vec![1; rows], 16);
        check(2 * CHUNK + 1, &vec![5; rows], 16);
    }
}

#[test]
fn a_device_offers_fewer_candidates_than_a_row_has_and_refuses_to_pick_more() {
    for (vocabulary, offered) in [(1, 0), (2, 1), (33, 32), (65, 64), (5000, 64)] {
        let Some(mut rig) = open(vocabulary, 1, u32::MAX) else { return };
        assert_eq!(rig.max_candidates(), offered, "of {vocabulary}");
        if offered > 0 {
            check(vocabulary, &[offered], u32::MAX);
        }
        let refused = rig.execute(&batch(&[offered + 1]), &mut Vec::new()).expect_err("it is too much");
        let expected = format!("needs {} candidates, the device allows {offered}", offered + 1);
        assert!(refused.to_string().ends_with(&expected), "{refused}");
    }
}

#[test]
fn stages_end_with_one_chunk_however_long_a_row_is() {
    for vocabulary in [1, CHUNK, CHUNK + 1, 49_152, 262_144, 10_000_000] {
        for kept in [1, MOST] {
            let series = Stage::series(vocabulary, kept);
            assert_eq!((series[0].input, series[0].count), (Input::Logits, vocabulary));
            let inner = series.windows(2).all(|pair| pair[1].count == pair[0].out_width());
            assert!(inner && series.last().is_some_and(|last| last.out_width() == kept), "{series:?}");
        }
    }
    assert_eq!(Stage::series(49_152, MOST).len(), 2);
}

#[test]
fn a_step_that_is_looked_into_picks_the_same_and_counts_it_to_no_op() {
    let Some(rig) = open(5001, 2, u32::MAX) else { return };
    let rows = [row(&mut Random::new(1), 5001), row(&mut Random::new(2), 5001)];
    rig.write(0, &rows.concat());
    let mut device = rig.into_device();
    let mut detail = ExecuteDetail::default();
    device.execute_detailed(&batch(&[1, 30]), &mut Vec::new(), &mut detail).expect("the batch runs");
    let expected = [top_k(&rows[0], 1), top_k(&rows[1], 30)].concat();
    assert_same(device.candidates(), &expected, "a step that is looked into");
    // None where the adapter has no timestamps.
    assert!(detail.ops.iter().all(|op| op.name == "op"), "{:?}", detail.ops);
}
