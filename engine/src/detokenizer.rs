//! Incremental detokenisation: bytes of incomplete UTF-8 are held back until they are whole.

/// Turns a growing list of token bytes into text, piece by piece.
#[derive(Clone, Debug, Default)]
pub struct Detokenizer {
    pending: Vec<u8>,
}

impl Detokenizer {
    /// Adds a token's bytes and returns the text that became certain. Invalid bytes become U+FFFD as soon
    /// as they are known to be invalid; a possible beginning of a character is kept.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let _ = bytes;
        String::new()
    }

    /// Ends the text: held-back bytes that never became a character are dropped.
    pub fn finish(&mut self) {
        self.pending.clear();
    }
}
