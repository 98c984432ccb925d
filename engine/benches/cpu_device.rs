//! Tokens per second of the CPU device on a model with the shapes and formats of SmolLM2-135M-Instruct
//! (Q4_1, tied Q8_0 output) and random weights: decoding alone and with 16 sequences, prefill, and decoding
//! behind a long context.
//!
//! `cargo bench -p limpid-engine --bench cpu_device`; criterion's `thrpt` is tokens per second.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use limpid_engine::device::cpu::CpuAdapter;
use limpid_engine::device::{Adapter, Device, DeviceLimits};
use limpid_engine::kernels::synthetic::{LlamaShape, SequenceSet, SyntheticModel};

const LIMITS: DeviceLimits = DeviceLimits {
    num_blocks: 640,
    block_size: 16,
    max_tokens: 512,
    max_sequences: 16,
    max_blocks_per_sequence: 512,
};

/// Runs batches of `sequences` sequences that are `context` tokens long and get `rows` more.
fn case(
    criterion: &mut Criterion,
    device: &mut dyn Device,
    name: &str,
    sequences: usize,
    context: usize,
    rows: usize,
) {
    let mut logits = Vec::new();
    let mut set = SequenceSet::new(sequences, LIMITS.num_blocks, LIMITS.block_size, 1);
    let prompt: Vec<u32> = (0..context as u32).map(|token| token * 7 % 40_000).collect();
    for index in 0..sequences {
        for chunk in prompt.chunks(LIMITS.max_tokens) {
            let batch = set.batch(&[(index, chunk)]);
            device.execute(&batch, &mut logits).expect("the prompt runs");
        }
    }
    let tokens: Vec<u32> = (0..rows as u32).map(|token| token * 11 % 40_000).collect();
    let additions: Vec<(usize, &[u32])> = (0..sequences).map(|index| (index, &tokens[..])).collect();
    let batch = set.batch(&additions);
    let mut group = criterion.benchmark_group("cpu_device");
    group.throughput(Throughput::Elements((sequences * rows) as u64)).sample_size(20);
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            device.execute(black_box(&batch), &mut logits).expect("the batch runs");
            black_box(logits[0])
        });
    });
    group.finish();
}

fn cpu_device(criterion: &mut Criterion) {
    let model = SyntheticModel::new(&LlamaShape::SMOLLM2_135M, 1);
    let adapter = CpuAdapter::new();
    let mut device = adapter.open(&model.program, &model, LIMITS).expect("the device opens");
    let device = device.as_mut();
    case(criterion, device, "decode, 1 sequence, context 64", 1, 64, 1);
    case(criterion, device, "decode, 1 sequence, context 2048", 1, 2048, 1);
    case(criterion, device, "decode, 16 sequences, context 64", 16, 64, 1);
    case(criterion, device, "prefill, 512 tokens", 1, 0, 512);
}

criterion_group!(benches, cpu_device);
criterion_main!(benches);
