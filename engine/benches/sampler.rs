//! What choosing a token costs, for a vocabulary of 49,152.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use limpid_engine::kernels::top_k::reference::top_k;
use limpid_engine::request::SamplingParams;
use limpid_engine::sampler::Sampler;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn sample(criterion: &mut Criterion) {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    // Uneven like a model's: the square of a uniform number, up to 25.
    let row: Vec<f32> = (0..49_152).map(|_| rng.random_range(0.0..5.0_f32).powi(2)).collect();
    let plain = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    let cases = [
        ("greedy", SamplingParams { temperature: 0.0, ..plain.clone() }),
        ("temperature", plain.clone()),
        ("top_k_40", SamplingParams { top_k: Some(40), ..plain.clone() }),
        ("top_p_0.9", SamplingParams { top_p: 0.9, ..plain.clone() }),
        ("min_p_0.05", SamplingParams { min_p: 0.05, ..plain.clone() }),
        ("greedy_logprobs_20", SamplingParams { temperature: 0.0, logprobs: Some(20), ..plain.clone() }),
    ];
    for (name, params) in cases {
        let mut sampler = Sampler::new(params, &[], 0);
        criterion.bench_function(&format!("sample/{name}"), |bencher| {
            bencher.iter_batched_ref(|| row.clone(), |row| sampler.sample(row), BatchSize::LargeInput);
        });
    }
    // What is left for the host where the device picks candidates.
    let picked = top_k(&row, 40);
    let mut sampler = Sampler::new(SamplingParams { top_k: Some(40), ..plain }, &[], 0);
    criterion.bench_function("sample/picked_40", |bencher| bencher.iter(|| sampler.sample_picked(&picked)));
}

criterion_group!(benches, sample);
criterion_main!(benches);
