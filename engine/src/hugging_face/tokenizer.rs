//! `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` as GGUF's tokenizer keys.
//!
//! Both kinds of tokenizer that the engine has are written down as merges there: byte-level BPE, whose
//! pre-tokeniser is recognised by its parts, and SentencePiece, whose scores are the order of the merges. Unicode
//! normalisation (NFC) is left out, as it is in GGUF files.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::HuggingFaceError;
use super::config::Config;
use super::json::{self, Settings, show};
use crate::gguf::Writer;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The largest real ones have some 35 MB.
const MAX_TOKENIZER_BYTES: u64 = 128 << 20;
const MAX_TEMPLATE_BYTES: u64 = 4 << 20;

/// Numbers of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// How a SentencePiece vocabulary writes a space.
const SPACE: &str = "\u{2581}";

/// The patterns by which pre-tokenisers cut, as `tokenizer.json` spells them, and their names in GGUF.
pub(super) const PATTERNS: [(&str, &str); 2] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2",
    ),
];

#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    model: Merges,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    /// Takes the white space behind it.
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
struct Merges {
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

/// Older files have text with a space between the two.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Text(String),
}

impl TokenizerFile {
    fn falls_back_to_bytes(&self) -> bool {
        self.model.byte_fallback == Some(true)
    }
}

impl Merge {
    fn parts(&self) -> Option<(&str, &str)> {
        match self {
            Merge::Pair(left, right) => Some((left, right)),
            Merge::Text(text) => text.split_once(' '),
        }
    }
}

/// What is left of a file whose model is none of merges.
#[derive(Deserialize)]
struct OtherFile {
    model: OtherModel,
}

#[derive(Deserialize)]
struct OtherModel {
    r#type: Option<String>,
}

fn refuse(key: &str, found: impl Into<String>, allowed: impl Into<String>) -> HuggingFaceError {
    HuggingFaceError::Setting {
        file: TOKENIZER.to_owned(),
        key: key.to_owned(),
        found: found.into(),
        allowed: allowed.into(),
    }
}

/// Reads the tokenizer and writes its keys.
pub(super) fn convert(directory: &Path, config: &Config, out: &mut Writer) -> Result<(), HuggingFaceError> {
    let file = read(directory)?;
    let settings = Settings::read_or_empty(directory, TOKENIZER_CONFIG)?;
    let vocabulary = Vocabulary::new(&file, config.vocabulary)?;
    if file.falls_back_to_bytes() {
        out.set("tokenizer.ggml.model", "llama")
            .set("tokenizer.ggml.add_space_prefix", sentence_piece(&file)?)
            .set("tokenizer.ggml.scores", scores(&file, &vocabulary.tokens)?);
    } else {
        out.set("tokenizer.ggml.model", "gpt2")
            .set("tokenizer.ggml.pre", byte_level(&file)?)
            .set("tokenizer.ggml.merges", merges(&file)?);
    }
    let token = |key: &str| match settings.token(key)? {
        Some(spelling) => {
            let unknown = || settings.refuse(key, format!("it must be a token of `{TOKENIZER}`"));
            vocabulary.ids.get(spelling).copied().map(Some).ok_or_else(unknown)
        }
        None => Ok(None),
    };
    let bos = if settings.has("bos_token") { token("bos_token")? } else { config.bos_token_id };
    let eos = token("eos_token")?.or(config.eos_token_ids.first().copied());
    let adds_bos = settings.flag("add_bos_token")?.unwrap_or_else(|| {
        let spelling = bos.and_then(|bos| vocabulary.tokens.get(bos as usize));
        spelling.is_some_and(|spelling| begins_with(&file.post_processor, spelling))
    });
    if let Some(bos) = bos {
        out.set("tokenizer.ggml.bos_token_id", bos);
    }
    if let Some(eos) = eos {
        out.set("tokenizer.ggml.eos_token_id", eos);
    }
    let ends = Settings::read_or_empty(directory, "generation_config.json")?.token_ids("eos_token_id")?;
    let ends = if ends.is_empty() { config.eos_token_ids.clone() } else { ends };
    let strips = file.added_tokens.iter().filter(|token| token.rstrip).map(|token| token.id);
    out.set("tokenizer.ggml.add_bos_token", adds_bos)
        .set("limpid.tokenizer.end_token_ids", ends)
        .set("limpid.tokenizer.rstrip_token_ids", strips.collect::<Vec<u32>>())
        .set("tokenizer.ggml.tokens", vocabulary.tokens)
        .set("tokenizer.ggml.token_type", vocabulary.types);
    if let Some(template) = chat_template(directory, &settings)? {
        out.set("tokenizer.chat_template", &*template);
    }
    Ok(())
}

fn read(directory: &Path) -> Result<TokenizerFile, HuggingFaceError> {
    let problem = |problem: String| HuggingFaceError::File { file: TOKENIZER.to_owned(), problem };
    let text = json::read_text(directory, TOKENIZER, MAX_TOKENIZER_BYTES)?.ok_or_else(|| {
        problem(
            "is missing; a tokenizer.model alone is not read, save the tokenizer as tokenizer.json"
                .to_owned(),
        )
    })?;
    serde_json::from_str(&text).map_err(|error| match serde_json::from_str(&text) {
        Ok(OtherFile { model: OtherModel { r#type: Some(found) } }) if found != "BPE" => {
            refuse("model.type", found, "supported is BPE, byte-level or with byte fallback")
        }
        _ => problem(format!("is no tokenizer of merges: {error}")),
    })
}

/// The tokens by id, holes and what is missing up to the embedding's rows filled with nothing.
struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    ids: HashMap<String, u32>,
}

impl Vocabulary {
    /// `size` is the number of rows the embedding has, so nothing grows with a forged id.
    fn new(file: &TokenizerFile, size: u32) -> Result<Vocabulary, HuggingFaceError> {
        let count = size as usize;
        let mut vocabulary = Vocabulary {
            tokens: vec![String::new(); count],
            types: vec![UNUSED; count],
            ids: HashMap::new(),
        };
        // Where every byte has a token nothing is unknown, whatever is named as that.
        let unknown = file.model.unk_token.as_deref().filter(|_| file.falls_back_to_bytes());
        for (token, id) in &file.model.vocab {
            let kind = match token {
                token if unknown == Some(token) => UNKNOWN,
                token if file.falls_back_to_bytes() && is_byte(token) => BYTE,
                _ => NORMAL,
            };
            vocabulary.place(token, *id, kind, "model.vocab", false)?;
        }
        // Models that share a tokenizer with larger ones may lack the last of its tokens.
        for token in file.added_tokens.iter().filter(|token| token.id < size) {
            let kind = match token {
                token if unknown == Some(&token.content) => UNKNOWN,
                token if token.special => CONTROL,
                _ => USER_DEFINED,
            };
            vocabulary.place(&token.content, token.id, kind, "added_tokens", true)?;
            if kind == USER_DEFINED && file.falls_back_to_bytes() {
                // Such tokens are looked for in the text itself, which has spaces.
                vocabulary.tokens[token.id as usize] = token.content.replace(SPACE, " ");
            }
        }
        Ok(vocabulary)
    }

    /// Places a token; one that is there already gets the new type if `again`.
    fn place(
        &mut self,
        token: &str,
        id: u32,
        kind: i32,
        key: &str,
        again: bool,
    ) -> Result<(), HuggingFaceError> {
        let size = self.tokens.len();
        let found = format!("{token:?} with id {id}");
        let Some(place) = self.tokens.get_mut(id as usize) else {
            let allowed =
                format!("`vocab_size` in `{}` is {size}, so ids are below it", super::config::CONFIG);
            return Err(refuse(key, found, allowed));
        };
        if !(place.is_empty() || again && place == token) {
            return Err(refuse(key, found, format!("that id is {place:?} already")));
        }
        token.clone_into(place);
        self.types[id as usize] = kind;
        self.ids.insert(token.to_owned(), id);
        Ok(())
    }
}

/// Whether a token is spelled `<0x0A>`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// Merges as GGUF has them, a space between the two.
fn merges(file: &TokenizerFile) -> Result<Vec<String>, HuggingFaceError> {
    let merge = |merge: &Merge| match merge.parts() {
        Some((left, right)) if !left.contains(' ') && !right.contains(' ') => Ok(format!("{left} {right}")),
        _ => {
            Err(refuse("model.merges", "a merge of no two tokens", "wanted are two, without spaces in them"))
        }
    };
    file.model.merges.iter().map(merge).collect()
}

/// Scores of all tokens: those that are merged earlier have higher ones.
fn scores(file: &TokenizerFile, tokens: &[String]) -> Result<Vec<f32>, HuggingFaceError> {
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(file.model.merges.len());
    for (rank, merge) in file.model.merges.iter().enumerate() {
        let (left, right) = merge.parts().ok_or_else(|| {
            refuse("model.merges", "a merge of no two tokens", "wanted are two with a space between them")
        })?;
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    let last = file.model.merges.len();
    Ok(tokens.iter().map(|token| -(*ranks.get(token).unwrap_or(&last) as f32)).collect())
}

/// The parts of a step that may be a sequence of them.
fn parts<'a>(step: &'a Option<Value>, within: &str) -> Vec<&'a Value> {
    match step {
        None | Some(Value::Null) => Vec::new(),
        Some(step) => match step.get(within).and_then(Value::as_array) {
            Some(steps) => steps.iter().collect(),
            None => vec![step],
        },
    }
}

fn kind(step: &Value) -> &str {
    step["type"].as_str().unwrap_or_default()
}

/// GGUF's name of a byte-level tokenizer's pre-tokeniser.
fn byte_level(file: &TokenizerFile) -> Result<&'static str, HuggingFaceError> {
    let normalizers = parts(&file.normalizer, "normalizers");
    if let Some(other) = normalizers.iter().find(|step| kind(step) != "NFC") {
        return Err(refuse(
            "normalizer",
            show(other),
            "supported for a byte-level tokenizer are none and NFC",
        ));
    }
    let found = || show(file.pre_tokenizer.as_ref().unwrap_or(&Value::Null));
    let unknown = || {
        refuse(
            "pre_tokenizer",
            found(),
            "supported are those of GPT-2, SmolLM, Llama 3 and Qwen 2, byte-level",
        )
    };
    let steps = parts(&file.pre_tokenizer, "pretokenizers");
    let (Some(last), cuts) = (steps.last(), &steps[..steps.len().saturating_sub(1)]) else {
        return Err(unknown());
    };
    if kind(last) != "ByteLevel" || last["add_prefix_space"] == true {
        return Err(unknown());
    }
    let cuts_itself = last["use_regex"] != false;
    let name = match cuts {
        [] if cuts_itself => "gpt-2",
        [digits] if cuts_itself && kind(digits) == "Digits" && digits["individual_digits"] == true => {
            "smollm"
        }
        [split] if !cuts_itself && kind(split) == "Split" && split["invert"] != true => {
            let pattern = split["pattern"]["Regex"].as_str();
            let known = PATTERNS.into_iter().find(|(known, _)| pattern == Some(known));
            known.filter(|_| split["behavior"] == "Isolated").ok_or_else(unknown)?.1
        }
        _ => return Err(unknown()),
    };
    let ignores = name == "llama-bpe";
    let found = file.model.ignore_merges.unwrap_or(false);
    if found != ignores {
        let allowed = format!("with this pre-tokeniser it must be {ignores}");
        return Err(refuse("model.ignore_merges", found.to_string(), allowed));
    }
    Ok(name)
}

/// Whether a SentencePiece tokenizer puts a space before a text.
fn sentence_piece(file: &TokenizerFile) -> Result<bool, HuggingFaceError> {
    let (mut replaces, mut prepends) = (false, false);
    for step in parts(&file.normalizer, "normalizers") {
        match kind(step) {
            "Replace" if step["pattern"]["String"] == " " && step["content"] == SPACE => replaces = true,
            "Prepend" if step["prepend"] == SPACE => prepends = true,
            _ => {
                let allowed =
                    "supported with byte fallback are a space replaced by U+2581, and one prepended";
                return Err(refuse("normalizer", show(step), allowed));
            }
        }
    }
    for step in parts(&file.pre_tokenizer, "pretokenizers") {
        match kind(step) {
            "Metaspace" if step["replacement"] == SPACE => {
                replaces = true;
                prepends |= step["prepend_scheme"] != "never" && step["add_prefix_space"] != false;
            }
            // There are no spaces left to split at.
            "Split" if replaces && step["pattern"]["String"] == " " => {}
            _ => {
                let allowed = "supported with byte fallback is a Metaspace of U+2581";
                return Err(refuse("pre_tokenizer", show(step), allowed));
            }
        }
    }
    match replaces {
        true => Ok(prepends),
        false => Err(refuse(
            "normalizer",
            "none that replaces spaces",
            "with byte fallback U+2581 stands for them",
        )),
    }
}

/// Whether the post-processor puts this token before a text.
fn begins_with(post_processor: &Option<Value>, token: &str) -> bool {
    parts(post_processor, "processors")
        .into_iter()
        .any(|step| kind(step) == "TemplateProcessing" && step["single"][0]["SpecialToken"]["id"] == token)
}

/// The template: a file of its own before the one in the settings, of several the one named `default`.
fn chat_template(directory: &Path, settings: &Settings) -> Result<Option<String>, HuggingFaceError> {
    if let Some(template) = json::read_text(directory, CHAT_TEMPLATE, MAX_TEMPLATE_BYTES)? {
        return Ok(Some(template));
    }
    let template = match settings.value("chat_template") {
        None => return Ok(None),
        Some(Value::String(template)) => Some(template.clone()),
        Some(Value::Array(templates)) => templates
            .iter()
            .find(|template| template["name"] == "default")
            .and_then(|template| template["template"].as_str())
            .map(str::to_owned),
        Some(_) => None,
    };
    match template {
        Some(template) => Ok(Some(template)),
        None => {
            Err(settings.refuse("chat_template", "wanted is a template, or a list with one named `default`"))
        }
    }
}
