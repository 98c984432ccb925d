//! GGUF files, versions 2 and 3, memory-mapped.
//!
//! The reader finds metadata and tensors and checks that each lies inside the file. What they mean is for
//! [`crate::model`] and [`crate::tokenizer`]. [`Writer`] makes files, for tests; [`fixture`] makes whole tiny
//! models. Metadata that is in no file yet is a [`MetadataBuffer`].
//!
//! A file is hostile until proven otherwise. Counts are compared with the bytes left before anything is
//! allocated for them; sizes are multiplied with overflow checks all the way to bytes; names occur once.
//! Strings are not copied: an open file holds, per entry, only where it lies.
//!
//! Invariant: once [`GgufFile::open`] has succeeded, every metadata value decodes and every tensor's byte
//! range is inside the map, so nothing that reads them later can fail.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

mod cursor;
mod error;
pub mod fixture;
mod ggml_type;
mod metadata;
mod tensor;
#[cfg(test)]
mod tests;
mod value;
mod writer;

use cursor::{Cursor, Span};
pub use error::GgufError;
pub use ggml_type::GgmlType;
pub use metadata::{FromValue, Metadata};
pub use tensor::Tensor;
use tensor::TensorEntry;
pub use value::{Array, Value, ValueType};
pub use writer::{MetadataValue, Writer};

const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u32 = 32;
const MAX_ALIGNMENT: u32 = 1 << 20;

/// The least bytes of a metadata entry: key length, value type, a one-byte value.
const LEAST_METADATA_BYTES: usize = 8 + 4 + 1;

/// An open file.
pub struct GgufFile {
    map: Mmap,
    contents: Contents,
}

/// Where everything lies in a file.
#[derive(Debug)]
struct Contents {
    version: u32,
    /// By key.
    metadata: Vec<MetadataEntry>,
    /// By name.
    tensors: Vec<TensorEntry>,
}

/// Where one metadata value lies.
#[derive(Clone, Copy, Debug)]
struct MetadataEntry {
    key: Span,
    value_type: ValueType,
    start: usize,
}

impl GgufFile {
    /// Maps a file and checks its structure. Reads the header, the metadata and the tensor list; tensor data
    /// is not touched.
    ///
    /// # Errors
    /// The file cannot be read, or is no well-formed GGUF file.
    pub fn open(path: &Path) -> Result<GgufFile, GgufError> {
        let io = |action| move |source| GgufError::Io { action, source };
        // Asked before opening, because opening a pipe would wait for its other end.
        if !std::fs::metadata(path).map_err(io("inspect"))?.is_file() {
            return Err(GgufError::NotAFile);
        }
        let file = File::open(path).map_err(io("open"))?;
        // SAFETY: The map is read-only and only ever used as bytes, so no value in the file can break a Rust
        // type. Another process that shortens or rewrites the file while it is mapped is outside what we can
        // prevent, as for every program that maps its input; the documentation asks not to do that.
        let map = unsafe { Mmap::map(&file) }.map_err(io("map"))?;
        let contents = Contents::read(&map)?;
        Ok(GgufFile { map, contents })
    }

    /// 2 or 3.
    pub fn version(&self) -> u32 {
        self.contents.version
    }

    /// Bytes in the file.
    pub fn file_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata { bytes: &self.map, entries: &self.contents.metadata }
    }

    /// The tensors, in byte order of their names.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.contents.tensors.iter().map(|entry| entry.view(&self.map))
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let tensors = &self.contents.tensors;
        let index = tensors.binary_search_by(|entry| entry.name.of(&self.map).cmp(name.as_bytes())).ok()?;
        Some(tensors[index].view(&self.map))
    }

    /// Gives the mapped pages back to the system. They are read from the file again when they are needed.
    pub fn discard_pages(&self) {
        discard_pages(&self.map);
    }

    /// The bytes of a range, such as [`Tensor::range`].
    ///
    /// # Panics
    /// If the range does not come from this file.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.map[range]
    }
}

/// Gives the pages of a file's map back to the system.
#[cfg_attr(not(unix), allow(unused_variables))]
pub(crate) fn discard_pages(map: &Mmap) {
    // SAFETY: the map is read-only and of a file, so what comes back is what the file has. That the file does
    // not change meanwhile is what the mapping itself already asks for.
    #[cfg(unix)]
    let discarded = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    #[cfg(unix)]
    if let Err(error) = discarded {
        tracing::warn!("the model's pages stay in memory: {error}");
    }
}

/// Metadata that is in no file: written by a [`Writer`], read like a file's.
pub struct MetadataBuffer {
    bytes: Vec<u8>,
    contents: Contents,
}

impl MetadataBuffer {
    /// Takes over what the writer has been given; tensors are for files.
    ///
    /// # Errors
    /// A value that would not be accepted in a file.
    pub fn new(writer: &Writer) -> Result<MetadataBuffer, GgufError> {
        let bytes = writer.to_bytes();
        let contents = Contents::read(&bytes)?;
        Ok(MetadataBuffer { bytes, contents })
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata { bytes: &self.bytes, entries: &self.contents.metadata }
    }
}

impl Contents {
    /// Reads and checks everything but the tensors' data.
    fn read(bytes: &[u8]) -> Result<Contents, GgufError> {
        let magic = &bytes[..bytes.len().min(MAGIC.len())];
        if magic != MAGIC {
            return Err(GgufError::Magic { found: magic.escape_ascii().to_string() });
        }
        let mut cursor = Cursor::at(bytes, MAGIC.len());
        let version = cursor.u32("the header")?;
        if !(2..=3).contains(&version) {
            let hint = match version.swap_bytes() {
                1..=3 => " (a big-endian file)",
                _ => "",
            };
            return Err(GgufError::Version { found: version, hint });
        }
        let num_tensors = cursor.u64("the header")?;
        let num_metadata = cursor.count("metadata keys", LEAST_METADATA_BYTES)?;
        cursor.check_count(num_tensors, "tensors", TensorEntry::LEAST_BYTES)?;

        let mut metadata = Vec::new();
        for number in 0..num_metadata {
            metadata.push(MetadataEntry::read(&mut cursor, bytes, number)?);
        }
        sort_by_name(&mut metadata, |entry| entry.key, bytes, "metadata key")?;

        cursor.check_count(num_tensors, "tensors", TensorEntry::LEAST_BYTES)?;
        let mut tensors = Vec::new();
        for number in 0..num_tensors {
            tensors.push(TensorEntry::read(&mut cursor, bytes, number)?);
        }
        sort_by_name(&mut tensors, |entry| entry.name, bytes, "tensor")?;

        let alignment = alignment(Metadata { bytes, entries: &metadata })?;
        // A file without tensors need not be padded to where their data would begin.
        let data_start = cursor.position().next_multiple_of(alignment as usize);
        for tensor in &mut tensors {
            tensor.place(data_start, alignment, bytes)?;
        }
        Ok(Contents { version, metadata, tensors })
    }
}

/// Sorts entries by name and refuses names that occur twice.
fn sort_by_name<T>(
    entries: &mut [T],
    name: impl Fn(&T) -> Span,
    bytes: &[u8],
    what: &'static str,
) -> Result<(), GgufError> {
    entries.sort_unstable_by(|a, b| name(a).of(bytes).cmp(name(b).of(bytes)));
    for pair in entries.windows(2) {
        if name(&pair[0]).of(bytes) == name(&pair[1]).of(bytes) {
            let name = String::from_utf8_lossy(name(&pair[0]).of(bytes)).into_owned();
            return Err(GgufError::Duplicate { what, name });
        }
    }
    Ok(())
}

fn alignment(metadata: Metadata<'_>) -> Result<u32, GgufError> {
    match metadata.value(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(alignment)) if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT => {
            Ok(alignment)
        }
        Some(other) => Err(GgufError::Alignment { found: other.describe() }),
    }
}
