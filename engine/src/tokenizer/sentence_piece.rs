//! SentencePiece's merging: of all neighbours that together are a token, those with the best score first.
//!
//! There is no cutting beforehand, and spaces are part of the tokens, written `▁`. What is no token falls back
//! to the tokens of its bytes.
//!
//! Invariant: symbols are neighbours in the text and cover it; every merge makes them one fewer, so the heap
//! sees at most two new pairs for each.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// How tokens write a space.
pub(super) const SPACE: char = '\u{2581}';

/// The merger, built from a vocabulary.
pub(super) struct SentencePiece {
    /// Tokens of text by their spelling, with their scores.
    tokens: HashMap<Box<str>, (u32, f32)>,
    /// Tokens of single bytes.
    bytes: [Option<u32>; 256],
    /// A text that begins, or follows a special token, is given a space before it.
    add_space_prefix: bool,
}

/// A part of the text that is one token, or a character on its way to become one.
struct Symbol {
    start: usize,
    /// 0 once it has been merged into the symbol before it.
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbouring symbols that together are a token.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both. If they are no longer that many, one of them has been merged since.
    len: usize,
}

impl Ord for Pair {
    /// The best score, then the leftmost.
    fn cmp(&self, other: &Pair) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Pair) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl SentencePiece {
    /// A merger of these tokens, each with its spelling, id and score.
    pub(super) fn new<'a>(
        tokens: impl Iterator<Item = (&'a str, u32, f32)>,
        bytes: [Option<u32>; 256],
        add_space_prefix: bool,
    ) -> SentencePiece {
        let tokens = tokens.map(|(token, id, score)| (token.into(), (id, score))).collect();
        SentencePiece { tokens, bytes, add_space_prefix }
    }

    /// Appends the ids of a text between special tokens. `first`: nothing but special tokens came before.
    pub(super) fn encode(&self, text: &str, after_special: bool, buffer: &mut String, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        buffer.clear();
        if self.add_space_prefix && after_special {
            buffer.push(SPACE);
        }
        buffer.extend(text.chars().map(|character| if character == ' ' { SPACE } else { character }));
        for symbol in self.merge(buffer) {
            match self.tokens.get(symbol) {
                Some((id, _)) => ids.push(*id),
                None => ids.extend(symbol.bytes().filter_map(|byte| self.bytes[usize::from(byte)])),
            }
        }
    }

    /// The symbols that are left when no two neighbours are a token.
    fn merge<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> + use<'t> {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, character) in text.char_indices() {
            let index = symbols.len();
            let len = character.len_utf8();
            let next = (start + len < text.len()).then_some(index + 1);
            symbols.push(Symbol { start, len, previous: index.checked_sub(1), next });
        }
        let pair = |symbols: &[Symbol], left: Option<usize>, right: Option<usize>| {
            let (left, right) = (left?, right?);
            let (start, len) = (symbols[left].start, symbols[left].len + symbols[right].len);
            let (_, score) = self.tokens.get(&text[start..start + len])?;
            Some(Pair { score: *score, left, right, len })
        };
        let mut pairs: BinaryHeap<Pair> =
            (1..symbols.len()).filter_map(|right| pair(&symbols, Some(right - 1), Some(right))).collect();
        while let Some(Pair { left, right, len, .. }) = pairs.pop() {
            let stale = symbols[left].len == 0 || symbols[right].len == 0;
            if stale || symbols[left].len + symbols[right].len != len {
                continue;
            }
            let next = symbols[right].next;
            symbols[left].len = len;
            symbols[right].len = 0;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].previous = Some(left);
            }
            pairs.extend(pair(&symbols, symbols[left].previous, Some(left)));
            pairs.extend(pair(&symbols, Some(left), next));
        }
        symbols
            .into_iter()
            .filter(|symbol| symbol.len > 0)
            .map(move |symbol| &text[symbol.start..symbol.start + symbol.len])
    }
}
