//! What is wrong with a directory is named: file, key or tensor, what was found, what is allowed.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::Twins;
use crate::device::WeightSource;
use crate::model::Model;
use crate::program::WeightId;

/// A change, and what the refusal says.
type Case = (fn(&Twins), &'static [&'static str]);

#[test]
fn what_is_wrong_with_a_directory_is_named() {
    fn config(twins: &Twins, key: &str, value: Value) {
        twins.change("config.json", |config| config[key] = value);
    }
    fn tokenizer(twins: &Twins, change: impl FnOnce(&mut Value)) {
        twins.change("tokenizer.json", change);
    }
    fn remove(twins: &Twins, file: &str) {
        std::fs::remove_file(twins.directory().join(file)).unwrap();
    }
    fn index(twins: &Twins, map: Value) {
        twins.write("model.safetensors.index.json", json!({"weight_map": map}).to_string());
    }
    fn tensors(twins: &Twins, format: &str, shape: &[usize], name: &str) {
        let bytes = shape.iter().product::<usize>() * if format == "I8" { 1 } else { 4 };
        let header = json!({name: {"dtype": format, "shape": shape, "data_offsets": [0, bytes]}}).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; bytes]].concat();
        twins.write("extra.safetensors", file);
        index(twins, json!({name: "extra.safetensors", "model.embed_tokens.weight": "model.safetensors"}));
    }
    let cases: [Case; 38] = [
        (|twins| remove(twins, "config.json"), &["Tiny-0.1B", "`config.json` is missing"]),
        (|twins| twins.write("config.json", "[]"), &["`config.json` is no JSON object"]),
        (
            |twins| twins.write("config.json", vec![b' '; 17 << 20]),
            &["`config.json` has 17825792 bytes", "16777216"],
        ),
        (
            |twins| config(twins, "model_type", json!("gpt_neox")),
            &["`model_type` in `config.json` is \"gpt_neox\"", "qwen2"],
        ),
        (
            |twins| config(twins, "model_type", json!(null)),
            &["`model_type` in `config.json` is null", "mistral"],
        ),
        (|twins| config(twins, "hidden_act", json!("gelu")), &["`hidden_act`", "\"gelu\"", "silu"]),
        (
            |twins| config(twins, "hidden_size", json!("wide")),
            &["`hidden_size` in `config.json` is \"wide\"", "an integer"],
        ),
        (
            |twins| config(twins, "hidden_size", json!(null)),
            &["`hidden_size` in `config.json` is null", "needed"],
        ),
        (
            |twins| config(twins, "hidden_size", json!(128)),
            &["`model.embed_tokens.weight`", "[64, 275]", "[128, 275]"],
        ),
        (
            |twins| config(twins, "num_hidden_layers", json!(0)),
            &["`num_hidden_layers` in `config.json` is 0"],
        ),
        (
            |twins| config(twins, "num_hidden_layers", json!(3)),
            &["missing `model.layers.2.input_layernorm.weight`"],
        ),
        (
            |twins| config(twins, "num_hidden_layers", json!(1)),
            &["unexpected `model.layers.1.self_attn.k_proj.weight`"],
        ),
        (
            |twins| config(twins, "num_key_value_heads", json!(3)),
            &["`num_key_value_heads` in `config.json` is 3", "`num_attention_heads` in `config.json`"],
        ),
        (|twins| config(twins, "rms_norm_eps", json!(-1)), &["`rms_norm_eps` in `config.json` is -1"]),
        (
            |twins| config(twins, "partial_rotary_factor", json!(7)),
            &["`partial_rotary_factor` in `config.json` is 7"],
        ),
        (
            |twins| config(twins, "rope_scaling", json!(4)),
            &["`rope_scaling` in `config.json` is 4", "an object"],
        ),
        (
            |twins| config(twins, "quantization_config", json!({"bits": 4})),
            &["`quantization_config`", "--quantization"],
        ),
        (
            |twins| config(twins, "vocab_size", json!(4_000_000_000u32)),
            &["`vocab_size`", "4000000000", "at most"],
        ),
        (
            |twins| config(twins, "vocab_size", json!(276)),
            &["`vocab_size` in `config.json` is 276", "has 275 rows"],
        ),
        (|twins| config(twins, "head_dim", json!(1 << 30)), &["`head_dim` in `config.json` is 1073741824"]),
        (|twins| config(twins, "v_head_dim", json!(8)), &["`v_head_dim` in `config.json` is 8", "of 16"]),
        (
            |twins| config(twins, "tie_word_embeddings", json!(false)),
            &["`lm_head.weight` is missing", "`tie_word_embeddings`"],
        ),
        (|twins| remove(twins, "tokenizer.json"), &["`tokenizer.json` is missing"]),
        (
            |twins| tokenizer(twins, |file| file["model"] = json!({"type": "Unigram", "vocab": []})),
            &["`model.type` in `tokenizer.json` is Unigram"],
        ),
        (
            |twins| tokenizer(twins, |file| file["model"]["merges"] = json!(1)),
            &["`tokenizer.json` is no tokenizer of merges"],
        ),
        (
            |twins| tokenizer(twins, |file| file["model"]["merges"][0] = json!("he")),
            &["`model.merges` in `tokenizer.json`"],
        ),
        (
            |twins| tokenizer(twins, |file| file["model"]["merges"][0] = json!(["no", "such"])),
            &["merge 0", "\"no such\"", "needs the token"],
        ),
        (
            |twins| tokenizer(twins, |file| file["model"]["vocab"]["new"] = json!(275)),
            &["`model.vocab` in `tokenizer.json` is \"new\" with id 275", "`vocab_size`"],
        ),
        (
            |twins| tokenizer(twins, |file| file["model"]["vocab"]["new"] = json!(100)),
            &["\"new\"", "id is", "already"],
        ),
        (
            |twins| tokenizer(twins, |file| file["pre_tokenizer"] = json!({"type": "Whitespace"})),
            &["`pre_tokenizer`", "Whitespace", "supported"],
        ),
        (
            |twins| tokenizer(twins, |file| file["normalizer"] = json!({"type": "Lowercase"})),
            &["`normalizer`", "Lowercase", "NFC"],
        ),
        (
            |twins| twins.change("tokenizer_config.json", |file| file["eos_token"] = json!("<nope>")),
            &["`eos_token` in `tokenizer_config.json` is \"<nope>\""],
        ),
        (
            |twins| twins.change("tokenizer_config.json", |file| file["chat_template"] = json!("{% for %}")),
            &["`chat_template` cannot be compiled"],
        ),
        (
            |twins| remove(twins, "model.safetensors"),
            &["`model.safetensors` cannot be used", "`model.safetensors.index.json`"],
        ),
        (
            |twins| {
                let file = std::fs::read(twins.directory().join("model.safetensors")).unwrap();
                twins.write("model.safetensors", &file[..file.len() - 1]);
            },
            &["`model.safetensors` is no whole safetensors file", "incomplete"],
        ),
        (
            |twins| index(twins, json!({"a": "../../etc/passwd.safetensors"})),
            &["`weight_map.a`", "../../etc", "in the same directory"],
        ),
        (
            |twins| index(twins, json!({"a": "model.safetensors"})),
            &["tensor `a` in `model.safetensors` is missing"],
        ),
        (
            |twins| tensors(twins, "I8", &[4], "odd"),
            &["tensor `odd` in `extra.safetensors` is stored as I8", "BF16"],
        ),
    ];
    for (change, expected) in cases {
        let twins = Twins::llama();
        change(&twins);
        let error = twins.refusal();
        for part in expected {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
    let twins = Twins::llama();
    tensors(&twins, "F32", &[2, 2], "model.vision.weight");
    assert!(twins.refusal().contains("unexpected `model.vision.weight`"), "{}", twins.refusal());
    tensors(&twins, "F32", &[64], "output_norm.weight");
    assert!(twins.refusal().contains("`output_norm.weight` has a name of GGUF files"), "{}", twins.refusal());
    tensors(&twins, "F32", &[64], "model.norm.weight");
    let error = twins.refusal();
    assert!(
        error.contains("tensor `model.norm.weight` in `model.safetensors` is in `extra.safetensors` too"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_files_are_refused_or_read_but_never_break(
        file in 0..4usize, place in 0.0..1.0f64, bytes in prop::collection::vec(any::<u8>(), 1..6)
    ) {
        thread_local! {
            static TWINS: Twins = Twins::llama();
        }
        let name = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"][file];
        TWINS.with(|twins| {
            let whole = std::fs::read(twins.directory().join(name)).unwrap();
            let mut damaged = whole.clone();
            // Most of the weights' file is weights; its header is what there is to read.
            let end = if file == 3 { 2000 } else { whole.len() };
            let start = (place * (end - bytes.len()) as f64) as usize;
            damaged[start..start + bytes.len()].copy_from_slice(&bytes);
            twins.write(name, damaged);
            if let Ok(model) = Model::open(&twins.directory()) {
                for id in 0..model.program.weights.len() {
                    assert_eq!(model.weight(WeightId(id)).len(), model.program.weights[id].bytes());
                }
            }
            twins.write(name, whole);
        });
    }
}
