//! A model, opened: program, weights, tokenizer, chat template and what the server needs to know about it.
//!
//! Each architecture is a module that writes the forward pass down as a [`Program`]; the rest is common.
//! The weights stay in the mapped file and are handed to a device from there.
//!
//! Invariant: an open model is complete. Every weight of its program has all its bytes in the file, the
//! tokenizer's vocabulary is as wide as the logits, the chat template compiles.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use limpid_telemetry::observation::Phase;

use crate::chat_template::ChatTemplate;
use crate::device::WeightSource;
use crate::gguf::GgufFile;
use crate::program::{Program, WeightId};
use crate::tokenizer::Tokenizer;

mod builder;
mod decoder;
mod error;
mod gemma3;
#[cfg(test)]
mod golden_tests;
mod llama;
mod phi3;
mod qwen2;
mod qwen3;
mod settings;
#[cfg(test)]
mod tests;

pub use error::{ModelError, ModelProblem};

/// The forward pass, and where each weight's bytes are in the file.
type Built = Result<(Program, Vec<Range<usize>>), ModelProblem>;

/// What builds the forward pass over a file, for a vocabulary of this size.
type Build = fn(&GgufFile, usize) -> Built;

/// Names in `general.architecture` that there are programs for.
const ARCHITECTURES: [(&str, Build); 5] = [
    ("llama", llama::build),
    ("qwen2", qwen2::build),
    ("qwen3", qwen3::build),
    ("gemma3", gemma3::build),
    ("phi3", phi3::build),
];

/// Everything that comes out of a model file. The weights stay in the mapped file.
pub struct Model {
    /// The file.
    pub path: PathBuf,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, if the file has one.
    pub name: Option<String>,
    /// Values in all weights; shared ones count once.
    pub parameters: u64,
    /// Longest sequence the model was made for.
    pub context_length: usize,
    /// The forward pass.
    pub program: Program,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// Messages to text, if the file has a template.
    pub chat_template: Option<ChatTemplate>,
    /// What opening it consisted of.
    pub opening: [Phase; 3],
    file: GgufFile,
    /// Where each weight's bytes are in the file.
    ranges: Vec<Range<usize>>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Model").field("path", &self.path).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Model {
    /// Opens a model file. The file must not be changed while the model is open.
    ///
    /// # Errors
    /// The file cannot be read, is no valid GGUF, or holds something that is not supported; the message names
    /// the path, the key or tensor, what was found and what is supported.
    pub fn open(path: &Path) -> Result<Model, ModelError> {
        Model::read(path).map_err(|problem| ModelError { path: path.to_owned(), problem })
    }

    fn read(path: &Path) -> Result<Model, ModelProblem> {
        let started = Instant::now();
        let file = GgufFile::open(path)?;
        let metadata = file.metadata();
        let architecture: &str = metadata.require("general.architecture")?;
        let Some((name, build)) = ARCHITECTURES.into_iter().find(|(name, _)| *name == architecture) else {
            let supported = ARCHITECTURES.map(|(name, _)| name).join(", ");
            return Err(ModelProblem::Architecture { found: architecture.to_owned(), supported });
        };
        let context_length = settings::context_length(metadata, name)?;
        let opened = Phase::since("open_model", started);
        let tokenizer = Tokenizer::from_metadata(metadata)?;
        let loaded = Phase::since("load_tokenizer", opened.to);
        let (program, ranges) = build(&file, tokenizer.vocabulary_size())?;
        let chat_template = match metadata.get::<&str>("tokenizer.chat_template")? {
            Some(source) => {
                let text = |id: Option<u32>| std::str::from_utf8(tokenizer.token_bytes(id?, true)?).ok();
                let (bos, eos) = (text(tokenizer.bos_token_id()), text(tokenizer.eos_token_id()));
                Some(ChatTemplate::new(source, bos, eos)?)
            }
            None => None,
        };
        Ok(Model {
            path: path.to_owned(),
            file_bytes: file.file_bytes(),
            architecture: architecture.to_owned(),
            name: metadata.get::<&str>("general.name")?.map(str::to_owned),
            parameters: program.weights.iter().map(|weight| (weight.rows * weight.columns) as u64).sum(),
            context_length,
            program,
            tokenizer,
            chat_template,
            opening: [opened, loaded, Phase::since("build_program", loaded.to)],
            ranges,
            file,
        })
    }
}

impl Model {
    /// Gives the memory that holds the file's contents back to the system, as far as it can be read again.
    pub fn discard_pages(&self) {
        self.file.discard_pages();
    }
}

impl WeightSource for Model {
    fn weight(&self, id: WeightId) -> &[u8] {
        self.file.bytes(self.ranges[id.0].clone())
    }
}
