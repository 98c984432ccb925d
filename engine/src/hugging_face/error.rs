//! Why a directory is not read.

/// Why a Hugging Face directory could not be opened. Every message names the file, what was found in it and what
/// is allowed.
#[derive(Debug, thiserror::Error)]
pub enum HuggingFaceError {
    /// A file that is missing, too large, or not what its name says.
    #[error("`{file}` {problem}")]
    File {
        /// Its name in the directory.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A key with a value that is not acceptable, or without one.
    #[error("`{key}` in `{file}` is {found}; {allowed}")]
    Setting {
        /// The file.
        file: String,
        /// The key; keys of inner objects come after a dot.
        key: String,
        /// Its value, or `missing`.
        found: String,
        /// What would be accepted.
        allowed: String,
    },
    /// A tensor that cannot be used, or is not where it should be.
    #[error("tensor `{tensor}` in `{file}` {problem}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The files are well-formed, but what they say together is no model; in the files' own words.
    #[error("{0}")]
    Contents(String),
}
