//! The vocabulary: what every token is and which bytes it stands for.

use std::collections::HashMap;

use super::TokenizerError;
use super::byte_level;
use crate::gguf::Metadata;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";

/// Spellings of tokens that end a turn or a message wherever they are in a vocabulary, whatever the file's
/// keys say: converters often name only one of several. The list follows llama.cpp's, which ends
/// generation on the same ones.
const END_SPELLINGS: [&str; 12] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "[EOS]",
];

/// What a token is for, in the numbering of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text in the vocabulary's alphabet.
    Normal,
    /// Stands for what cannot be encoded; treated as control.
    Unknown,
    /// Structure, such as `<|im_start|>`; never text.
    Control,
    /// Text that is always one token, spelled as it is.
    UserDefined,
    /// A filler.
    Unused,
    /// A single byte.
    Byte,
}

impl Kind {
    fn from_number(number: i32) -> Option<Kind> {
        Some(match number {
            1 => Kind::Normal,
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => return None,
        })
    }
}

/// How tokens of text are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// In the byte-level alphabet.
    Bytes,
    /// As text with `▁` for a space.
    Text,
}

/// The tokens by id.
pub(super) struct Vocabulary {
    kinds: Vec<Kind>,
    /// The bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
}

/// The tokens as the file spells them; needed only while a tokenizer is built.
pub(super) struct Spellings<'a> {
    pub(super) tokens: Vec<&'a str>,
    /// The ids of all spellings but the empty one.
    pub(super) ids: HashMap<&'a str, u32>,
}

impl Vocabulary {
    /// Reads the tokens and their types.
    pub(super) fn read<'a>(
        metadata: Metadata<'a>,
        alphabet: Alphabet,
    ) -> Result<(Vocabulary, Spellings<'a>), TokenizerError> {
        let tokens: Vec<&str> = metadata.require(TOKENS)?;
        let types: Option<Vec<i32>> = metadata.get(TOKEN_TYPES)?;
        if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
            return Err(TokenizerError::VocabularySize { found: tokens.len() });
        }
        if let Some(types) = &types
            && types.len() != tokens.len()
        {
            return Err(TokenizerError::TokenTypes { tokens: tokens.len(), types: types.len() });
        }

        let mut vocabulary = Vocabulary {
            kinds: Vec::with_capacity(tokens.len()),
            bytes: Vec::with_capacity(tokens.iter().map(|token| token.len()).sum()),
            ends: Vec::with_capacity(tokens.len()),
        };
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in (0u32..).zip(&tokens) {
            let number = types.as_ref().map_or(1, |types| types[id as usize]);
            let mut kind = Kind::from_number(number).ok_or(TokenizerError::TokenType { id, number })?;
            if kind == Kind::UserDefined && END_SPELLINGS.contains(token) {
                // Otherwise a user could end the turn from inside a message.
                kind = Kind::Control;
            }
            // Several fillers may be empty; what has a spelling must have its own.
            if !token.is_empty()
                && let Some(first) = ids.insert(*token, id)
            {
                return Err(TokenizerError::DuplicateToken { token: (*token).to_owned(), first, second: id });
            }
            push_bytes(token, kind, alphabet, &mut vocabulary.bytes);
            vocabulary.kinds.push(kind);
            vocabulary.ends.push(vocabulary.bytes.len());
        }
        Ok((vocabulary, Spellings { tokens, ids }))
    }

    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        Some(&self.bytes[start..end])
    }

    /// Tokens that end generation by their spelling.
    pub(super) fn end_tokens_by_spelling(&self, ids: &HashMap<&str, u32>) -> Vec<u32> {
        let known = END_SPELLINGS.iter().filter_map(|spelling| ids.get(spelling)).copied();
        known.filter(|id| self.kind(*id) == Some(Kind::Control)).collect()
    }
}

/// Appends what a token stands for.
fn push_bytes(token: &str, kind: Kind, alphabet: Alphabet, out: &mut Vec<u8>) {
    match kind {
        Kind::Unknown | Kind::Control | Kind::UserDefined | Kind::Unused => out.extend(token.as_bytes()),
        Kind::Byte if let Some(byte) = hexadecimal_byte(token) => out.push(byte),
        Kind::Normal | Kind::Byte if alphabet == Alphabet::Text => {
            out.extend(token.replace(super::sentence_piece::SPACE, " ").as_bytes());
        }
        Kind::Normal | Kind::Byte => {
            for character in token.chars() {
                match byte_level::char_to_byte(character) {
                    Some(byte) => out.push(byte),
                    None => out.extend(character.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
        }
    }
}

/// The byte of a token spelled `<0x0A>`.
fn hexadecimal_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}
