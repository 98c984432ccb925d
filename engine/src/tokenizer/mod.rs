//! Text to token ids and back, built from a GGUF file's metadata.
//!
//! Byte-level BPE only (`tokenizer.ggml.model` = `gpt2`). A text is first searched for special tokens, the
//! rest is cut by the [pre-tokeniser](pre_tokenizer) and every piece is merged by the `tokenizers` crate.
//!
//! Invariants: without `parse_special` no text produces a control token, however it is spelled; a token id
//! below [`Tokenizer::vocabulary_size`] is known to the model, any other has no bytes.

use std::collections::HashMap;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab};

use crate::gguf::{GgufError, Metadata};

pub(crate) mod byte_level;
mod pre_tokenizer;
#[cfg(test)]
mod tests;
mod vocabulary;

use pre_tokenizer::{PreTokenizer, PreTokenizerKind};
use vocabulary::{Kind, Vocabulary};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const END_OF_TURN: &str = "tokenizer.ggml.eot_token_id";
const END_OF_MESSAGE: &str = "tokenizer.ggml.eom_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

/// Why a tokenizer could not be built.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or of the wrong type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// Another algorithm than byte-level BPE.
    #[error("`tokenizer.ggml.model` is `{found}`; supported is `gpt2` (byte-level BPE)")]
    Model {
        /// The model found.
        found: String,
    },
    /// A pre-tokeniser we do not have.
    #[error("`tokenizer.ggml.pre` is `{found}`; supported are {supported}")]
    PreTokenizer {
        /// The name found.
        found: String,
        /// The names there are.
        supported: String,
    },
    /// No tokens, or more than 32 bits can number.
    #[error("the vocabulary has {found} tokens; 1 to 4294967295 are allowed")]
    VocabularySize {
        /// Tokens in the file.
        found: usize,
    },
    /// One type per token, but the arrays differ in length.
    #[error("there are {tokens} tokens but {types} token types")]
    TokenTypes {
        /// Tokens in the file.
        tokens: usize,
        /// Types in the file.
        types: usize,
    },
    /// A token type that does not exist.
    #[error("token {id} has type {number}; types are 1 to 6")]
    TokenType {
        /// The token.
        id: u32,
        /// Its type.
        number: i32,
    },
    /// Two tokens spelled alike.
    #[error("tokens {first} and {second} are both spelled {token:?}")]
    DuplicateToken {
        /// The spelling.
        token: String,
        /// Id of the first.
        first: u32,
        /// Id of the second.
        second: u32,
    },
    /// A merge that is not two spellings with a space between them.
    #[error("merge {number} is {merge:?}; wanted two tokens with a space between them")]
    MergeSyntax {
        /// Which merge, counted from 0.
        number: usize,
        /// The merge.
        merge: String,
    },
    /// A merge of, or into, something that is no token of text.
    #[error("merge {number}, {merge:?}, needs the token {missing:?}, which the vocabulary lacks as text")]
    MergeToken {
        /// Which merge, counted from 0.
        number: usize,
        /// The merge.
        merge: String,
        /// What is missing.
        missing: String,
    },
    /// A special token beyond the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has {vocabulary} tokens")]
    SpecialToken {
        /// The key.
        key: &'static str,
        /// Its value.
        id: u32,
        /// Tokens there are.
        vocabulary: usize,
    },
    /// The `tokenizers` crate, or the search for special tokens, refused.
    #[error("the tokenizer cannot be built: {0}")]
    Build(String),
}

/// A model's tokenizer.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    pre_tokenizer: PreTokenizer,
    bpe: BPE,
    /// Bytes that have a token of their own. Others cannot be encoded.
    known_bytes: [bool; 256],
    /// Tokens that are found in any text.
    user_defined: SpecialTokens,
    /// Those, and the control tokens.
    special: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    ends: Vec<u32>,
}

impl Tokenizer {
    /// Builds the tokenizer that a file's `tokenizer.ggml.*` keys describe.
    ///
    /// # Errors
    /// A key is missing, has the wrong type, contradicts another, or asks for something unsupported.
    pub fn from_metadata(metadata: Metadata<'_>) -> Result<Tokenizer, TokenizerError> {
        let model: &str = metadata.require(MODEL)?;
        if model != "gpt2" {
            return Err(TokenizerError::Model { found: model.to_owned() });
        }
        let pre: &str = metadata.require(PRE)?;
        let kind = PreTokenizerKind::from_name(pre).ok_or_else(|| TokenizerError::PreTokenizer {
            found: pre.to_owned(),
            supported: PreTokenizerKind::names(),
        })?;

        let (vocabulary, tokens, ids) = Vocabulary::read(metadata)?;
        let special_id = |key: &'static str| match metadata.get::<u32>(key)? {
            Some(id) if id as usize >= vocabulary.len() => {
                Err(TokenizerError::SpecialToken { key, id, vocabulary: vocabulary.len() })
            }
            id => Ok(id),
        };
        let (bos, eos) = (special_id(BOS)?, special_id(EOS)?);
        let mut ends: Vec<u32> =
            [eos, special_id(END_OF_TURN)?, special_id(END_OF_MESSAGE)?].into_iter().flatten().collect();
        ends.extend(vocabulary.end_tokens_by_spelling(&ids));
        ends.sort_unstable();
        ends.dedup();

        let of_kind = |wanted: &[Kind]| {
            let tokens = (0u32..).zip(&tokens).filter(|(id, token)| {
                !token.is_empty() && vocabulary.kind(*id).is_some_and(|kind| wanted.contains(&kind))
            });
            SpecialTokens::new(tokens.map(|(id, token)| (id, *token)))
        };
        let user_defined = of_kind(&[Kind::UserDefined])?;
        let special = of_kind(&[Kind::UserDefined, Kind::Control, Kind::Unknown])?;
        let bpe = build_bpe(metadata, &vocabulary, &ids, kind.ignore_merges)?;
        let known_bytes = std::array::from_fn(|byte| {
            let character = byte_level::byte_to_char(byte as u8);
            bpe.token_to_id(character.encode_utf8(&mut [0; 4])).is_some()
        });
        Ok(Tokenizer {
            add_bos: metadata.get(ADD_BOS)?.unwrap_or(kind.add_bos),
            pre_tokenizer: PreTokenizer::new(kind),
            vocabulary,
            bpe,
            known_bytes,
            user_defined,
            special,
            bos,
            eos,
            ends,
        })
    }

    /// Ids of a text. `parse_special` reads control tokens such as `<|im_start|>` as tokens (chat templates,
    /// raw prompts); without it they are text like any other. `add_bos` puts the BOS token first if the
    /// model wants one; leave it off for a rendered chat template, which writes its own.
    ///
    /// Bytes that the vocabulary has no token for are left out; every byte-level vocabulary has the common
    /// ones, some lack control characters.
    pub fn encode(&self, text: &str, add_bos: bool, parse_special: bool) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_bos && self.add_bos {
            ids.extend(self.bos);
        }
        let special = if parse_special { &self.special } else { &self.user_defined };
        let mut piece_text = String::new();
        let mut encode_text = |text, ids: &mut Vec<u32>| {
            self.pre_tokenizer.split(text, |piece| self.encode_piece(piece, &mut piece_text, ids));
        };
        let mut done = 0;
        for found in special.search.find_iter(text) {
            encode_text(&text[done..found.start()], &mut ids);
            ids.push(special.ids[found.pattern().as_usize()]);
            done = found.end();
        }
        encode_text(&text[done..], &mut ids);
        ids
    }

    /// Merges one piece. `buffer` is memory to reuse.
    fn encode_piece(&self, piece: &str, buffer: &mut String, ids: &mut Vec<u32>) {
        // What lies on both sides of a byte without a token must not be merged, as if it were not there.
        for run in piece.as_bytes().split(|byte| !self.known_bytes[usize::from(*byte)]) {
            buffer.clear();
            buffer.extend(run.iter().map(|byte| byte_level::byte_to_char(*byte)));
            // Without an unknown token the crate has no reason to fail.
            if let Ok(tokens) = self.bpe.tokenize(buffer) {
                ids.extend(tokens.iter().map(|token| token.id));
            }
        }
    }

    /// Bytes a token stands for; control, unknown and unused tokens have none unless `special`, which gives
    /// their spelling. They need not be whole UTF-8. `None` also for ids beyond the vocabulary.
    pub fn token_bytes(&self, id: u32, special: bool) -> Option<&[u8]> {
        let text = match self.vocabulary.kind(id)? {
            Kind::Normal | Kind::UserDefined | Kind::Byte => true,
            Kind::Control | Kind::Unknown | Kind::Unused => false,
        };
        if text || special { self.vocabulary.bytes(id) } else { None }
    }

    /// Tokens in the vocabulary.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// Ids that end generation, rising: EOS, end of turn and end of message as the file's keys name them,
    /// and the control tokens with a spelling known to end a turn (`<|im_end|>`, `<|eot_id|>`,
    /// `<|endoftext|>` …), because many files name only one of them.
    pub fn end_token_ids(&self) -> &[u32] {
        &self.ends
    }

    /// The BOS token, if the file names one.
    pub fn bos_token_id(&self) -> Option<u32> {
        self.bos
    }

    /// The EOS token, if the file names one.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.eos
    }
}

/// Tokens that are found by their spelling before anything is merged.
struct SpecialTokens {
    search: AhoCorasick,
    /// By pattern number.
    ids: Vec<u32>,
}

impl SpecialTokens {
    fn new<'a>(tokens: impl Iterator<Item = (u32, &'a str)>) -> Result<SpecialTokens, TokenizerError> {
        let (ids, spellings): (Vec<u32>, Vec<&str>) = tokens.unzip();
        let search = AhoCorasick::builder()
            // Where one spelling is the beginning of another, the longer one is meant.
            .match_kind(MatchKind::LeftmostLongest)
            .build(spellings)
            .map_err(|error| TokenizerError::Build(error.to_string()))?;
        Ok(SpecialTokens { search, ids })
    }
}

/// Builds the merger from the tokens of text. Control tokens stay out of it, so that no text can become one.
fn build_bpe(
    metadata: Metadata<'_>,
    vocabulary: &Vocabulary,
    ids: &HashMap<&str, u32>,
    ignore_merges: bool,
) -> Result<BPE, TokenizerError> {
    let mut text_tokens = Vocab::default();
    text_tokens.reserve(ids.len());
    for (token, id) in ids {
        if !matches!(vocabulary.kind(*id), Some(Kind::Control | Kind::Unknown)) {
            text_tokens.insert((*token).to_owned(), *id);
        }
    }
    let lines: Vec<&str> = metadata.require(MERGES)?;
    let mut merges = Vec::with_capacity(lines.len());
    let mut merged = String::new();
    for (number, line) in lines.into_iter().enumerate() {
        let Some((left, right)) = line.split_once(' ') else {
            return Err(TokenizerError::MergeSyntax { number, merge: line.to_owned() });
        };
        merged.clear();
        merged.extend([left, right]);
        // The crate would read past its buffer's end, and panic, on a merge into an unknown long token.
        for token in [left, right, &merged] {
            if !text_tokens.contains_key(token) {
                let (merge, missing) = (line.to_owned(), token.to_owned());
                return Err(TokenizerError::MergeToken { number, merge, missing });
            }
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    BPE::builder()
        .vocab_and_merges(text_tokens, merges)
        .ignore_merges(ignore_merges)
        .build()
        .map_err(|error| TokenizerError::Build(error.to_string()))
}
