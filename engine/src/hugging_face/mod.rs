//! Hugging Face model directories: `config.json`, `tokenizer.json` and what is beside them, and safetensors files.
//!
//! A directory is presented as the GGUF file that it would be converted to: [`architecture`] has the names,
//! [`config`] and [`tokenizer`] write the metadata, and the tensors' values are put into GGUF's order and into the
//! asked-for format when a device asks for them. So architectures, tokenizers and everything else are written
//! once.
//!
//! A directory is as hostile as any file: what is read has a largest size, weights can only be files in the
//! directory itself, and sizes come from the tensors that are really there.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use crate::gguf::{GgmlType, Metadata, MetadataBuffer, Writer};
use crate::model::source::{ModelSource, SourceTensor};
use crate::model::{ModelProblem, Quantization};
use crate::tensor_type::TensorType;

mod architecture;
mod config;
mod error;
pub mod fixture;
mod json;
mod shards;
#[cfg(test)]
mod tests;
mod tokenizer;

use architecture::Architecture;
use config::{CONFIG, Config};
pub use error::HuggingFaceError;
use json::Settings;
use shards::{Shards, Stored};

/// GGUF's name of the factors of the rotation's frequencies.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// An open directory.
pub(crate) struct HuggingFaceModel {
    architecture: &'static Architecture,
    metadata: MetadataBuffer,
    shards: Shards,
    /// By name.
    tensors: Vec<Tensor>,
}

/// A tensor under its GGUF name.
struct Tensor {
    name: String,
    /// The fastest first.
    dimensions: Vec<u64>,
    /// How its rows are given.
    format: TensorType,
    data: Data,
}

/// Where the values come from.
enum Data {
    /// The tensor of this name in the files.
    Stored { name: String, change: Change },
    /// Made from settings.
    Computed(Vec<u8>),
}

/// How values differ from the stored ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    /// Rows come in the order of neighbouring pairs; heads have that many values.
    Permute(usize),
    /// Norms that are stored as their distance from one.
    AddOne,
}

impl HuggingFaceModel {
    /// Reads the settings and maps the weights. With a quantisation every matrix is quantised when it is read.
    ///
    /// # Errors
    /// A file is missing or not what it should be, or asks for something that is not supported.
    pub(crate) fn open(
        directory: &Path,
        quantization: Option<Quantization>,
    ) -> Result<HuggingFaceModel, HuggingFaceError> {
        let settings = Settings::require(directory, CONFIG)?;
        let mut writer = Writer::new();
        let config = Config::convert(&settings, &mut writer)?;
        let shards = Shards::open(directory)?;
        check_vocabulary(&settings, &config, &shards)?;
        if let Some(name) = directory.file_name() {
            writer.set("general.name", &*name.to_string_lossy());
        }
        tokenizer::convert(directory, &config, &mut writer)?;
        let tensors = tensors(&config, &shards, quantization)?;
        let metadata = MetadataBuffer::new(&writer).map_err(|error| {
            HuggingFaceError::Contents(config.architecture.in_own_words(&error.to_string()))
        })?;
        Ok(HuggingFaceModel { architecture: config.architecture, metadata, shards, tensors })
    }

    fn find(&self, name: &str) -> Option<&Tensor> {
        let index = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[index])
    }
}

/// The vocabulary has as many tokens as the embedding has rows; everything that is sized by it relies on that.
fn check_vocabulary(settings: &Settings, config: &Config, shards: &Shards) -> Result<(), HuggingFaceError> {
    const EMBEDDING: &str = "model.embed_tokens.weight";
    // Far above real ones; rows of no columns would take no bytes of any file.
    const MAX_VOCABULARY: u32 = 1 << 22;
    if config.vocabulary > MAX_VOCABULARY {
        return Err(settings.refuse("vocab_size", format!("at most {MAX_VOCABULARY} are allowed")));
    }
    let rows = shards.tensors.get(EMBEDDING).and_then(|tensor| tensor.shape.first());
    match rows {
        Some(rows) if *rows == config.vocabulary as usize => Ok(()),
        Some(rows) => Err(settings.refuse("vocab_size", format!("tensor `{EMBEDDING}` has {rows} rows"))),
        None => Err(HuggingFaceError::Contents(format!("tensor `{EMBEDDING}` is missing"))),
    }
}

/// The tensors that a GGUF file would have, by name.
fn tensors(
    config: &Config,
    shards: &Shards,
    quantization: Option<Quantization>,
) -> Result<Vec<Tensor>, HuggingFaceError> {
    const OUTPUT: &str = "lm_head.weight";
    let mut tensors = Vec::with_capacity(shards.tensors.len() + 1);
    for (name, stored) in &shards.tensors {
        // Old files have the frequencies of rotations, which follow from the settings. An output matrix beside a
        // tied embedding is a copy of it.
        if name.ends_with(".rotary_emb.inv_freq") || config.tied && name == OUTPUT {
            continue;
        }
        tensors.push(tensor(config, name, stored, quantization)?);
    }
    if !config.tied && !shards.tensors.contains_key(OUTPUT) {
        let problem =
            format!("tensor `{OUTPUT}` is missing, and `tie_word_embeddings` in `{CONFIG}` is not true");
        return Err(HuggingFaceError::Contents(problem));
    }
    if let Some(factors) = &config.rope_factors {
        tensors.push(Tensor {
            name: ROPE_FACTORS.to_owned(),
            dimensions: vec![factors.len() as u64],
            format: TensorType::F32,
            data: Data::Computed(TensorType::F32.quantize(factors)),
        });
    }
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    match tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        Some([tensor, _]) => {
            let name = config.architecture.in_own_words(&format!("`{}`", tensor.name));
            Err(HuggingFaceError::Contents(format!("tensor {name} is there under two names")))
        }
        _ => Ok(tensors),
    }
}

fn tensor(
    config: &Config,
    own_name: &str,
    stored: &Stored,
    quantization: Option<Quantization>,
) -> Result<Tensor, HuggingFaceError> {
    let name = match config.architecture.tensor_in_gguf(own_name) {
        Some(name) => name,
        None if config.architecture.tensor_here(own_name).is_some() || own_name == ROPE_FACTORS => {
            let problem =
                format!("tensor `{own_name}` has a name of GGUF files, whose order of values may be another");
            return Err(HuggingFaceError::Contents(problem));
        }
        // What has no name in GGUF keeps its own, to be named as unexpected.
        None => own_name.to_owned(),
    };
    let dimensions: Vec<u64> = stored.shape.iter().rev().map(|size| *size as u64).collect();
    let format = match stored.shape[..] {
        [_, columns] => match quantization.map(|quantization| quantization.of(&name, config.tied)) {
            // Rows that are no whole blocks stay as they are.
            Some(format) if format.row_bytes(columns).is_some() => format,
            _ => stored.format,
        },
        // Programs want vectors in full precision.
        _ => TensorType::F32,
    };
    let heads = match name.rsplit_once('.').map_or("", |(name, _)| name.rsplit('.').next().unwrap_or("")) {
        "attn_q" => Some(config.heads[0]),
        "attn_k" => Some(config.heads[1]),
        _ => None,
    };
    let change = match (heads, &stored.shape[..]) {
        (Some(heads), [rows, _]) if config.architecture.permutes_heads => {
            let head_size = rows.checked_div(heads as usize).unwrap_or(0);
            // Rows that are not the heads' are of a wrong shape, which is found when the program is built.
            match head_size * heads as usize == *rows && head_size.is_multiple_of(2) {
                true => Change::Permute(head_size),
                false => Change::None,
            }
        }
        _ if config.architecture.norms_from_one && name.ends_with("norm.weight") => Change::AddOne,
        _ => Change::None,
    };
    Ok(Tensor { name, dimensions, format, data: Data::Stored { name: own_name.to_owned(), change } })
}

impl ModelSource for HuggingFaceModel {
    fn metadata(&self) -> Metadata<'_> {
        self.metadata.metadata()
    }

    fn tensors(&self) -> Vec<SourceTensor<'_>> {
        self.tensors.iter().map(Tensor::view).collect()
    }

    fn tensor(&self, name: &str) -> Option<SourceTensor<'_>> {
        self.find(name).map(Tensor::view)
    }

    fn rows(&self, name: &str, rows: Range<usize>) -> Cow<'_, [u8]> {
        let tensor = self.find(name).expect("the program was built over this source");
        match &tensor.data {
            Data::Computed(bytes) => Cow::Borrowed(bytes),
            Data::Stored { name, change } => {
                let stored = &self.shards.tensors[name];
                let bytes = &self.shards.files[stored.shard].map[stored.range.clone()];
                read_rows(stored, bytes, tensor.format, *change, rows)
            }
        }
    }

    fn file_bytes(&self) -> u64 {
        self.shards.files.iter().map(|file| file.map.len() as u64).sum()
    }

    fn discard_pages(&self) {
        self.shards.files.iter().for_each(|file| crate::gguf::discard_pages(&file.map));
    }

    fn in_own_words(&self, problem: ModelProblem) -> ModelProblem {
        let message = self.architecture.in_own_words(&problem.to_string());
        ModelProblem::HuggingFace(HuggingFaceError::Contents(message))
    }
}

impl Tensor {
    fn view(&self) -> SourceTensor<'_> {
        SourceTensor {
            name: &self.name,
            dimensions: &self.dimensions,
            format: GgmlType::from_number(self.format.ggml_number()).expect("every format of ours is ggml's"),
        }
    }
}

/// Rows of a stored tensor in the wanted format and order. A vector is one row.
fn read_rows<'a>(
    stored: &Stored,
    bytes: &'a [u8],
    format: TensorType,
    change: Change,
    rows: Range<usize>,
) -> Cow<'a, [u8]> {
    let columns = stored.shape.last().copied().unwrap_or(1);
    let row_bytes = columns * stored.format.block_bytes();
    let source = |row: usize| {
        let row = match change {
            Change::Permute(head_size) => row_before_permutation(row, head_size),
            _ => row,
        };
        &bytes[row * row_bytes..][..row_bytes]
    };
    match change {
        Change::None if format == stored.format => {
            return Cow::Borrowed(&bytes[rows.start * row_bytes..rows.end * row_bytes]);
        }
        Change::Permute(_) if format == stored.format => {
            return Cow::Owned(rows.flat_map(source).copied().collect());
        }
        _ => {}
    }
    let out_bytes = format.row_bytes(columns).expect("checked when the format was chosen");
    let mut out = vec![0; rows.len() * out_bytes];
    out.par_chunks_mut(out_bytes).enumerate().for_each_init(
        || vec![0.0; columns],
        |values, (index, out)| {
            stored.format.dequantize(source(rows.start + index), values);
            if change == Change::AddOne {
                values.iter_mut().for_each(|value| *value += 1.0);
            }
            out.copy_from_slice(&format.quantize(values));
        },
    );
    Cow::Owned(out)
}

/// Where a row of GGUF's order, in which the two values that turn together are neighbours, is in Hugging Face's,
/// in which they are half a head apart.
fn row_before_permutation(row: usize, head_size: usize) -> usize {
    let (head, place) = (row / head_size, row % head_size);
    head * head_size + place % 2 * (head_size / 2) + place / 2
}
