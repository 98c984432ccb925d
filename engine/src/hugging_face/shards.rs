//! The safetensors files: which there are, and which tensors lie where in them.
//!
//! Invariant: every range lies inside its file's map and is as long as shape and format say.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};

use super::HuggingFaceError;
use super::json::{Settings, show};
use crate::tensor_type::TensorType;

const INDEX: &str = "model.safetensors.index.json";
const WHOLE: &str = "model.safetensors";

/// Largest number of files a model may be in.
const MAX_SHARDS: usize = 4096;

/// The mapped files and their tensors.
pub(super) struct Shards {
    pub(super) files: Vec<Shard>,
    /// By name.
    pub(super) tensors: BTreeMap<String, Stored>,
}

/// A mapped file.
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) map: Mmap,
}

/// Where a tensor lies.
pub(super) struct Stored {
    /// Number of the file.
    pub(super) shard: usize,
    /// Bytes in it.
    pub(super) range: Range<usize>,
    pub(super) format: TensorType,
    /// Dimensions, the slowest first.
    pub(super) shape: Vec<usize>,
}

impl Shards {
    /// Maps the files of a directory and reads their headers.
    pub(super) fn open(directory: &Path) -> Result<Shards, HuggingFaceError> {
        let index = Settings::read(directory, INDEX)?;
        let (names, placed) = match &index {
            Some(index) => read_index(index)?,
            None => (vec![WHOLE.to_owned()], HashMap::new()),
        };
        let mut shards = Shards { files: Vec::new(), tensors: BTreeMap::new() };
        for name in names {
            shards.add(directory, name)?;
        }
        for (tensor, file) in placed {
            let there = shards.tensors.get(&tensor).map(|stored| &shards.files[stored.shard].name);
            if there != Some(&file) {
                let problem = match there {
                    Some(there) => format!("is not there but in `{there}`, against what `{INDEX}` says"),
                    None => format!("is missing; `{INDEX}` says it is there"),
                };
                return Err(HuggingFaceError::Tensor { tensor, file, problem });
            }
        }
        Ok(shards)
    }

    fn add(&mut self, directory: &Path, name: String) -> Result<(), HuggingFaceError> {
        let refuse = |problem: String| HuggingFaceError::File { file: name.clone(), problem };
        let path = directory.join(&name);
        // Asked before opening, because opening a pipe would wait for its other end.
        let metadata = std::fs::metadata(&path).map_err(|error| match name == WHOLE {
            true => refuse(format!(
                "cannot be used ({error}), nor is there a `{INDEX}`; weights are read from safetensors files only"
            )),
            false => refuse(format!("cannot be used: {error}")),
        })?;
        if !metadata.is_file() {
            return Err(refuse("is not a regular file".to_owned()));
        }
        let file = File::open(&path).map_err(|error| refuse(format!("cannot be opened: {error}")))?;
        // SAFETY: As for GGUF files, the map is read-only and only ever used as bytes; that nobody shortens the file
        // meanwhile is what the documentation asks for.
        let map =
            unsafe { Mmap::map(&file) }.map_err(|error| refuse(format!("cannot be mapped: {error}")))?;
        let (header, contents) = SafeTensors::read_metadata(&map).map_err(|error| {
            refuse(format!("is no whole safetensors file: {error}; it is damaged or incomplete"))
        })?;
        let data = 8 + header;
        for (tensor, info) in contents.tensors() {
            let refuse = |problem: String| HuggingFaceError::Tensor {
                tensor: tensor.clone(),
                file: name.clone(),
                problem,
            };
            let format = match info.dtype {
                Dtype::F32 => TensorType::F32,
                Dtype::F16 => TensorType::F16,
                Dtype::BF16 => TensorType::Bf16,
                other => {
                    return Err(refuse(format!("is stored as {other:?}; supported are F32, F16 and BF16")));
                }
            };
            let (start, end) = info.data_offsets;
            let range = start.checked_add(data).zip(end.checked_add(data));
            let Some((start, end)) = range.filter(|(start, end)| start <= end && *end <= map.len()) else {
                return Err(refuse("reaches past the end of the file".to_owned()));
            };
            let shard = self.files.len();
            let stored = Stored { shard, range: start..end, format, shape: info.shape.clone() };
            if let Some(other) = self.tensors.insert(tensor.clone(), stored) {
                let other = &self.files[other.shard].name;
                return Err(refuse(format!("is in `{other}` too")));
            }
        }
        self.files.push(Shard { name, map });
        Ok(())
    }
}

/// The files that an index names, and where it places each tensor.
fn read_index(index: &Settings) -> Result<(Vec<String>, HashMap<String, String>), HuggingFaceError> {
    let Some(map) = index.section("weight_map")? else {
        return Err(index.refuse("weight_map", "wanted is an object of tensors and the files they are in"));
    };
    let mut names = Vec::new();
    let mut placed = HashMap::new();
    for (tensor, file) in map.entries() {
        let name =
            file.as_str().filter(|name| is_plain_name(name)).ok_or_else(|| HuggingFaceError::Setting {
                file: INDEX.to_owned(),
                key: format!("weight_map.{tensor}"),
                found: show(file),
                allowed: "wanted is the name of a .safetensors file in the same directory".to_owned(),
            })?;
        placed.insert(tensor.to_owned(), name.to_owned());
        names.push(name.to_owned());
    }
    names.sort_unstable();
    names.dedup();
    if names.is_empty() || names.len() > MAX_SHARDS {
        let allowed = format!("1 to {MAX_SHARDS} files are allowed, it names {}", names.len());
        return Err(index.refuse("weight_map", allowed));
    }
    Ok((names, placed))
}

/// Whether a file of this name can only be in the directory itself.
fn is_plain_name(name: &str) -> bool {
    name.ends_with(".safetensors")
        && name.chars().all(|character| character.is_ascii_alphanumeric() || "._-".contains(character))
}
