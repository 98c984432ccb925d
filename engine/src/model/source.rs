//! Where a model comes from: metadata under GGUF's keys, tensors under GGUF's names, whatever holds them.
//!
//! Architectures and the tokenizer are written against this, so each is written once. A [`GgufFile`] has all of
//! it as it is.

use std::borrow::Cow;
use std::ops::Range;

use super::ModelProblem;
use crate::gguf::{GgmlType, GgufFile, Metadata};

/// A model's description and weights.
pub(crate) trait ModelSource: Send + Sync {
    /// Hyperparameters, tokenizer and chat template.
    fn metadata(&self) -> Metadata<'_>;

    /// The tensors, in byte order of their names.
    fn tensors(&self) -> Vec<SourceTensor<'_>>;

    /// The tensor of a name.
    fn tensor(&self, name: &str) -> Option<SourceTensor<'_>>;

    /// Stored bytes of a tensor's rows, in the format that [`SourceTensor::format`] says. Reading may take work:
    /// what is not stored that way is made each time it is asked for, and kept by nobody.
    ///
    /// # Panics
    /// If there is no such tensor or it has no such rows.
    fn rows(&self, name: &str, rows: Range<usize>) -> Cow<'_, [u8]>;

    /// Bytes of the files with weights.
    fn file_bytes(&self) -> u64;

    /// Gives the memory that holds the files' contents back to the system, as far as it can be read again.
    fn discard_pages(&self);

    /// The problem in the words of the source's own files, where those are not GGUF's.
    fn in_own_words(&self, problem: ModelProblem) -> ModelProblem {
        problem
    }
}

/// A tensor of a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SourceTensor<'a> {
    /// Its name in GGUF files.
    pub(crate) name: &'a str,
    /// Its dimensions, the fastest first: a matrix is `[columns, rows]`.
    pub(crate) dimensions: &'a [u64],
    /// How [`ModelSource::rows`] gives its values.
    pub(crate) format: &'static GgmlType,
}

impl ModelSource for GgufFile {
    fn metadata(&self) -> Metadata<'_> {
        GgufFile::metadata(self)
    }

    fn tensors(&self) -> Vec<SourceTensor<'_>> {
        GgufFile::tensors(self).map(SourceTensor::from).collect()
    }

    fn tensor(&self, name: &str) -> Option<SourceTensor<'_>> {
        GgufFile::tensor(self, name).map(SourceTensor::from)
    }

    fn rows(&self, name: &str, rows: Range<usize>) -> Cow<'_, [u8]> {
        let tensor = GgufFile::tensor(self, name).expect("the program was built over this file");
        let all: u64 = tensor.dimensions[1..].iter().product();
        let row_bytes = tensor.range.len() / all as usize;
        let start = tensor.range.start + rows.start * row_bytes;
        Cow::Borrowed(self.bytes(start..start + rows.len() * row_bytes))
    }

    fn file_bytes(&self) -> u64 {
        GgufFile::file_bytes(self)
    }

    fn discard_pages(&self) {
        GgufFile::discard_pages(self);
    }
}

impl<'a> From<crate::gguf::Tensor<'a>> for SourceTensor<'a> {
    fn from(tensor: crate::gguf::Tensor<'a>) -> SourceTensor<'a> {
        SourceTensor { name: tensor.name, dimensions: tensor.dimensions, format: tensor.format }
    }
}
