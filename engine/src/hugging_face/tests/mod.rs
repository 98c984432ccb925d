//! Directories compute what the GGUF files with the same weights do.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

mod refusals;

use super::architecture::Architecture;
use super::config::Config;
use super::fixture::{Layout, write_directory};
use crate::device::{self, Adapter, Device, WeightSource};
use crate::gguf::fixture::{CHAT_TEMPLATE, TinyLlama, tiny_llama};
use crate::gguf::{Array, GgufFile, MetadataBuffer, Writer};
use crate::kernels::reference_device::ReferenceDevice;
use crate::model::golden_tests::{LIMITS, batch, compare_model, golden, path};
use crate::model::{Model, Quantization, architectures};
use crate::program::{OpKind, RopeStyle, WeightId};
use crate::tensor_type::TensorType;
use crate::test_support;
use crate::tokenizer::Tokenizer;

const TOKENS: [u32; 16] = [5, 17, 8, 31, 1, 9, 9, 26, 12, 1, 30, 22, 7, 14, 2, 19];

/// A tiny llama as a directory and as a file.
struct Twins {
    folder: TempDir,
}

impl Twins {
    fn new(writer: &Writer, layout: Layout) -> Twins {
        let twins = Twins { folder: TempDir::new().unwrap() };
        writer.write(&twins.file()).unwrap();
        std::fs::create_dir(twins.directory()).unwrap();
        write_directory(&GgufFile::open(&twins.file()).unwrap(), &twins.directory(), layout).unwrap();
        twins
    }

    fn llama() -> Twins {
        Twins::new(&tiny_llama(&TinyLlama::default()), Layout { format: TensorType::F32, files: 1 })
    }

    fn directory(&self) -> PathBuf {
        self.folder.path().join("Tiny-0.1B")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("tiny.gguf")
    }

    fn read(&self, file: &str) -> Value {
        let text = std::fs::read_to_string(self.directory().join(file)).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn write(&self, file: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.directory().join(file), contents).unwrap();
    }

    /// Changes a JSON file.
    fn change(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let mut value = self.read(file);
        change(&mut value);
        self.write(file, value.to_string());
    }

    /// Why the directory is not opened.
    #[track_caller]
    fn refusal(&self) -> String {
        match Model::open(&self.directory()) {
            Ok(_) => panic!("the directory was accepted"),
            Err(error) => error.to_string(),
        }
    }
}

/// The logits of all tokens.
fn run(device: &mut dyn Device) -> Vec<f32> {
    let mut logits = Vec::new();
    device.execute(&batch(&TOKENS, 0, TOKENS.len(), 1), &mut logits).unwrap();
    logits
}

/// The logits on the CPU device and on wgpu if there is an adapter.
fn on_devices(model: &Model) -> Vec<Vec<f32>> {
    let open = |adapter: &dyn Adapter| adapter.open(&model.program, model, LIMITS).unwrap();
    let mut logits = vec![run(&mut *open(&device::cpu::CpuAdapter::new()))];
    match device::wgpu::find(false, 1, None) {
        Ok(adapters) => logits.push(run(&mut *open(&*adapters[0]))),
        Err(error) => test_support::skip_without_adapter(&error.to_string()),
    }
    logits
}

#[track_caller]
fn assert_close(ours: &[Vec<f32>], expected: &[Vec<f32>], tolerance: f32) {
    for (ours, expected) in ours.iter().zip(expected) {
        let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let apart = ours.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(ours.len() == expected.len() && apart <= tolerance * largest, "{apart} of {largest}");
    }
}

#[test]
fn a_directory_in_any_format_and_any_number_of_files_computes_what_its_gguf_does() {
    for (format, files, tolerance) in
        [(TensorType::F32, 1, 0.0), (TensorType::F16, 2, 2e-3), (TensorType::Bf16, 7, 2e-2)]
    {
        for tied in [true, false] {
            let writer = tiny_llama(&TinyLlama { format, tied, ..TinyLlama::default() });
            let twins = Twins::new(&writer, Layout { format, files });
            let ours = Model::open(&twins.directory()).unwrap();
            let gguf = Model::open(&twins.file()).unwrap();
            assert_eq!(ours.program.ops, gguf.program.ops);
            for (id, weight) in gguf.program.weights.iter().enumerate() {
                // Norms are as precise as the directory has them.
                let same = ours.weight(WeightId(id)) == gguf.weight(WeightId(id));
                assert!(same || weight.rows == 1, "{} in {format:?}", weight.name);
            }
            assert_close(&on_devices(&ours), &on_devices(&gguf), tolerance);
        }
    }
}

/// The definition of a llama directory: the values that turn together are half a head apart.
#[test]
fn a_llamas_heads_turn_as_halves_of_the_rows_that_the_files_have() {
    struct Unpermuted<'a>(&'a Model, super::Shards);
    impl WeightSource for Unpermuted<'_> {
        fn weight(&self, id: WeightId) -> Cow<'_, [u8]> {
            let name = &self.0.program.weights[id.0].name;
            let Some(layer) = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()) else {
                return self.0.weight(id);
            };
            let own = match name.rsplit('.').nth(1) {
                Some("attn_q") => "q_proj",
                Some("attn_k") => "k_proj",
                _ => return self.0.weight(id),
            };
            let stored = &self.1.tensors[&format!("model.layers.{layer}.self_attn.{own}.weight")];
            Cow::Borrowed(&self.1.files[stored.shard].map[stored.range.clone()])
        }
    }
    let twins = Twins::llama();
    let model = Model::open(&twins.directory()).unwrap();
    let mut program = model.program.clone();
    for op in &mut program.ops {
        if let OpKind::Rope { style, .. } = &mut op.kind {
            assert_eq!(std::mem::replace(style, RopeStyle::Halves), RopeStyle::Pairs);
        }
    }
    let expected = run(&mut ReferenceDevice::open(&model.program, &model, LIMITS));
    let source = Unpermuted(&model, super::Shards::open(&twins.directory()).unwrap());
    let halves = run(&mut ReferenceDevice::open(&program, &source, LIMITS));
    assert_close(&[halves], &[expected], 1e-5);
}

#[test]
fn every_other_architecture_has_the_logits_of_llama_cpp() {
    // The golden llama has frequency factors that no directory can state.
    for name in architectures().filter(|name| *name != "llama") {
        let folder = TempDir::new().unwrap();
        let layout = Layout { format: TensorType::F32, files: 2 };
        write_directory(&GgufFile::open(&path(name)).unwrap(), folder.path(), layout).unwrap();
        let model = Model::open(folder.path()).unwrap();
        assert_eq!(model.architecture, name);
        compare_model(&format!("{name} as a directory"), &model, &golden(name));
    }
}

#[test]
fn a_directory_quantised_at_load_computes_what_a_gguf_of_that_quantisation_does() {
    for (quantization, format) in
        [(Quantization::Q8_0, TensorType::Q8_0), (Quantization::Q4_0, TensorType::Q4_0)]
    {
        for tied in [true, false] {
            let sizes = TinyLlama { tied, ..TinyLlama::default() };
            let twins = Twins::new(&tiny_llama(&sizes), Layout { format: TensorType::F32, files: 1 });
            let ours = Model::open_quantized(&twins.directory(), Some(quantization)).unwrap();
            // The file once more, its matrices quantised by the writer.
            let mut writer = tiny_llama(&TinyLlama { format, ..sizes });
            let output = if tied { "token_embd.weight" } else { "output.weight" };
            let exact = Model::open(&twins.file()).unwrap();
            let id = exact.program.weights.iter().position(|weight| weight.name == output).unwrap();
            let mut values = vec![0.0; exact.weight(WeightId(id)).len() / 4];
            TensorType::F32.dequantize(&exact.weight(WeightId(id)), &mut values);
            let dimensions = [64, values.len() as u64 / 64];
            writer.tensor(output, &dimensions, TensorType::Q8_0, &values).write(&twins.file()).unwrap();
            let gguf = Model::open(&twins.file()).unwrap();
            for (id, weight) in gguf.program.weights.iter().enumerate() {
                assert_eq!(ours.program.weights[id], *weight);
                assert!(ours.weight(WeightId(id)) == gguf.weight(WeightId(id)), "{}", weight.name);
            }
            assert_close(&on_devices(&ours), &on_devices(&gguf), 0.0);
        }
    }
    let refused =
        Model::open_quantized(&Twins::llama().file(), Some(Quantization::Q8_0)).unwrap_err().to_string();
    assert!(refused.contains("`--quantization` is q8_0") && refused.contains("directory"), "{refused}");
}

#[test]
fn what_the_server_needs_to_know_is_that_of_the_directory() {
    let twins = Twins::llama();
    let model = Model::open(&twins.directory()).unwrap();
    assert_eq!((model.architecture.as_str(), model.name.as_deref()), ("llama", Some("Tiny-0.1B")));
    assert_eq!((model.context_length, model.tokenizer.vocabulary_size()), (256, 275));
    assert_eq!(
        model.file_bytes,
        std::fs::metadata(twins.directory().join("model.safetensors")).unwrap().len()
    );
    assert_eq!(model.tokenizer.describe(), "byte-level BPE, pre-tokeniser smollm");
    assert_eq!((model.tokenizer.bos_token_id(), model.tokenizer.eos_token_id()), (Some(1), Some(2)));
    assert_eq!(model.tokenizer.end_token_ids(), [0, 2]);
    let messages = json!([{"role": "user", "content": "hi"}]);
    let rendered =
        |model: &Model| model.chat_template.as_ref().unwrap().render(&messages, true, None).unwrap();
    assert_eq!(rendered(&model), rendered(&Model::open(&twins.file()).unwrap()));
    model.discard_pages();
    assert_eq!(model.weight(WeightId(0)), Model::open(&twins.file()).unwrap().weight(WeightId(0)));
}

#[test]
fn llama_3s_rope_scaling_becomes_factors_of_the_rotation() {
    let twins = Twins::llama();
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64
    });
    twins.change("config.json", |config| config["rope_scaling"] = scaling.clone());
    let model = Model::open(&twins.directory()).unwrap();
    let id = model.program.weights.iter().position(|weight| weight.name == "rope_freqs.weight").unwrap();
    let mut factors = vec![0.0; 8];
    TensorType::F32.dequantize(&model.weight(WeightId(id)), &mut factors);
    assert_eq!((factors[0], factors[7]), (1.0, 8.0));
    for (key, value) in [("factor", json!(0)), ("low_freq_factor", json!(4)), ("rope_type", json!("dynamic"))]
    {
        twins.change("config.json", |config| {
            config["rope_scaling"] = scaling.clone();
            config["rope_scaling"][key] = value;
        });
        let error = twins.refusal();
        assert!(error.contains(&format!("`rope_scaling.{key}` in `config.json` is")), "{error}");
    }
}

#[test]
fn templates_and_end_tokens_come_from_the_file_that_goes_first() {
    let twins = Twins::llama();
    let rendered = || {
        let model = Model::open(&twins.directory()).unwrap();
        model.chat_template.unwrap().render(&json!([]), true, None).unwrap()
    };
    assert_eq!(rendered(), "<|im_start|>assistant\n");
    twins.change("tokenizer_config.json", |config| {
        config["chat_template"] =
            json!([{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "listed"}]);
    });
    assert_eq!(rendered(), "listed");
    twins.write("chat_template.jinja", "a file, {{ bos_token }}");
    assert_eq!(rendered(), "a file, <|im_start|>");
    let ends = || Model::open(&twins.directory()).unwrap().tokenizer.end_token_ids().to_vec();
    twins.write("generation_config.json", r#"{"eos_token_id": [7, 9]}"#);
    assert_eq!(ends(), [0, 2, 7, 9]);
    twins.write("generation_config.json", "{}");
    twins.change("config.json", |config| config["eos_token_id"] = json!(11));
    assert_eq!(ends(), [0, 2, 11]);
    // Naming it as the unknown token makes it no other.
    twins.change("tokenizer.json", |tokenizer| tokenizer["model"]["unk_token"] = json!("<|endoftext|>"));
    assert_eq!(ends(), [0, 2, 11]);
    // A vocabulary may have fewer tokens than the embedding has rows.
    twins.change("tokenizer.json", |tokenizer| {
        tokenizer["model"]["vocab"].as_object_mut().unwrap().remove("ing").unwrap();
        tokenizer["model"]["merges"].as_array_mut().unwrap().pop().unwrap();
    });
    let tokenizer = Model::open(&twins.directory()).unwrap().tokenizer;
    assert_eq!((tokenizer.vocabulary_size(), tokenizer.token_bytes(274, true)), (275, Some(&b""[..])));
}

/// The `tokenizers` library reads the same file and is who defines what it means.
#[test]
fn tokenizers_give_the_ids_of_the_library_whose_files_they_are() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tokenizers");
    for kind in ["gpt-2", "smollm", "llama-bpe", "qwen2", "sentence-piece", "sentence-piece-no-prefix"] {
        let gguf = GgufFile::open(&folder.join(format!("{kind}.gguf"))).unwrap();
        let file = super::fixture::tokenizer(&gguf);
        let theirs = tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap();
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join("tokenizer.json"), file.to_string()).unwrap();
        let size = gguf.metadata().require::<Array<'_>>("tokenizer.ggml.tokens").unwrap().len();
        let ours = tokenizer(directory.path(), size);
        for text in corpus() {
            let expected = theirs.encode_fast(&*text, false).unwrap();
            assert_eq!(ours.encode(&text, false, true), expected.get_ids(), "{kind} {text:?}");
        }
    }
}

/// The tokenizer of a directory whose model has that many tokens.
fn tokenizer(directory: &Path, size: usize) -> Tokenizer {
    let config = Config {
        architecture: Architecture::of("llama").unwrap(),
        vocabulary: size as u32,
        tied: false,
        heads: [1, 1],
        rope_factors: None,
        bos_token_id: None,
        eos_token_ids: Vec::new(),
    };
    let mut keys = Writer::new();
    super::tokenizer::convert(directory, &config, &mut keys).unwrap();
    Tokenizer::from_metadata(MetadataBuffer::new(&keys).unwrap().metadata()).unwrap()
}

/// The texts of the tokenizers' golden files.
fn corpus() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tokenizers/gpt-2.json");
    let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    rows.iter().map(|row| row["text"].as_str().unwrap().to_owned()).collect()
}

/// Tokenizers of real models, from wherever somebody has put them.
#[test]
fn tokenizers_of_real_models_give_the_ids_of_the_library() {
    let Some(folder) = test_support::test_tokenizers() else { return };
    let mut gaps = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let directory = entry.unwrap().path();
        if !directory.join("tokenizer.json").exists() {
            continue;
        }
        let theirs = tokenizers::Tokenizer::from_file(directory.join("tokenizer.json")).unwrap();
        let ours = tokenizer(&directory, theirs.get_vocab_size(true));
        let composes = |text: &str| match theirs.get_normalizer() {
            Some(NormalizerWrapper::NFC(nfc)) => {
                let mut normalized = NormalizedString::from(text);
                nfc.normalize(&mut normalized).unwrap();
                normalized.get() != text
            }
            _ => false,
        };
        for text in corpus() {
            // Composition is left out on purpose, and what a space is written as means no space here.
            if composes(&text) || text.contains('\u{2581}') {
                continue;
            }
            let (ours, theirs) =
                (ours.encode(&text, false, true), theirs.encode_fast(&*text, false).unwrap());
            if ours != theirs.get_ids() {
                gaps.push(format!("{} {text:?}:\n  {ours:?}\n  {:?}", directory.display(), theirs.get_ids()));
            }
        }
    }
    assert!(gaps.is_empty(), "{}", gaps.join("\n"));
}

#[test]
fn the_fixtures_template_survives_the_way_through_json() {
    assert_eq!(Twins::llama().read("tokenizer_config.json")["chat_template"], CHAT_TEMPLATE);
}
