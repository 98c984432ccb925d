//! A model, opened: program, weights, tokenizer, chat template and what the server needs to know about it.
//!
//! Each architecture is a module that writes the forward pass down as a [`Program`]; the rest is common.
//! The weights stay in the mapped files and are handed to a device from there.
//!
//! Invariant: an open model is complete. Every weight of its program has all its bytes in the file, the
//! tokenizer's vocabulary is as wide as the logits, the chat template compiles.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use limpid_telemetry::observation::Phase;

use crate::chat_template::ChatTemplate;
use crate::device::WeightSource;
use crate::gguf::GgufFile;
use crate::hugging_face::HuggingFaceModel;
use crate::program::{Program, WeightId};
use crate::tensor_type::TensorType;
use crate::tokenizer::Tokenizer;

mod builder;
mod decoder;
mod error;
#[cfg(test)]
mod format_tests;
mod gemma3;
#[cfg(test)]
pub(crate) mod golden_tests;
mod llama;
mod phi3;
mod qwen2;
mod qwen3;
mod settings;
pub(crate) mod source;
#[cfg(test)]
mod tests;

pub use error::{ModelError, ModelProblem};
use source::ModelSource;

/// The forward pass, and which rows of its tensor each weight is made of.
type Built = Result<(Program, Vec<Range<usize>>), ModelProblem>;

/// What builds the forward pass over a source, for a vocabulary of this size.
type Build = fn(&dyn ModelSource, usize) -> Built;

/// Names in `general.architecture` that there are programs for.
const ARCHITECTURES: [(&str, Build); 5] = [
    ("llama", llama::build),
    ("qwen2", qwen2::build),
    ("qwen3", qwen3::build),
    ("gemma3", gemma3::build),
    ("phi3", phi3::build),
];

/// The names of all architectures.
pub(crate) fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.into_iter().map(|(name, _)| name)
}

/// A format that the matrices of a Hugging Face directory are quantised to when they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// 8.5 bits a value.
    Q8_0,
    /// 4.5 bits a value; 8.5 for the output matrix, or the embedding that serves as one.
    Q4_0,
}

impl Quantization {
    /// The value of `--quantization`.
    pub fn name(self) -> &'static str {
        match self {
            Quantization::Q8_0 => "q8_0",
            Quantization::Q4_0 => "q4_0",
        }
    }

    /// The format of a matrix. Whether the embedding is also the output matrix is `tied`.
    pub(crate) fn of(self, tensor: &str, tied: bool) -> TensorType {
        let is_output = tensor == if tied { "token_embd.weight" } else { "output.weight" };
        match self {
            Quantization::Q4_0 if !is_output => TensorType::Q4_0,
            _ => TensorType::Q8_0,
        }
    }
}

/// Everything that comes out of a model on disk. The weights stay in the mapped files.
pub struct Model {
    /// The file or the directory.
    pub path: PathBuf,
    /// Bytes in the file, or in those that hold the directory's weights.
    pub file_bytes: u64,
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, if the file has one; the directory's name.
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
    source: Arc<dyn ModelSource>,
    /// Rows of each weight's tensor that it is made of.
    rows: Vec<Range<usize>>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Model").field("path", &self.path).field("name", &self.name).finish_non_exhaustive()
    }
}

impl Model {
    /// Opens a GGUF file or a Hugging Face directory as it is. What is on disk must not be changed while the model
    /// is open.
    ///
    /// # Errors
    /// As [`Model::open_quantized`].
    pub fn open(path: &Path) -> Result<Model, ModelError> {
        Model::open_quantized(path, None)
    }

    /// The same with the matrices of a directory quantised when they are read.
    ///
    /// # Errors
    /// The model cannot be read, is not well-formed, or holds something that is not supported; the message names
    /// the path, the key or tensor, what was found and what is supported. A GGUF file cannot be quantised.
    pub fn open_quantized(path: &Path, quantization: Option<Quantization>) -> Result<Model, ModelError> {
        Model::read(path, quantization).map_err(|problem| ModelError { path: path.to_owned(), problem })
    }

    fn read(path: &Path, quantization: Option<Quantization>) -> Result<Model, ModelProblem> {
        let started = Instant::now();
        let source: Arc<dyn ModelSource> = match quantization {
            _ if path.is_dir() => Arc::new(HuggingFaceModel::open(path, quantization)?),
            None => Arc::new(GgufFile::open(path)?),
            Some(quantization) => {
                const ALLOWED: &str = "a GGUF file is served as it is stored; leave the setting out, or name a \
                                       Hugging Face directory";
                return Err(settings::refuse("--quantization", quantization.name(), ALLOWED));
            }
        };
        Model::over(path, Arc::clone(&source), started).map_err(|problem| source.in_own_words(problem))
    }

    fn over(path: &Path, source: Arc<dyn ModelSource>, started: Instant) -> Result<Model, ModelProblem> {
        let metadata = source.metadata();
        let architecture: &str = metadata.require("general.architecture")?;
        let Some((name, build)) = ARCHITECTURES.into_iter().find(|(name, _)| *name == architecture) else {
            let supported = architectures().collect::<Vec<_>>().join(", ");
            return Err(ModelProblem::Architecture { found: architecture.to_owned(), supported });
        };
        let context_length = settings::context_length(metadata, name)?;
        let opened = Phase::since("open_model", started);
        let tokenizer = Tokenizer::from_metadata(metadata)?;
        let loaded = Phase::since("load_tokenizer", opened.to);
        let (program, rows) = build(&*source, tokenizer.vocabulary_size())?;
        let chat_template = match metadata.get::<&str>("tokenizer.chat_template")? {
            Some(template) => {
                let text = |id: Option<u32>| std::str::from_utf8(tokenizer.token_bytes(id?, true)?).ok();
                let (bos, eos) = (text(tokenizer.bos_token_id()), text(tokenizer.eos_token_id()));
                Some(ChatTemplate::new(template, bos, eos)?)
            }
            None => None,
        };
        Ok(Model {
            path: path.to_owned(),
            file_bytes: source.file_bytes(),
            architecture: architecture.to_owned(),
            name: metadata.get::<&str>("general.name")?.map(str::to_owned),
            parameters: program.weights.iter().map(|weight| (weight.rows * weight.columns) as u64).sum(),
            context_length,
            program,
            tokenizer,
            chat_template,
            opening: [opened, loaded, Phase::since("build_program", loaded.to)],
            rows,
            source,
        })
    }
}

impl Model {
    /// Gives the memory that holds the file's contents back to the system, as far as it can be read again.
    pub fn discard_pages(&self) {
        self.source.discard_pages();
    }
}

impl WeightSource for Model {
    fn weight(&self, id: WeightId) -> Cow<'_, [u8]> {
        self.source.rows(&self.program.weights[id.0].name, self.rows[id.0].clone())
    }
}
