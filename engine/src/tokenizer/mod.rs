//! Text to token ids and back, built from a GGUF file's metadata.

/// A model's tokenizer.
pub struct Tokenizer {
    _private: (),
}

impl Tokenizer {
    /// Ids of a text. `parse_special` reads control tokens such as `<|im_start|>` as tokens (chat templates,
    /// raw prompts); `add_bos` puts the BOS token first if the model wants one.
    pub fn encode(&self, text: &str, add_bos: bool, parse_special: bool) -> Vec<u32> {
        let _ = (text, add_bos, parse_special);
        Vec::new()
    }

    /// Bytes a token stands for; control tokens have none unless `special`. They need not be whole UTF-8.
    pub fn token_bytes(&self, id: u32, special: bool) -> Option<&[u8]> {
        let _ = (id, special);
        None
    }

    /// Tokens in the vocabulary.
    pub fn vocabulary_size(&self) -> usize {
        0
    }

    /// Ids that end generation: EOS, end of turn, end of message.
    pub fn end_token_ids(&self) -> &[u32] {
        &[]
    }

    /// The BOS token, if the file names one.
    pub fn bos_token_id(&self) -> Option<u32> {
        None
    }
}
