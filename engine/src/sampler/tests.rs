//! Formulae against values worked out by hand, distributions against their probabilities.

use proptest::prelude::*;

use super::*;
use crate::kernels::top_k::reference::top_k;

fn sampler(params: SamplingParams) -> Sampler {
    Sampler::new(SamplingParams { seed: Some(params.seed.unwrap_or(7)), ..params }, &[], 0)
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

fn sample(params: SamplingParams, logits: &[f32]) -> Result<u32, SampleError> {
    sampler(params).sample(&mut logits.to_vec()).map(|token| token.id)
}

/// How often each of `logits.len()` tokens comes in 20,000 draws.
fn histogram(params: SamplingParams, logits: &[f32]) -> Vec<f64> {
    let mut sampler = sampler(params);
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..20_000 {
        counts[sampler.sample(&mut logits.to_vec()).unwrap().id as usize] += 1.0;
    }
    counts
}

/// Asserts that counts fit the probabilities: chi square below a bound that chance exceeds once in 10,000
/// for up to 5 degrees of freedom. The seeds are fixed, so this passes always or never.
fn assert_distributed(counts: &[f64], probabilities: &[f64]) {
    let total: f64 = counts.iter().sum();
    let scale: f64 = probabilities.iter().sum();
    let mut chi_square = 0.0;
    for (count, probability) in counts.iter().zip(probabilities) {
        let expected = total * probability / scale;
        if expected == 0.0 {
            assert_eq!(*count, 0.0, "{counts:?} for {probabilities:?}");
        } else {
            chi_square += (count - expected).powi(2) / expected;
        }
    }
    assert!(chi_square < 25.7, "chi square {chi_square} of {counts:?} for {probabilities:?}");
}

const PROBABILITIES: [f64; 6] = [0.05, 0.3, 0.1, 0.25, 0.28, 0.02];

fn logits() -> Vec<f32> {
    PROBABILITIES.iter().map(|probability| probability.ln() as f32 + 3.0).collect()
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    assert_eq!(sample(greedy(), &[1.0, 3.0, 3.0, 2.0]), Ok(1));
    let mut long = vec![0.0; 1000];
    (long[999], long[437], long[300]) = (5.0, 5.0, 4.0);
    assert_eq!(sample(greedy(), &long), Ok(437));
}

#[test]
fn nan_anywhere_is_an_error_even_beside_a_greater_logit() {
    for (length, place) in [(1, 0), (7, 3), (16, 15), (257, 256), (1000, 700)] {
        let mut logits = vec![1.0; length];
        logits[place] = f32::NAN;
        assert_eq!(sample(greedy(), &logits), Err(SampleError::NotFinite));
        assert_eq!(sample(SamplingParams::default(), &logits), Err(SampleError::NotFinite));
    }
    assert_eq!(sample(greedy(), &[0.0, f32::INFINITY]), Err(SampleError::NotFinite));
    assert_eq!(sample(greedy(), &[f32::NEG_INFINITY; 3]), Err(SampleError::NothingLeft));
    assert_eq!(sample(greedy(), &[]), Err(SampleError::NothingLeft));
}

#[test]
fn plain_sampling_follows_the_softmax() {
    assert_distributed(&histogram(SamplingParams::default(), &logits()), &PROBABILITIES);
}

#[test]
fn temperature_is_a_power_of_the_probabilities() {
    let params = SamplingParams { temperature: 0.5, ..SamplingParams::default() };
    assert_distributed(&histogram(params, &logits()), &PROBABILITIES.map(|probability| probability.powi(2)));
    let params = SamplingParams { temperature: 2.0, ..SamplingParams::default() };
    assert_distributed(&histogram(params, &logits()), &PROBABILITIES.map(f64::sqrt));
}

#[test]
fn filters_keep_what_they_say() {
    let params = SamplingParams { top_k: Some(3), ..SamplingParams::default() };
    assert_distributed(&histogram(params, &logits()), &[0.0, 0.3, 0.0, 0.25, 0.28, 0.0]);
    let params = SamplingParams { top_p: 0.5, ..SamplingParams::default() };
    assert_distributed(&histogram(params, &logits()), &[0.0, 0.3, 0.0, 0.0, 0.28, 0.0]);
    let params = SamplingParams { min_p: 0.3, ..SamplingParams::default() };
    assert_distributed(&histogram(params, &logits()), &[0.0, 0.3, 0.1, 0.25, 0.28, 0.0]);
    // Of the four left by min_p and three by top_k, 0.3 and 0.28 have 0.7 of 0.83.
    let params = SamplingParams { min_p: 0.3, top_k: Some(3), top_p: 0.69, ..SamplingParams::default() };
    assert_distributed(&histogram(params, &logits()), &[0.0, 0.3, 0.0, 0.0, 0.28, 0.0]);
}

#[test]
fn top_p_over_many_equal_tokens_keeps_the_lowest_ids() {
    let params = SamplingParams { top_p: 0.5, ..SamplingParams::default() };
    let counts = histogram(params, &[0.0; 1000]);
    assert!(counts[..500].iter().filter(|count| **count > 0.0).count() > 490);
    assert_eq!(counts[500..].iter().sum::<f64>(), 0.0);
}

#[test]
fn penalties_follow_their_formulae() {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        frequency_penalty: 0.25,
        presence_penalty: 0.5,
        ..greedy()
    };
    let mut sampler = Sampler::new(params, &[0, 1, 1], 0);
    sampler.output_counts = [(1, 2), (2, 1)].into_iter().collect();
    let mut row = [4.0, -4.0, 4.0, 4.0];
    assert!(sampler.adjust(&mut row));
    // Prompt only: 4 / 2. Both: -4 · 2 - 2 · 0.25 - 0.5. Output only: 4 / 2 - 0.25 - 0.5. Neither: 4.
    assert_eq!(row, [2.0, -9.0, 1.25, 4.0]);
}

#[test]
fn generated_tokens_are_counted_for_penalties() {
    let mut sampler = sampler(SamplingParams { frequency_penalty: 1.0, ..greedy() });
    let chosen: Vec<u32> = (0..6).map(|_| sampler.sample(&mut [2.5, 1.9, 0.2]).unwrap().id).collect();
    // 2.5 1.9 0.2 → 1.5 1.9 → 1.5 0.9 → 0.5 0.9 → 0.5 -0.1 → -0.5 -0.1 0.2
    assert_eq!(chosen, [0, 1, 0, 1, 0, 2]);
}

#[test]
fn end_tokens_are_masked_until_min_tokens() {
    let params = SamplingParams { min_tokens: 2, stop_token_ids: vec![1, 900], ..greedy() };
    let mut sampler = sampler(params);
    let chosen: Vec<u32> = (0..3).map(|_| sampler.sample(&mut [1.0, 9.0, 2.0]).unwrap().id).collect();
    assert_eq!(chosen, [2, 2, 1]);
}

#[test]
fn logit_bias_moves_the_choice_and_ignores_ids_outside_the_vocabulary() {
    let params = SamplingParams { logit_bias: vec![(2, 5.0), (3, 100.0)], ..greedy() };
    assert_eq!(sample(params, &[1.0, 4.0, 0.0]), Ok(2));
}

#[test]
fn logprobs_are_those_of_the_raw_logits_with_ties_by_id() {
    let params = SamplingParams { logprobs: Some(3), logit_bias: vec![(3, 9.0)], ..greedy() };
    let row: Vec<f32> =
        [0.25_f32, 0.125, 0.25, 0.125, 0.25].iter().map(|probability| probability.ln()).collect();
    let token = sampler(params).sample(&mut row.clone()).unwrap();
    let logprobs = token.logprobs.unwrap();
    assert_eq!(token.id, 3);
    assert!((logprobs.chosen - row[3]).abs() < 1e-6);
    assert_eq!(logprobs.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 2, 4]);
    assert!((logprobs.top[0].1 - row[0]).abs() < 1e-6);
    let params = SamplingParams { logprobs: Some(0), ..greedy() };
    assert_eq!(sampler(params).sample(&mut row.clone()).unwrap().logprobs.unwrap().top, []);
    let params = SamplingParams { logprobs: Some(99), ..greedy() };
    assert_eq!(sampler(params).sample(&mut row.clone()).unwrap().logprobs.unwrap().top.len(), 5);
}

#[test]
fn candidates_are_asked_for_only_where_they_are_enough() {
    let asked = |params: SamplingParams| sampler(params).num_candidates(64);
    assert_eq!(asked(greedy()), Some(1));
    assert_eq!(asked(SamplingParams { top_k: Some(40), ..greedy() }), Some(1));
    let top_k = |k| SamplingParams { top_k: Some(k), top_p: 0.9, min_p: 0.1, ..SamplingParams::default() };
    assert_eq!([1, 64].map(|k| asked(top_k(k))), [Some(1), Some(64)]);
    assert_eq!([0, 65].map(|k| asked(top_k(k))), [None, None]);
    assert_eq!(asked(SamplingParams::default()), None);
    assert_eq!(asked(SamplingParams { logprobs: Some(0), ..greedy() }), None);
    assert_eq!(asked(SamplingParams { logit_bias: vec![(1, 1.0)], ..greedy() }), None);
    assert_eq!(asked(SamplingParams { repetition_penalty: 1.1, ..greedy() }), None);
    assert_eq!(asked(SamplingParams { presence_penalty: 0.1, ..greedy() }), None);
    assert_eq!(asked(SamplingParams { frequency_penalty: 0.1, ..greedy() }), None);
    assert_eq!(sampler(greedy()).num_candidates(0), None);
    let mut masked = sampler(SamplingParams { min_tokens: 1, stop_token_ids: vec![1], ..greedy() });
    assert_eq!(masked.num_candidates(64), None);
    masked.sample(&mut [0.0, 1.0]).unwrap();
    assert_eq!(masked.num_candidates(64), Some(1));
}

fn row() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(prop_oneof![9 => -20.0..20.0f32, 1 => Just(f32::NEG_INFINITY)], 1..600)
        .prop_filter("one finite logit", |row| row.iter().any(|logit| logit.is_finite()))
}

/// Rows with ties, in some of which are values that end a request.
fn any_row() -> impl Strategy<Value = Vec<f32>> {
    let ties = prop_oneof![Just(0.0_f32), Just(-0.0), Just(1.0), Just(2.0)];
    let number = prop_oneof![4 => -20.0..20.0f32, 4 => ties, 1 => Just(f32::NEG_INFINITY)];
    let special = prop_oneof![Just(f32::NAN), Just(-f32::NAN), Just(f32::INFINITY)];
    let hopeless = (66..80_usize).prop_map(|length| vec![f32::NEG_INFINITY; length]);
    let numbers = prop::collection::vec(number, 66..400);
    let spoiled =
        (numbers.clone(), special, any::<prop::sample::Index>()).prop_map(|(mut row, value, place)| {
            let place = place.index(row.len());
            row[place] = value;
            row
        });
    prop_oneof![12 => numbers, 3 => spoiled, 1 => hopeless]
}

proptest! {
    #[test]
    fn candidates_give_what_the_whole_row_gives(
        rows in prop::collection::vec(any_row(), 1..6),
        temperature in prop_oneof![Just(0.0_f32), Just(1.0), 1e-6..3.0f32],
        k in 1..=64_usize,
        top_p in prop_oneof![Just(1.0_f32), 0.01..1.0f32],
        min_p in prop_oneof![Just(0.0_f32), 0.0..1.0f32],
        seed: u64,
    ) {
        let params =
            SamplingParams { temperature, top_k: Some(k), top_p, min_p, seed: Some(seed), ..SamplingParams::default() };
        let (mut whole, mut picked) = (sampler(params.clone()), sampler(params));
        for row in rows {
            let needed = picked.num_candidates(64).expect("the best are enough");
            let candidates = top_k(&row, needed);
            prop_assert_eq!(picked.sample_picked(&candidates), whole.sample(&mut row.clone()));
        }
    }

    #[test]
    fn argmax_is_the_first_greatest(row in row()) {
        let greatest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let expected = row.iter().position(|logit| *logit == greatest).unwrap() as u32;
        prop_assert_eq!(sample(greedy(), &row), Ok(expected));
    }

    #[test]
    fn filters_that_leave_one_token_are_greedy(row in row(), seed: u64, temperature in 0.1..3.0f32) {
        let base = SamplingParams { temperature, seed: Some(seed), ..SamplingParams::default() };
        let expected = sample(greedy(), &row);
        prop_assert_eq!(sample(SamplingParams { top_k: Some(1), ..base.clone() }, &row), expected);
        prop_assert_eq!(sample(SamplingParams { top_p: 1e-6, ..base.clone() }, &row), expected);
        let sharp = SamplingParams { temperature: 1e-6, ..base };
        prop_assert_eq!(sample(sharp, &row), expected);
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_p(row in row(), top_p in 0.01..0.99f32, seed: u64) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
        let weights: Vec<f64> = row.iter().map(|logit| f64::from(*logit).exp()).collect();
        let total: f64 = weights.iter().sum();
        let params = SamplingParams { top_p, seed: Some(seed), ..SamplingParams::default() };
        let chosen = sample(params, &row).unwrap() as usize;
        let before: f64 =
            order.iter().take_while(|index| **index != chosen).map(|index| weights[*index]).sum();
        prop_assert!(before < f64::from(top_p) * total * (1.0 + 1e-5), "{before} of {total} before {chosen}");
    }

    #[test]
    fn same_seed_gives_the_same_choices_and_no_filter_changes_none(row in row(), seed: u64) {
        let base = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
        let mut plain = sampler(base.clone());
        let mut again = Sampler::new(base.clone(), &[1, 2], 99);
        for _ in 0..5 {
            prop_assert_eq!(plain.sample(&mut row.clone()), again.sample(&mut row.clone()));
        }
    }

    #[test]
    fn masked_tokens_are_never_chosen(row in row(), seed: u64) {
        let params = SamplingParams { seed: Some(seed), temperature: 2.0, ..SamplingParams::default() };
        let mut sampler = sampler(params);
        for _ in 0..10 {
            let id = sampler.sample(&mut row.clone()).unwrap().id;
            prop_assert!(row[id as usize] > f32::NEG_INFINITY);
        }
    }
}
