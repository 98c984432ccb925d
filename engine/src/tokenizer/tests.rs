//! Encoding and decoding on small vocabularies, and on the default model's where it is at hand.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::gguf::fixture::{TinyLlama, tiny_llama, vocabulary};
use crate::gguf::{GgufFile, Writer};
use crate::test_support;

fn file(writer: &Writer) -> GgufFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    writer.write(file.path()).expect("room for a small file");
    GgufFile::open(file.path()).expect("a valid file")
}

fn build(change: impl FnOnce(&mut Writer) -> &mut Writer) -> Result<Tokenizer, TokenizerError> {
    let mut writer = tiny_llama(&TinyLlama::default());
    change(&mut writer);
    Tokenizer::from_metadata(file(&writer).metadata())
}

/// The fixture's tokenizer with more tokens and their types.
fn with_tokens(
    more: &[(&str, i32)],
    change: impl FnOnce(&mut Writer) -> &mut Writer,
) -> Result<Tokenizer, TokenizerError> {
    build(|writer| {
        let mut tokens = vocabulary();
        let mut types: Vec<i32> = (0..tokens.len()).map(|id| if id < 3 { 3 } else { 1 }).collect();
        tokens.extend(more.iter().map(|(token, _)| (*token).to_owned()));
        types.extend(more.iter().map(|(_, number)| number));
        writer.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.token_type", types);
        change(writer)
    })
}

fn refusal(result: Result<Tokenizer, TokenizerError>) -> String {
    match result {
        Ok(_) => panic!("the tokenizer was built"),
        Err(error) => error.to_string(),
    }
}

fn decode(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| tokenizer.token_bytes(*id, true).expect("a known id")).copied().collect()
}

/// The texts of the tokens of a text.
fn tokens(tokenizer: &Tokenizer, text: &str, parse_special: bool) -> Vec<String> {
    let ids = tokenizer.encode(text, false, parse_special);
    ids.iter()
        .map(|id| String::from_utf8_lossy(tokenizer.token_bytes(*id, true).unwrap()).into_owned())
        .collect()
}

/// Id of the next token after the fixture's.
fn next_id() -> u32 {
    vocabulary().len() as u32
}

#[test]
fn merges_are_applied_within_pieces_and_bytes_stand_for_the_rest() {
    let tokenizer = build(|writer| writer).unwrap();
    assert_eq!(tokens(&tokenizer, "hello the world", false), ["hello", " the", " world"]);
    assert_eq!(tokens(&tokenizer, "handing 12", false), ["h", "and", "ing", " ", "1", "2"]);
    assert_eq!(tokenizer.encode("é", false, false), [3 + 0xc3, 3 + 0xa9]);
    assert!(tokenizer.encode("", true, true).is_empty());
}

#[test]
fn control_tokens_in_a_text_are_text_unless_asked_for() {
    let tokenizer = build(|writer| writer).unwrap();
    let text = "a<|im_start|>b<|im_end|>";
    assert_eq!(tokens(&tokenizer, text, true), ["a", "<|im_start|>", "b", "<|im_end|>"]);
    let ids = tokenizer.encode(text, false, false);
    assert!(ids.iter().all(|id| *id > 2), "{ids:?}");
    assert_eq!(decode(&tokenizer, &ids), text.as_bytes());
}

/// With `ignore_merges` a piece that is a token is taken whole; a control token spelled as a word must not be.
#[test]
fn a_control_token_spelled_as_a_word_cannot_be_smuggled_in() {
    let tokenizer = with_tokens(&[("STOP", 3)], |writer| writer.set("tokenizer.ggml.pre", "llama-bpe"));
    let tokenizer = tokenizer.unwrap();
    assert_eq!(tokens(&tokenizer, "STOP", false), ["S", "T", "O", "P"]);
    assert_eq!(tokenizer.encode("STOP", false, true), [next_id()]);
}

#[test]
fn user_defined_tokens_are_found_in_any_text_and_are_text() {
    let tokenizer = with_tokens(&[("<tool>", 4), ("<tool>!", 4), ("    ", 4)], |writer| writer).unwrap();
    assert_eq!(
        tokens(&tokenizer, "a<tool>b<tool>!    c", false),
        ["a", "<tool>", "b", "<tool>!", "    ", "c"]
    );
    assert_eq!(tokenizer.token_bytes(next_id(), false), Some(&b"<tool>"[..]));
}

#[test]
fn pieces_that_are_tokens_skip_the_merges_only_where_the_model_says_so() {
    let ids = |pre: &str| {
        let tokenizer = with_tokens(&[("zebra", 1)], |writer| writer.set("tokenizer.ggml.pre", pre));
        tokenizer.unwrap().encode("zebra", false, false)
    };
    assert_eq!(ids("llama-bpe"), [next_id()]);
    assert_eq!(ids("gpt-2").len(), 5);
}

#[test]
fn bos_is_added_if_asked_for_and_the_model_wants_it() {
    let ids = |pre: &str, add: Option<bool>, asked| {
        let tokenizer = build(|writer| {
            writer.set("tokenizer.ggml.pre", pre).unset("tokenizer.ggml.add_bos_token");
            if let Some(add) = add {
                writer.set("tokenizer.ggml.add_bos_token", add);
            }
            writer
        });
        tokenizer.unwrap().encode("a", asked, false)
    };
    let a = 3 + u32::from(b'a');
    assert_eq!(ids("smollm", Some(true), true), [1, a]);
    assert_eq!(ids("smollm", Some(true), false), [a]);
    assert_eq!(ids("smollm", None, true), [a]);
    assert_eq!(ids("llama-bpe", None, true), [1, a]);
    assert_eq!(ids("llama-bpe", Some(false), true), [a]);
}

#[test]
fn generation_ends_at_the_named_tokens_and_the_known_spellings() {
    let tokenizer = with_tokens(&[("<|eot_id|>", 4), ("<|end|>", 1), ("<bye>", 3)], |writer| {
        writer.set("tokenizer.ggml.eom_token_id", next_id() + 2)
    });
    let tokenizer = tokenizer.unwrap();
    // `<|end|>` is ordinary text in this vocabulary, so it ends nothing.
    assert_eq!(tokenizer.end_token_ids(), [0, 2, next_id(), next_id() + 2]);
    assert_eq!((tokenizer.bos_token_id(), tokenizer.eos_token_id()), (Some(1), Some(2)));
    assert_eq!(tokenizer.token_bytes(next_id(), false), None, "an end token is no text");
}

#[test]
fn control_tokens_have_bytes_only_as_special_and_ids_beyond_the_end_never() {
    let tokenizer = with_tokens(&[("unused", 5), ("<0x0A>", 6)], |writer| writer).unwrap();
    assert_eq!(
        (tokenizer.token_bytes(1, false), tokenizer.token_bytes(1, true)),
        (None, Some(&b"<|im_start|>"[..]))
    );
    assert_eq!(tokenizer.token_bytes(3 + 0xff, false), Some(&[0xff][..]));
    assert_eq!(tokenizer.token_bytes(next_id(), false), None);
    assert_eq!(tokenizer.token_bytes(next_id() + 1, false), Some(&b"\n"[..]));
    assert_eq!(tokenizer.token_bytes(next_id() + 2, true), None);
    assert_eq!(tokenizer.token_bytes(u32::MAX, true), None);
    assert_eq!(tokenizer.vocabulary_size(), vocabulary().len() + 2);
}

#[test]
fn bytes_without_a_token_are_left_out_and_keep_their_neighbours_apart() {
    let tokenizer = build(|writer| {
        let mut tokens = vocabulary();
        tokens[3 + 0x04] = "replaced".to_owned();
        writer.set("tokenizer.ggml.tokens", tokens)
    });
    assert_eq!(tokens(&tokenizer.unwrap(), "he\u{4}h\u{4}e", false), ["he", "h", "e"]);
}

#[test]
fn what_is_not_supported_is_named_with_what_is() {
    let error = refusal(build(|writer| writer.set("tokenizer.ggml.model", "bert")));
    assert!(error.contains("`bert`") && error.contains("`gpt2`") && error.contains("`llama`"), "{error}");
    let error = refusal(build(|writer| writer.set("tokenizer.ggml.pre", "tekken")));
    assert!(error.contains("`tekken`") && error.contains("gpt-2, llama-bpe"), "{error}");
    assert!(error.contains("qwen2") && error.contains("smollm"), "{error}");
}

#[test]
fn contradictions_in_the_file_are_refused() {
    let merges = |merge: &str| {
        let merges = vec![merge.to_owned()];
        refusal(build(|writer| writer.set("tokenizer.ggml.merges", merges)))
    };
    assert!(merges("nospace").contains("merge 0 is \"nospace\""));
    assert!(merges("a zzzz").contains("\"zzzz\""));
    // The result would be longer than any token.
    assert!(merges("<|im_start|> <|im_start|>").contains("<|im_start|>"));
    assert!(merges("hello Ġworld").contains("\"helloĠworld\""));
    let special = |key: &'static str| refusal(build(|writer| writer.set(key, 275)));
    for key in [BOS, EOS, END_OF_TURN, END_OF_MESSAGE] {
        assert!(special(key).contains(key) && special(key).contains("275"), "{}", special(key));
    }
    let error = refusal(with_tokens(&[("a", 1)], |writer| writer));
    assert!(error.contains(&next_id().to_string()) && error.contains("\"a\""), "{error}");
    assert!(refusal(with_tokens(&[("x1", 7)], |writer| writer)).contains("type 7"));
    let short = refusal(build(|writer| writer.set("tokenizer.ggml.token_type", vec![1, 1])));
    assert!(short.contains("275 tokens but 2"), "{short}");
    let none = refusal(build(|writer| writer.set("tokenizer.ggml.tokens", Vec::<String>::new())));
    assert!(none.contains("0 tokens"), "{none}");
    for key in [MODEL, PRE, MERGES, "tokenizer.ggml.tokens"] {
        assert!(refusal(build(|writer| writer.unset(key))).contains(key), "{key}");
    }
}

#[test]
fn empty_fillers_may_repeat() {
    let tokenizer = with_tokens(&[("", 5), ("", 5), ("", 1)], |writer| writer).unwrap();
    assert_eq!(tokenizer.token_bytes(next_id() + 2, false), Some(&[][..]));
    assert_eq!(tokens(&tokenizer, "a", false), ["a"]);
}

static ONE_OF_EACH: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let build = |pre| build(|writer| writer.set("tokenizer.ggml.pre", pre)).expect("supported");
    ["gpt-2", "smollm", "llama-bpe", "qwen2"].map(build).into()
});

proptest! {
    #[test]
    fn every_text_comes_back_from_its_ids(text in "(\\PC|[ \n\t\r]|<\\|im_end\\|>|hello|the|[0-9]|.){0,40}") {
        for tokenizer in ONE_OF_EACH.iter() {
            for parse_special in [false, true] {
                let ids = tokenizer.encode(&text, false, parse_special);
                prop_assert_eq!(decode(tokenizer, &ids), text.as_bytes());
            }
        }
    }
}

fn default_tokenizer() -> Option<Tokenizer> {
    let file = GgufFile::open(&test_support::test_model()?).expect("the default model is valid");
    Some(Tokenizer::from_metadata(file.metadata()).expect("its tokenizer is supported"))
}

#[test]
fn the_default_model_gives_the_known_ids() {
    let Some(tokenizer) = default_tokenizer() else { return };
    let prompt =
        "<|im_start|>user\nWrite a long story about a lighthouse keeper.<|im_end|>\n<|im_start|>assistant\n";
    let known = [1, 4093, 198, 19161, 253, 986, 1977, 563, 253, 33059, 40061, 30, 2, 198, 1, 520, 9531, 198];
    assert_eq!(tokenizer.encode(prompt, true, true), known);
    assert_eq!(decode(&tokenizer, &known), prompt.as_bytes());
    assert_eq!(tokenizer.end_token_ids(), [0, 2]);
    assert_eq!((tokenizer.bos_token_id(), tokenizer.eos_token_id()), (Some(1), Some(2)));
    assert_eq!(tokenizer.vocabulary_size(), 49_152);
}

/// Vocabularies of every kind, and the ids that llama.cpp gives for a corpus of scripts, emoji, code, control
/// characters and special tokens (`scripts/tokenizer-golden.py`).
#[test]
fn every_kind_of_tokenizer_gives_the_ids_of_llama_cpp() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tokenizers");
    let kinds = [
        "gpt-2",
        "smollm",
        "llama-bpe",
        "qwen2",
        "sentence-piece",
        "sentence-piece-no-prefix",
        "sentence-piece-phi3",
    ];
    for kind in kinds {
        let file = GgufFile::open(&folder.join(format!("{kind}.gguf"))).unwrap();
        let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
        let json = std::fs::read_to_string(folder.join(format!("{kind}.json"))).unwrap();
        let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
        assert!(rows.len() > 20);
        for row in &rows {
            let text = row["text"].as_str().unwrap();
            for (asked, both) in [("prompt", true), ("plain", false)] {
                let ids = tokenizer.encode(text, both, both);
                match serde_json::from_value::<Option<Vec<u32>>>(row[asked].clone()).unwrap() {
                    Some(expected) => assert_eq!(ids, expected, "{kind} {asked} {text:?}"),
                    // Llama.cpp made control tokens of a text that is spelled like them.
                    None => assert!(ids.iter().all(|id| tokenizer.token_bytes(*id, false).is_some())),
                }
            }
            if kind.starts_with("sentence-piece") && text.contains("<tool>") {
                // The text after such a token is given a space too, or loses one.
                continue;
            }
            // Without special tokens nothing is lost, and nothing is added but the space a text may be given.
            let back = decode(&tokenizer, &tokenizer.encode(text, false, false));
            let spaced = text.replace('\u{2581}', " ");
            let given = back.strip_prefix(b" ") == Some(spaced.as_bytes());
            assert!(back == text.as_bytes() || back == spaced.as_bytes() || given, "{kind} {text:?}");
        }
    }
}

#[test]
fn scores_that_are_missing_or_too_few_are_named() {
    let error = refusal(build(|writer| writer.set("tokenizer.ggml.model", "llama")));
    assert!(error.contains("tokenizer.ggml.scores"), "{error}");
}

#[test]
fn long_texts_without_a_merge_and_with_many_end_in_time() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tokenizers");
    let file = GgufFile::open(&folder.join("sentence-piece.gguf")).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    let started = std::time::Instant::now();
    for run in ["a", " ", "the cat ", "\u{10fffd}", "\n"] {
        let text = run.repeat(400_000 / run.len());
        let ids = tokenizer.encode(&text, false, true);
        assert_eq!(decode(&tokenizer, &ids).len(), text.len() + 1, "{run:?}");
    }
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

/// The vocabularies of real models in llama.cpp's source, each with texts and the ids they have.
#[test]
fn vocabularies_of_real_models_give_the_ids_beside_them() {
    let Some(folder) = test_support::test_vocabularies() else { return };
    for name in ["gpt-2", "llama-bpe", "qwen2", "llama-spm", "phi-3"] {
        let path = |extension: &str| folder.join(format!("ggml-vocab-{name}.gguf{extension}"));
        let file = GgufFile::open(&path("")).unwrap();
        let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
        let texts = std::fs::read_to_string(path(".inp")).unwrap();
        let lines = std::fs::read_to_string(path(".out")).unwrap();
        for (text, line) in texts.split("\n__ggml_vocab_test__\n").zip(lines.lines()) {
            let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(tokenizer.encode(text, false, false), expected, "{name} {text:?}");
        }
    }
}
