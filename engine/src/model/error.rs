//! Why a model is not opened.

use std::path::PathBuf;

use crate::chat_template::TemplateSyntaxError;
use crate::gguf::GgufError;
use crate::hugging_face::HuggingFaceError;
use crate::tokenizer::TokenizerError;

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the model {}: {problem}", path.display())]
pub struct ModelError {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong.
    #[source]
    pub problem: ModelProblem,
}

/// What is wrong with a model file.
#[derive(Debug, thiserror::Error)]
pub enum ModelProblem {
    /// It is no valid GGUF file, or a key is missing or of the wrong type.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// It is no usable Hugging Face directory.
    #[error(transparent)]
    HuggingFace(#[from] HuggingFaceError),
    /// An architecture nobody wrote a program for.
    #[error("`general.architecture` is `{found}`; supported are {supported}")]
    Architecture {
        /// The architecture found.
        found: String,
        /// Those there are.
        supported: String,
    },
    /// A setting out of its range, or asking for something that is not supported.
    #[error("`{key}` is {found}; {allowed}")]
    Setting {
        /// The metadata key.
        key: String,
        /// Its value.
        found: String,
        /// What would be accepted.
        allowed: String,
    },
    /// The tensors are not those of the architecture.
    #[error(
        "the tensors are not those of `{architecture}`:{}{}",
        list(" missing", missing),
        list(" unexpected", extra)
    )]
    Tensors {
        /// The architecture.
        architecture: &'static str,
        /// Tensors the program needs and the file lacks.
        missing: Vec<String>,
        /// Tensors the file has and the program would not use. They are refused, because ignoring a bias or
        /// a scale gives wrong texts rather than an error.
        extra: Vec<String>,
    },
    /// A tensor of another shape than the settings ask for.
    #[error("tensor `{tensor}` has dimensions {found:?}; the metadata asks for {wanted:?}")]
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Its dimensions, the fastest first.
        found: Vec<u64>,
        /// Those it should have.
        wanted: Vec<u64>,
    },
    /// A tensor in a format that no kernel reads.
    #[error("tensor `{tensor}` is stored as {found}; supported is {supported}")]
    TensorFormat {
        /// The tensor.
        tensor: String,
        /// ggml's name of the format.
        found: &'static str,
        /// Formats there are.
        supported: String,
    },
    /// The tokenizer cannot be built.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template cannot be compiled.
    #[error(transparent)]
    ChatTemplate(#[from] TemplateSyntaxError),
}

/// The first few names of a list, and how many more there are.
fn list(what: &str, names: &[String]) -> String {
    const SHOWN: usize = 6;
    if names.is_empty() {
        return String::new();
    }
    let shown = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => format!("{what} {shown};"),
        more => format!("{what} {shown} and {more} more;"),
    }
}
