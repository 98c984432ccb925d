//! Byte-level BPE: a text is cut by the [pre-tokeniser](super::pre_tokenizer) and every piece is merged by the
//! `tokenizers` crate.

use std::collections::HashMap;

use tokenizers::Model as _;
use tokenizers::models::bpe::{BPE, Vocab};

use super::pre_tokenizer::{PreTokenizer, PreTokenizerKind};
use super::vocabulary::{Kind, Vocabulary};
use super::{MERGES, PRE, TokenizerError, byte_level};
use crate::gguf::Metadata;

/// The merger, built from a vocabulary and its merges.
pub(super) struct ByteLevelBpe {
    kind: PreTokenizerKind,
    pre_tokenizer: PreTokenizer,
    bpe: BPE,
    /// Bytes that have a token of their own. Others cannot be encoded.
    known_bytes: [bool; 256],
}

impl ByteLevelBpe {
    /// Reads which pre-tokeniser the file wants, and its merges.
    pub(super) fn new(
        metadata: Metadata<'_>,
        vocabulary: &Vocabulary,
        ids: &HashMap<&str, u32>,
    ) -> Result<ByteLevelBpe, TokenizerError> {
        let pre: &str = metadata.require(PRE)?;
        let kind = PreTokenizerKind::from_name(pre).ok_or_else(|| TokenizerError::PreTokenizer {
            found: pre.to_owned(),
            supported: PreTokenizerKind::names(),
        })?;
        let bpe = build(metadata, vocabulary, ids, kind.ignore_merges)?;
        let known_bytes = std::array::from_fn(|byte| {
            let character = byte_level::byte_to_char(byte as u8);
            bpe.token_to_id(character.encode_utf8(&mut [0; 4])).is_some()
        });
        Ok(ByteLevelBpe { kind, pre_tokenizer: PreTokenizer::new(kind), bpe, known_bytes })
    }

    /// The name of its pre-tokeniser.
    pub(super) fn pre_tokenizer_name(&self) -> &'static str {
        self.kind.name
    }

    /// Whether BOS is added if the file does not say.
    pub(super) fn adds_bos(&self) -> bool {
        self.kind.add_bos
    }

    /// Appends the ids of a text without special tokens. `buffer` is memory to reuse.
    pub(super) fn encode(&self, text: &str, buffer: &mut String, ids: &mut Vec<u32>) {
        self.pre_tokenizer.split(text, |piece| self.encode_piece(piece, buffer, ids));
    }

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
}

/// Builds the merger from the tokens of text. Control tokens stay out of it, so that no text can become one.
fn build(
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
