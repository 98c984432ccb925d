//! What the server asks of a model's text side.

use limpid_engine::chat_template::TemplateError;
use limpid_engine::model::Model;
use serde_json::{Map, Value};

/// A model's tokenizer and chat template, as the server uses them.
pub trait TextModel: Send + Sync {
    /// Ids of a text; see [`limpid_engine::tokenizer::Tokenizer::encode`].
    fn encode(&self, text: &str, add_bos: bool, parse_special: bool) -> Vec<u32>;

    /// Bytes of a token; control tokens have none unless `special`.
    fn token_bytes(&self, id: u32, special: bool) -> Option<&[u8]>;

    /// The text of ids, control tokens included. Bytes that are no character become a replacement character.
    fn decode(&self, ids: &[u32]) -> String {
        let bytes = ids.iter().flat_map(|id| self.token_bytes(*id, true).unwrap_or_default());
        String::from_utf8_lossy(&bytes.copied().collect::<Vec<u8>>()).into_owned()
    }

    /// Tokens in the vocabulary.
    fn vocabulary_size(&self) -> usize;

    /// Ids that end generation.
    fn end_token_ids(&self) -> &[u32];

    /// Messages as the prompt's text; `None` if the model has no chat template.
    fn render_chat(
        &self,
        messages: &Value,
        add_generation_prompt: bool,
        extra: Option<&Map<String, Value>>,
    ) -> Option<Result<String, TemplateError>>;
}

impl TextModel for Model {
    fn encode(&self, text: &str, add_bos: bool, parse_special: bool) -> Vec<u32> {
        self.tokenizer.encode(text, add_bos, parse_special)
    }

    fn token_bytes(&self, id: u32, special: bool) -> Option<&[u8]> {
        self.tokenizer.token_bytes(id, special)
    }

    fn vocabulary_size(&self) -> usize {
        self.tokenizer.vocabulary_size()
    }

    fn end_token_ids(&self) -> &[u32] {
        self.tokenizer.end_token_ids()
    }

    fn render_chat(
        &self,
        messages: &Value,
        add_generation_prompt: bool,
        extra: Option<&Map<String, Value>>,
    ) -> Option<Result<String, TemplateError>> {
        Some(self.chat_template.as_ref()?.render(messages, add_generation_prompt, extra))
    }
}
