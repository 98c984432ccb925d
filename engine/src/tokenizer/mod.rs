//! Text to token ids and back, built from a GGUF file's metadata.
//!
//! A text is first searched for special tokens; what lies between them is merged, by [byte-level BPE](bpe)
//! (`tokenizer.ggml.model` = `gpt2`) or as [SentencePiece](sentence_piece) does it (`llama`).
//!
//! Invariants: without `parse_special` no text produces a control token, however it is spelled; a token id
//! below [`Tokenizer::vocabulary_size`] is known to the model, any other has no bytes.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, MatchKind};

use crate::gguf::{GgufError, Metadata};

mod bpe;
pub(crate) mod byte_level;
mod pre_tokenizer;
mod sentence_piece;
#[cfg(test)]
mod tests;
mod vocabulary;

use bpe::ByteLevelBpe;
use sentence_piece::SentencePiece;
use vocabulary::{Alphabet, Kind, Spellings, Vocabulary};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const END_OF_TURN: &str = "tokenizer.ggml.eot_token_id";
const END_OF_MESSAGE: &str = "tokenizer.ggml.eom_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const SCORES: &str = "tokenizer.ggml.scores";
const NAME: &str = "general.name";
/// Keys of our own, for what no key of GGUF says: more tokens that end generation, and the tokens that take the
/// white space behind them.
const END_TOKENS: &str = "limpid.tokenizer.end_token_ids";
const RSTRIP_TOKENS: &str = "limpid.tokenizer.rstrip_token_ids";

/// Why a tokenizer could not be built.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A key is missing or of the wrong type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// An algorithm we do not have.
    #[error(
        "`tokenizer.ggml.model` is `{found}`; supported are `gpt2` (byte-level BPE) and `llama` (SentencePiece)"
    )]
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
    /// One score per token, but the arrays differ in length.
    #[error("there are {tokens} tokens but {scores} scores")]
    Scores {
        /// Tokens in the file.
        tokens: usize,
        /// Scores in the file.
        scores: usize,
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

/// What makes tokens of the text between special tokens.
enum Merger {
    ByteLevel(Box<ByteLevelBpe>),
    SentencePiece(Box<SentencePiece>),
}

/// A model's tokenizer.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    merger: Merger,
    /// Tokens that are found in any text.
    user_defined: SpecialTokens,
    /// Those, and the control tokens.
    special: SpecialTokens,
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    /// Special tokens that take the white space behind them.
    strips: HashSet<u32>,
    ends: Vec<u32>,
}

impl Tokenizer {
    /// Builds the tokenizer that a file's `tokenizer.ggml.*` keys describe.
    ///
    /// # Errors
    /// A key is missing, has the wrong type, contradicts another, or asks for something unsupported.
    pub fn from_metadata(metadata: Metadata<'_>) -> Result<Tokenizer, TokenizerError> {
        let model: &str = metadata.require(MODEL)?;
        let alphabet = match model {
            "gpt2" => Alphabet::Bytes,
            "llama" => Alphabet::Text,
            found => return Err(TokenizerError::Model { found: found.to_owned() }),
        };
        let (vocabulary, Spellings { tokens, ids }) = Vocabulary::read(metadata, alphabet)?;
        let special_id = |key: &'static str| match metadata.get::<u32>(key)? {
            Some(id) if id as usize >= vocabulary.len() => {
                Err(TokenizerError::SpecialToken { key, id, vocabulary: vocabulary.len() })
            }
            id => Ok(id),
        };
        let (bos, eos) = (special_id(BOS)?, special_id(EOS)?);
        let mut ends: Vec<u32> =
            [eos, special_id(END_OF_TURN)?, special_id(END_OF_MESSAGE)?].into_iter().flatten().collect();
        for id in metadata.get::<Vec<u32>>(END_TOKENS)?.unwrap_or_default() {
            if id as usize >= vocabulary.len() {
                return Err(TokenizerError::SpecialToken {
                    key: END_TOKENS,
                    id,
                    vocabulary: vocabulary.len(),
                });
            }
            ends.push(id);
        }
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
        let (merger, adds_bos) = match alphabet {
            Alphabet::Bytes => {
                let bpe = ByteLevelBpe::new(metadata, &vocabulary, &ids)?;
                let adds_bos = bpe.adds_bos();
                (Merger::ByteLevel(Box::new(bpe)), adds_bos)
            }
            Alphabet::Text => {
                (Merger::SentencePiece(Box::new(sentence_piece(metadata, &vocabulary, &tokens)?)), true)
            }
        };
        let strips = match metadata.get::<Vec<u32>>(RSTRIP_TOKENS)? {
            Some(ids) => ids.into_iter().collect(),
            None if alphabet == Alphabet::Text => strips_by_name(metadata, &vocabulary)?,
            None => HashSet::new(),
        };
        Ok(Tokenizer {
            add_bos: metadata.get(ADD_BOS)?.unwrap_or(adds_bos),
            strips,
            vocabulary,
            merger,
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
    /// ones, some lack control characters. Most SentencePiece vocabularies ask for a space before a text
    /// that begins or follows a special token, which is then part of what its ids stand for.
    pub fn encode(&self, text: &str, add_bos: bool, parse_special: bool) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_bos && self.add_bos {
            ids.extend(self.bos);
        }
        let special = if parse_special { &self.special } else { &self.user_defined };
        let mut buffer = String::new();
        let mut encode_text = |text, after_special, ids: &mut Vec<u32>| match &self.merger {
            Merger::ByteLevel(bpe) => bpe.encode(text, &mut buffer, ids),
            Merger::SentencePiece(merger) => merger.encode(text, after_special, &mut buffer, ids),
        };
        // The start of a text counts as the end of a special token.
        let (mut done, mut after_special) = (0, true);
        for found in special.search.find_iter(text) {
            if done > found.start() {
                // Found in the white space that a token before it took.
                continue;
            }
            encode_text(&text[done..found.start()], after_special, &mut ids);
            let id = special.ids[found.pattern().as_usize()];
            ids.push(id);
            (done, after_special) = (found.end(), true);
            if self.strips.contains(&id) {
                let rest = &text[done..];
                done = text.len() - rest.trim_start_matches(|c: char| c.is_ascii_whitespace()).len();
            }
        }
        encode_text(&text[done..], after_special, &mut ids);
        ids
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

    /// What kind of tokenizer it is, for people.
    pub fn describe(&self) -> String {
        match &self.merger {
            Merger::ByteLevel(bpe) => format!("byte-level BPE, pre-tokeniser {}", bpe.pre_tokenizer_name()),
            Merger::SentencePiece(_) => "SentencePiece".to_owned(),
        }
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

/// Phi 3's special tokens, but for a few, take the white space behind them; llama.cpp, too, knows by the name.
fn strips_by_name(metadata: Metadata<'_>, vocabulary: &Vocabulary) -> Result<HashSet<u32>, TokenizerError> {
    let name = metadata.get::<&str>(NAME)?.unwrap_or_default().to_lowercase();
    if !(name.contains("phi-3") || name.contains("phi3")) {
        return Ok(HashSet::new());
    }
    let strips = |id: &u32| {
        let special = matches!(vocabulary.kind(*id), Some(Kind::UserDefined | Kind::Control | Kind::Unknown));
        let spelling = vocabulary.bytes(*id).unwrap_or_default();
        special && ![&b"<unk>"[..], b"<s>", b"<|endoftext|>"].contains(&spelling)
    };
    Ok((0..vocabulary.len() as u32).filter(strips).collect())
}

/// Builds SentencePiece's merger from the tokens of text. Control tokens stay out of it, so that no text can
/// become one.
fn sentence_piece(
    metadata: Metadata<'_>,
    vocabulary: &Vocabulary,
    tokens: &[&str],
) -> Result<SentencePiece, TokenizerError> {
    let scores: Vec<f32> = metadata.require(SCORES)?;
    if scores.len() != tokens.len() {
        return Err(TokenizerError::Scores { tokens: tokens.len(), scores: scores.len() });
    }
    let mut bytes = [None; 256];
    for id in 0..vocabulary.len() as u32 {
        if vocabulary.kind(id) == Some(Kind::Byte)
            && let Some([byte]) = vocabulary.bytes(id)
        {
            bytes[usize::from(*byte)] = Some(id);
        }
    }
    let text = (0u32..).zip(tokens).zip(scores).filter_map(|((id, token), score)| {
        let is_text = matches!(vocabulary.kind(id), Some(Kind::Normal | Kind::UserDefined | Kind::Unused));
        (is_text && !token.is_empty()).then_some((*token, id, score))
    });
    let add_space_prefix = metadata.get(ADD_SPACE_PREFIX)?.unwrap_or(true);
    Ok(SentencePiece::new(text, bytes, add_space_prefix))
}
