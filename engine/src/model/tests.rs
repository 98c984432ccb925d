//! Opening models: the program that comes out, and what is refused with which words.

use tempfile::TempDir;

use super::*;
use crate::gguf::Writer;
use crate::gguf::fixture::{TinyLlama, tiny_llama, vocabulary};
use crate::program::{BatchShape, CostModel, OpKind, RopeScaling, RopeStyle, Rotation, Rows, Yarn};
use crate::tensor_type::TensorType;
use crate::test_support;

fn open(writer: &Writer) -> Result<Model, ModelError> {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path().join("tiny.gguf");
    writer.write(&path).expect("room for a small file");
    Model::open(&path)
}

/// The refusal of a tiny model after a change.
fn refusal(change: impl FnOnce(&mut Writer) -> &mut Writer) -> String {
    let mut writer = tiny_llama(&TinyLlama::default());
    change(&mut writer);
    match open(&writer) {
        Ok(_) => panic!("the model was accepted"),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn assert_names(message: &str, names: &[&str]) {
    for name in names {
        assert!(message.contains(name), "{name:?} is not in {message:?}");
    }
}

#[test]
fn a_tiny_model_has_the_ops_of_the_paper_in_their_order() {
    let model = open(&tiny_llama(&TinyLlama { layers: 1, ..Default::default() })).unwrap();
    let names: Vec<&str> = model.program.ops.iter().map(|op| op.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "embed",
            "layer.0.attention_norm",
            "layer.0.query",
            "layer.0.key",
            "layer.0.value",
            "layer.0.query_rope",
            "layer.0.key_rope",
            "layer.0.store_kv",
            "layer.0.attention",
            "layer.0.attention_output",
            "layer.0.feed_forward_norm",
            "layer.0.gate",
            "layer.0.up",
            "layer.0.silu_mul",
            "layer.0.down",
            "gather_rows",
            "output_norm",
            "logits",
        ]
    );
}

#[test]
fn settings_of_the_file_reach_the_program_and_the_model() {
    let tiny = TinyLlama::default();
    let model = open(&tiny_llama(&tiny)).unwrap();
    let program = &model.program;
    assert_eq!((program.num_layers, program.num_kv_heads, program.head_size), (2, 2, 16));
    assert_eq!(program.vocabulary(), vocabulary().len());
    assert_eq!(program.buffers[program.logits.0].rows, Rows::Logits);
    assert_eq!((model.architecture.as_str(), model.name.as_deref()), ("llama", Some("Tiny random llama")));
    assert_eq!((model.context_length, model.parameters), (256, 275 * 64 + 2 * 36_864 + 5 * 64));
    assert!(model.chat_template.is_some());
    assert_eq!(model.file_bytes, std::fs::metadata(&model.path).map_or(model.file_bytes, |file| file.len()));
    let rope = program.ops.iter().find(|op| op.name == "layer.1.key_rope").unwrap();
    let OpKind::Rope { num_heads, head_size, rotation, style, .. } = rope.kind else { panic!("{rope:?}") };
    assert_eq!((num_heads, head_size, style), (2, 16, RopeStyle::Pairs));
    assert_eq!(rotation, Rotation::plain(16, 10_000.0));
    let cost = program.total_cost(BatchShape {
        tokens: 1,
        logits_rows: 1,
        attended: 1,
        context: 1,
        ..Default::default()
    });
    assert!(cost.flops > 2 * model.parameters, "the embedding counts as output matrix");
    let batch =
        BatchShape { tokens: 70, logits_rows: 3, attended: 4_000, context: 900, ..Default::default() };
    assert_eq!(CostModel::new(program).cost(batch), program.total_cost(batch));
}

#[test]
fn weights_are_the_bytes_of_their_tensors_in_every_format() {
    for format in TensorType::ALL {
        let width = format.block_elements().max(64);
        let (head_size, feed_forward) = (width / 4, 2 * width);
        let value_head_size = head_size;
        let sizes = TinyLlama { width, head_size, value_head_size, feed_forward, ..Default::default() };
        let writer = tiny_llama(&TinyLlama { format, tied: false, ..sizes });
        let model = open(&writer).unwrap();
        for (index, weight) in model.program.weights.iter().enumerate() {
            assert_eq!(model.weight(WeightId(index)).len(), weight.bytes(), "{}", weight.name);
            let wanted = if weight.name.contains("norm") { TensorType::F32 } else { format };
            assert_eq!(weight.format, wanted, "{}", weight.name);
        }
        // Tensors are written in this order, so a wrong offset shows as another tensor's bytes.
        let first = &model.program.weights[0];
        let mut row = vec![0.0; first.columns];
        first.format.dequantize(&model.weight(WeightId(0))[..first.bytes() / first.rows], &mut row);
        assert_eq!(row, vec![0.0; first.columns], "the end token's row of {}", format.name());
    }
}

#[test]
fn the_embedding_is_the_output_matrix_only_if_there_is_no_other() {
    let output = |tied| {
        let model = open(&tiny_llama(&TinyLlama { tied, ..Default::default() })).unwrap();
        let logits = model.program.ops.last().unwrap();
        let OpKind::MatMul { weight, .. } = logits.kind else { panic!("{logits:?}") };
        model.program.weights[weight.0].name.clone()
    };
    assert_eq!(output(true), "token_embd.weight");
    assert_eq!(output(false), "output.weight");
}

#[test]
fn equal_seeds_give_equal_files_and_others_do_not() {
    let bytes = |seed| tiny_llama(&TinyLlama { seed, ..Default::default() }).to_bytes();
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
    assert!(bytes(1).len() < 500_000, "{}", bytes(1).len());
}

#[test]
fn an_unknown_architecture_is_named_with_those_there_are() {
    let error = refusal(|writer| {
        writer.set("general.architecture", "foo").raw_tensor("odd", &[256], 12, vec![0; 144])
    });
    assert_names(
        &error,
        &["tiny.gguf", "`general.architecture` is `foo`", "llama, qwen2, qwen3, gemma3, phi3"],
    );
}

#[test]
fn missing_and_extra_tensors_are_named_together() {
    let error = refusal(|writer| {
        writer.remove_tensor("blk.1.ffn_up.weight").remove_tensor("output_norm.weight");
        writer.tensor("blk.0.attn_q.bias", &[64], TensorType::F32, &[0.0; 64])
    });
    assert_names(
        &error,
        &["missing `blk.1.ffn_up.weight`, `output_norm.weight`;", "unexpected `blk.0.attn_q.bias`"],
    );
    let error = refusal(|writer| {
        for part in ["attn_norm", "attn_q", "attn_k", "attn_v", "ffn_up"] {
            for layer in 0..2 {
                writer.remove_tensor(&format!("blk.{layer}.{part}.weight"));
            }
        }
        writer
    });
    assert_names(&error, &["missing `blk.0.attn_norm.weight`, `blk.0.attn_q.weight`", "and 4 more;"]);
}

#[test]
fn tensors_of_other_shapes_and_formats_are_named() {
    let error =
        refusal(|writer| writer.tensor("blk.1.attn_k.weight", &[64, 64], TensorType::F32, &[0.0; 64 * 64]));
    assert_names(&error, &["`blk.1.attn_k.weight`", "[64, 64]", "[64, 32]"]);
    let error = refusal(|writer| {
        writer.set("llama.embedding_length", 256).set("llama.attention.head_count", 4);
        writer.raw_tensor("token_embd.weight", &[256, 275], 16, vec![0; 66 * 275]);
        writer.set("general.name", "i-quants")
    });
    // Shapes come first where both are wrong; the vocabulary's rows fit here.
    assert_names(&error, &["`token_embd.weight`", "IQ2_XXS", "Q4_0, Q4_1, Q5_0", "Q6_K, IQ4_NL, MXFP4"]);
    let error = refusal(|writer| writer.tensor("output_norm.weight", &[64], TensorType::F16, &[1.0; 64]));
    assert_names(&error, &["`output_norm.weight`", "F16", "F32"]);
}

#[test]
fn settings_that_cannot_be_are_refused_by_key() {
    let cases: [(&str, u32); 15] = [
        ("llama.block_count", 0),
        ("llama.block_count", u32::MAX),
        ("llama.context_length", 0),
        ("llama.embedding_length", 0),
        ("llama.embedding_length", u32::MAX),
        ("llama.feed_forward_length", 0),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.key_length", 0),
        ("llama.attention.value_length", 0),
        ("llama.attention.key_length_swa", 8),
        ("llama.attention.value_length_swa", 8),
        ("llama.rope.dimension_count", 15),
        ("llama.rope.dimension_count", 18),
        ("llama.expert_count", 8),
    ];
    for (key, value) in cases {
        let error = refusal(|writer| writer.set(key, value));
        assert_names(&error, &[key, &value.to_string()]);
    }
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        for key in ["llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"] {
            assert_names(&refusal(|writer| writer.set(key, value)), &[key, &value.to_string()]);
        }
    }
    for key in ["general.architecture", "llama.block_count", "llama.attention.layer_norm_rms_epsilon"] {
        assert_names(&refusal(|writer| writer.unset(key)), &[key, "missing"]);
    }
    let error = refusal(|writer| writer.set("llama.attention.head_count_kv", vec![2, 2]));
    assert_names(&error, &["head_count_kv", "an array of 2 i32 values"]);
}

#[test]
fn absent_settings_have_their_defaults() {
    let mut writer = tiny_llama(&TinyLlama { kv_heads: 4, ..Default::default() });
    for key in [
        "rope.freq_base",
        "rope.dimension_count",
        "attention.key_length",
        "attention.value_length",
        "attention.head_count_kv",
    ] {
        writer.unset(&format!("llama.{key}"));
    }
    writer.unset("tokenizer.chat_template").unset("general.name");
    let model = open(&writer).unwrap();
    let Program { num_kv_heads, head_size, value_head_size, .. } = model.program;
    assert_eq!((num_kv_heads, head_size, value_head_size), (4, 16, 16));
    assert!(model.chat_template.is_none() && model.name.is_none());
    writer.set("llama.attention.head_count", 3);
    assert_names(&open(&writer).unwrap_err().to_string(), &["head_count", "3", "key_length", "64"]);
    writer.set("llama.attention.key_length", 16);
    assert_names(&open(&writer).unwrap_err().to_string(), &["head_count", "3", "value_length", "64"]);
}

#[test]
fn heads_of_keys_and_of_values_have_sizes_of_their_own() {
    for value_head_size in [8, 24] {
        let program =
            open(&tiny_llama(&TinyLlama { value_head_size, ..Default::default() })).unwrap().program;
        assert_eq!((program.head_size, program.value_head_size), (16, value_head_size));
        assert_eq!((program.key_width(), program.value_width()), (2 * 16, 2 * value_head_size));
        // Two layers of keys and values in four bytes each.
        assert_eq!(program.kv_bytes_per_slot(), 2 * 4 * 2 * (16 + value_head_size as u64));
        let width =
            |name| program.buffers.iter().find(|buffer| buffer.name == name).map(|buffer| buffer.width);
        assert_eq!((width("query"), width("attended")), (Some(4 * 16), Some(4 * value_head_size)));
        for op in &program.ops {
            if let OpKind::Attention { scale, .. } = op.kind {
                assert_eq!(scale, 0.25, "it is for the products of queries and keys");
                let cost = program.cost(op, BatchShape { attended: 1, context: 1, ..Default::default() });
                assert_eq!(cost.flops, 2 * 4 * (16 + value_head_size as u64));
                assert_eq!(cost.bytes_read, 4 * 2 * (16 + value_head_size as u64));
            }
        }
    }
    let error = refusal(|writer| writer.set("llama.attention.value_length", 8));
    assert_names(&error, &["`blk.0.attn_v.weight`", "[64, 32]", "[64, 16]"]);
}

/// The rotation of a tiny model after a change.
fn rotation(change: impl FnOnce(&mut Writer) -> &mut Writer) -> Rotation {
    let mut writer = tiny_llama(&TinyLlama::default());
    change(&mut writer);
    let program = open(&writer).unwrap().program;
    let mut rotations = program.ops.iter().filter_map(|op| match op.kind {
        OpKind::Rope { rotation, .. } => Some(rotation),
        _ => None,
    });
    let first = rotations.next().unwrap();
    assert!(rotations.all(|rotation| rotation == first));
    first
}

#[test]
fn scaled_rotary_positions_reach_the_program() {
    let plain = Rotation::plain(16, 10_000.0);
    let linear = Rotation { scaling: RopeScaling::Linear(4.0), ..plain };
    let factor = |writer: &mut Writer, factor: f32| {
        writer.set("llama.rope.scaling.factor", factor);
    };
    // Without a type a factor is for linear scaling; 0 means none.
    for (kind, number, expected) in
        [(None, 4.0, linear), (None, 0.0, plain), (Some("linear"), 4.0, linear), (Some("none"), 4.0, plain)]
    {
        let found = rotation(|writer| {
            factor(writer, number);
            match kind {
                Some(kind) => writer.set("llama.rope.scaling.type", kind),
                None => writer,
            }
        });
        assert_eq!(found, expected, "{kind:?} {number}");
    }
    let old = rotation(|writer| writer.set("llama.rope.scale_linear", 4.0f32));
    assert_eq!(old, linear);
    let yarn = rotation(|writer| {
        factor(writer, 8.0);
        writer.set("llama.rope.scaling.original_context_length", 64u32);
        writer.set("llama.rope.scaling.attn_factor", 0.5f32).set("llama.rope.scaling.type", "yarn")
    });
    let scaling = RopeScaling::Yarn(Yarn::new(8.0, 16, 10_000.0, 64, 32.0, 1.0));
    assert_eq!(yarn, Rotation { scaling, magnitude: 0.5 * Yarn::magnitude(8.0), ..plain });
}

#[test]
fn rotary_positions_scaled_in_other_ways_are_refused_by_key() {
    let error = refusal(|writer| writer.set("llama.rope.scaling.type", "ntk"));
    assert_names(&error, &["llama.rope.scaling.type", "ntk", "`none`, `linear`, `yarn`"]);
    let error = refusal(|writer| writer.set("llama.rope.scaling.type", "longrope"));
    assert_names(&error, &["llama.rope.scaling.type", "longrope"]);
    for key in ["alpha", "yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"] {
        let key = format!("llama.rope.scaling.{key}");
        let error = refusal(|writer| writer.set(&key, 0.25f32));
        assert_names(&error, &[&key, "0.25"]);
    }
    for value in [-1.0, f32::NAN, f32::INFINITY] {
        let error = refusal(|writer| writer.set("llama.rope.scaling.factor", value));
        assert_names(&error, &["llama.rope.scaling.factor"]);
    }
}

#[test]
fn factors_of_rotary_positions_come_as_a_tensor_of_one_value_a_pair() {
    let mut writer = tiny_llama(&TinyLlama::default());
    writer.tensor("rope_freqs.weight", &[8], TensorType::F32, &[2.0; 8]);
    let program = open(&writer).unwrap().program;
    let factors = program.ops.iter().filter_map(|op| match op.kind {
        OpKind::Rope { rotation, .. } => Some(rotation.factors.map(|id| program.weights[id.0].name.clone())),
        _ => None,
    });
    assert_eq!(factors.collect::<Vec<_>>(), vec![Some("rope_freqs.weight".to_owned()); 4]);
    let error = refusal(|writer| writer.tensor("rope_freqs.weight", &[16], TensorType::F32, &[1.0; 16]));
    assert_names(&error, &["rope_freqs.weight", "[16]", "[8]"]);
}

#[test]
fn a_sliding_window_is_what_every_layer_attends_to() {
    let windows = |window: u32| {
        let mut writer = tiny_llama(&TinyLlama::default());
        writer.set("llama.attention.sliding_window", window);
        let model = open(&writer).unwrap();
        let windows = model.program.ops.iter().filter_map(|op| match op.kind {
            OpKind::Attention { window, .. } => Some(window),
            _ => None,
        });
        (windows.collect::<Vec<_>>(), model.context_length)
    };
    assert_eq!(windows(0), (vec![None; 2], 256));
    assert_eq!(windows(100), (vec![Some(100); 2], 256));
}

#[test]
fn a_window_for_unknown_layers_ends_the_context_where_it_would_begin_to_slide() {
    let context = |window: u32| {
        let mut writer = Writer::new();
        writer.set("qwen2.context_length", 256).set("qwen2.attention.sliding_window", window);
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().join("keys.gguf");
        writer.write(&path).expect("room for a small file");
        settings::context_length(GgufFile::open(&path).unwrap().metadata(), "qwen2").unwrap()
    };
    assert_eq!((context(0), context(100), context(1000)), (256, 100, 256));
}

#[test]
fn a_vocabulary_of_another_size_than_the_embedding_is_refused() {
    let error = refusal(|writer| {
        let mut tokens = vocabulary();
        tokens.push("one more".to_owned());
        let types = vec![1; tokens.len()];
        writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", types)
    });
    assert_names(&error, &["`token_embd.weight`", "275", "276"]);
}

#[test]
fn a_chat_template_that_does_not_compile_is_refused() {
    let error = refusal(|writer| writer.set("tokenizer.chat_template", "{% for %}"));
    assert_names(&error, &["tiny.gguf", "tokenizer.chat_template"]);
}

#[test]
fn a_model_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Model>();
}

#[test]
fn the_default_model_opens_quickly_with_its_sizes() {
    let Some(path) = test_support::test_model() else { return };
    let started = std::time::Instant::now();
    let model = Model::open(&path).unwrap();
    let elapsed = started.elapsed();
    let program = &model.program;
    assert_eq!((model.context_length, program.vocabulary()), (8192, 49_152));
    assert_eq!((program.num_layers, program.num_kv_heads, program.head_size), (30, 3, 64));
    assert_eq!((program.weights.len(), program.ops.len()), (272, 1 + 30 * 14 + 3));
    assert_eq!(model.parameters, 134_515_008);
    assert!(elapsed.as_secs_f64() < 3.0, "{elapsed:?}");
    let messages = serde_json::json!([{"role": "user", "content": "hi"}]);
    assert_eq!(
        model.chat_template.unwrap().render(&messages, true, None).unwrap(),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    );
}
