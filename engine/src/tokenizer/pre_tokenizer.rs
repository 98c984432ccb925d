//! Pre-tokenisers: where a text is cut before merging. No token spans a cut, so a wrong cut gives ids that
//! the model never saw in training.
//!
//! `tokenizer.ggml.pre` names one. The patterns are those with which the models were trained, as llama.cpp
//! implements the same names.

use tokenizers::utils::SysRegex;

/// What GPT-2 cuts by: contractions, words, numbers and punctuation, each with a space before it, and runs
/// of white space, of which the last character goes to what follows.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Llama 3 also takes any one other character before a word, cuts numbers into three digits at most, and
/// keeps line ends with the punctuation before them. Contractions in capitals are spelled out rather than
/// matched without case, which would also take U+017F for an s.
const LLAMA3: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Llama 3's with every digit alone.
const QWEN2: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What a name in `tokenizer.ggml.pre` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreTokenizerKind {
    pub(super) name: &'static str,
    pattern: &'static str,
    /// Every digit is a piece of its own, cut out before the pattern is applied to what lies between.
    digits_first: bool,
    /// A piece that is a token as a whole is not built by merges.
    pub(super) ignore_merges: bool,
    /// Whether BOS is added if the file does not say.
    pub(super) add_bos: bool,
}

impl PreTokenizerKind {
    const ALL: [PreTokenizerKind; 6] = {
        let gpt2 = PreTokenizerKind {
            name: "gpt-2",
            pattern: GPT2,
            digits_first: false,
            ignore_merges: false,
            add_bos: false,
        };
        let llama3 = PreTokenizerKind {
            name: "llama-bpe",
            pattern: LLAMA3,
            digits_first: false,
            ignore_merges: true,
            add_bos: true,
        };
        [
            gpt2,
            llama3,
            PreTokenizerKind { name: "llama3", ..llama3 },
            PreTokenizerKind { name: "llama-v3", ..llama3 },
            PreTokenizerKind { name: "qwen2", pattern: QWEN2, ..gpt2 },
            PreTokenizerKind { name: "smollm", digits_first: true, ..gpt2 },
        ]
    };

    pub(super) fn from_name(name: &str) -> Option<PreTokenizerKind> {
        Self::ALL.into_iter().find(|kind| kind.name == name)
    }

    /// All names, for a message.
    pub(super) fn names() -> String {
        Self::ALL.map(|kind| kind.name).join(", ")
    }
}

/// A pre-tokeniser, compiled.
pub(super) struct PreTokenizer {
    pattern: SysRegex,
    digits_first: bool,
}

impl PreTokenizer {
    pub(super) fn new(kind: PreTokenizerKind) -> PreTokenizer {
        let pattern = SysRegex::new(kind.pattern).expect("the patterns are constants, and tested");
        PreTokenizer { pattern, digits_first: kind.digits_first }
    }

    /// Calls `piece` with every piece of the text, in order. Joined, the pieces are the text.
    pub(super) fn split<'a>(&self, text: &'a str, mut piece: impl FnMut(&'a str)) {
        if !self.digits_first {
            return self.split_by_pattern(text, &mut piece);
        }
        let mut start = 0;
        for (at, digit) in text.match_indices(char::is_numeric) {
            self.split_by_pattern(&text[start..at], &mut piece);
            piece(digit);
            start = at + digit.len();
        }
        self.split_by_pattern(&text[start..], &mut piece);
    }

    fn split_by_pattern<'a>(&self, text: &'a str, piece: &mut impl FnMut(&'a str)) {
        let mut done = 0;
        for (start, end) in self.pattern.find_iter(text) {
            if done < start {
                piece(&text[done..start]);
            }
            piece(&text[start..end]);
            done = end;
        }
        // The patterns match everything; only if the regex engine gives up on a text is something left.
        if done < text.len() {
            piece(&text[done..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        let mut pieces = Vec::new();
        PreTokenizer::new(PreTokenizerKind::from_name(name).unwrap()).split(text, |piece| pieces.push(piece));
        pieces
    }

    #[test]
    fn each_name_cuts_words_numbers_and_line_ends_its_own_way() {
        let text = "I'LL pay  1234 €,\n\n  they're\tok";
        let expected: [(&str, &[&str]); 4] = [
            ("gpt-2", &["I", "'", "LL", " pay", " ", " 1234", " €,", "\n\n ", " they", "'re", "\t", "ok"]),
            (
                "smollm",
                &[
                    "I", "'", "LL", " pay", "  ", "1", "2", "3", "4", " €,", "\n\n ", " they", "'re", "\t",
                    "ok",
                ],
            ),
            (
                "llama-bpe",
                &["I", "'LL", " pay", " ", " ", "123", "4", " €,\n\n", " ", " they", "'re", "\tok"],
            ),
            (
                "qwen2",
                &["I", "'LL", " pay", " ", " ", "1", "2", "3", "4", " €,\n\n", " ", " they", "'re", "\tok"],
            ),
        ];
        for (name, expected) in expected {
            assert_eq!(pieces(name, text), expected, "{name}");
        }
    }

    proptest! {
        #[test]
        fn pieces_are_not_empty_and_join_to_the_text(text in "[\\PC\\s\\d]{0,80}") {
            for kind in PreTokenizerKind::ALL {
                let pieces = pieces(kind.name, &text);
                prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
                prop_assert_eq!(pieces.concat(), text.as_str());
            }
        }
    }

    /// Where the engine may have to give up, the rest of the text must still arrive.
    #[test]
    fn long_runs_lose_nothing_and_end_in_time() {
        let started = std::time::Instant::now();
        for run in [" ", "\n", "a", "1", "é", "'", " a", "\u{3000}"] {
            let text = run.repeat(2_000_000 / run.len());
            for kind in ["gpt-2", "smollm", "llama-bpe", "qwen2"] {
                let mut bytes = 0;
                let pre_tokenizer = PreTokenizer::new(PreTokenizerKind::from_name(kind).unwrap());
                pre_tokenizer.split(&text, |piece| bytes += piece.len());
                assert_eq!(bytes, text.len(), "{kind} {run:?}");
            }
        }
        assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    }
}
