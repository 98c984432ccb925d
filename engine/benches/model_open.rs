//! What opening a model and encoding text cost, on the default model (`LIMPID_TEST_MODEL`) where it is at
//! hand, else on a tiny one.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use limpid_engine::gguf::GgufFile;
use limpid_engine::gguf::fixture::{TinyLlama, write_tiny_llama};
use limpid_engine::model::Model;
use limpid_engine::test_support;
use limpid_engine::tokenizer::Tokenizer;

/// Prose, code, digits and scripts in about the mix that prompts have.
const TEXT: &str = "The lighthouse keeper climbed the 199 steps every evening, as his father had done.\n\
    fn main() {\n    let answer = 6 * 7; // forty-two\n}\n\n\
    Die Küste war still. 灯台の光が海を照らした。 Маяк светил всю ночь. 🌊🌊\n";

fn model_open(criterion: &mut Criterion) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = test_support::test_model().unwrap_or_else(|| {
        let path = directory.path().join("tiny.gguf");
        write_tiny_llama(&path, &TinyLlama::default()).expect("room for a small file");
        path
    });
    criterion.bench_function("gguf_open", |bencher| {
        bencher.iter(|| GgufFile::open(black_box(&path)).expect("a valid file"));
    });
    let file = GgufFile::open(&path).expect("a valid file");
    criterion.bench_function("tokenizer_build", |bencher| {
        bencher.iter(|| Tokenizer::from_metadata(file.metadata()).expect("a supported tokenizer"));
    });
    criterion.bench_function("model_open", |bencher| {
        bencher.iter(|| Model::open(black_box(&path)).expect("a supported model"));
    });

    let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("a supported tokenizer");
    let text = TEXT.repeat(20);
    let mut group = criterion.benchmark_group("encode");
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("mixed", |bencher| {
        bencher.iter(|| tokenizer.encode(black_box(&text), false, true));
    });
    group.finish();
}

criterion_group!(benches, model_open);
criterion_main!(benches);
