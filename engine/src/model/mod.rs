//! A model, opened: program, weights, tokenizer, chat template and what the server needs to know about it.

use std::path::Path;

use crate::chat_template::ChatTemplate;
use crate::device::WeightSource;
use crate::program::{Program, WeightId};
use crate::tokenizer::Tokenizer;

/// Everything that comes out of a model file. The weights stay in the mapped file.
pub struct Model {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Longest sequence the model was made for.
    pub context_length: usize,
    /// The forward pass.
    pub program: Program,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// Messages to text, if the file has a template.
    pub chat_template: Option<ChatTemplate>,
}

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("stub")]
pub struct ModelError;

impl Model {
    /// Opens a model file.
    ///
    /// # Errors
    /// The file cannot be read, is no valid GGUF, or holds something that is not supported; the message names
    /// the path, the key or tensor, what was found and what is supported.
    pub fn open(path: &Path) -> Result<Model, ModelError> {
        let _ = path;
        Err(ModelError)
    }
}

impl WeightSource for Model {
    fn weight(&self, id: WeightId) -> &[u8] {
        let _ = id;
        &[]
    }
}
