//! Incremental detokenisation: bytes of incomplete UTF-8 are held back until they are whole.
//!
//! One token can be part of a character, so a stream cannot decode tokens one by one. The pieces of text
//! that come out, joined, are what [`String::from_utf8_lossy`] makes of all the bytes, except that a
//! character still incomplete at the end is dropped rather than replaced: it was cut off, not invalid.
//!
//! Invariant: `pending` is a proper prefix of a valid character, so at most three bytes.

/// Turns a growing list of token bytes into text, piece by piece.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    pending: Vec<u8>,
}

impl Detokenizer {
    /// Adds a token's bytes and appends the text that became certain to `text`. Invalid bytes become U+FFFD as soon
    /// as they are known to be invalid; a possible beginning of a character is kept.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        // Most tokens are whole characters.
        if self.pending.is_empty()
            && let Ok(valid) = std::str::from_utf8(bytes)
        {
            text.push_str(valid);
            return;
        }
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        let incomplete = loop {
            let error = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    break 0;
                }
                Err(error) => error,
            };
            let (valid, after) = rest.split_at(error.valid_up_to());
            text.push_str(std::str::from_utf8(valid).expect("valid up to here"));
            match error.error_len() {
                Some(invalid) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[invalid..];
                }
                None => break after.len(),
            }
        };
        let done = self.pending.len() - incomplete;
        self.pending.drain(..done);
    }

    /// Ends the text: held-back bytes that never became a character are dropped.
    pub fn finish(&mut self) {
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text that `bytes` make certain.
    fn push(detokenizer: &mut Detokenizer, bytes: &[u8]) -> String {
        let mut text = String::new();
        detokenizer.push(bytes, &mut text);
        text
    }

    /// All the text of `bytes`, pushed in pieces that end at `cuts`.
    fn in_pieces(bytes: &[u8], cuts: &[prop::sample::Index]) -> String {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let mut detokenizer = Detokenizer::default();
        cuts.windows(2).map(|cut| push(&mut detokenizer, &bytes[cut[0]..cut[1]])).collect()
    }

    /// Bytes that are often nearly UTF-8: whole characters, halves of characters, anything.
    fn nearly_utf8() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            any::<char>().prop_map(|character| character.to_string().into_bytes()),
            any::<char>().prop_map(|character| {
                let mut bytes = character.to_string().into_bytes();
                bytes.pop();
                bytes
            }),
            any::<u8>().prop_map(|byte| vec![byte]),
        ];
        prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_lossy_text_however_the_bytes_are_cut(
            bytes in nearly_utf8(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            // A full stop ends whatever character is open, so nothing is held back.
            let bytes = [bytes.as_slice(), b"."].concat();
            prop_assert_eq!(in_pieces(&bytes, &cuts), String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn cut_off_text_is_the_text_up_to_the_last_whole_character(text in ".*", cut: prop::sample::Index) {
            let cut = cut.index(text.len() + 1);
            let mut detokenizer = Detokenizer::default();
            let whole = text.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= cut).last();
            prop_assert_eq!(push(&mut detokenizer, &text.as_bytes()[..cut]), &text[..whole.unwrap_or(0)]);
        }
    }

    #[test]
    fn a_character_of_four_tokens_comes_out_with_the_last() {
        let mut detokenizer = Detokenizer::default();
        let texts: Vec<String> = "😀".bytes().map(|byte| push(&mut detokenizer, &[byte])).collect();
        assert_eq!(texts, ["", "", "", "😀"]);
    }

    #[test]
    fn an_unfinished_character_does_not_leak_into_the_next_text() {
        let mut detokenizer = Detokenizer::default();
        assert_eq!(push(&mut detokenizer, &"é".as_bytes()[..1]), "");
        detokenizer.finish();
        assert_eq!(push(&mut detokenizer, b"a"), "a");
    }
}
