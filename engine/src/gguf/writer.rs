//! Writing GGUF files: enough for metadata that comes from elsewhere, and for tests of every crate to make small
//! models, and broken ones.
//!
//! The whole file is built in memory. The reader is not trusted to check the writer: nothing here refuses
//! what the reader would refuse, so that tests can write it.

use std::path::Path;

use super::value::ValueType;
use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufError, MAGIC};
use crate::tensor_type::TensorType;

/// A metadata value to write.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// Unsigned 32 bits.
    U32(u32),
    /// Single precision.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// Text.
    String(String),
    /// Array of text.
    Strings(Vec<String>),
    /// Array of signed 32 bits.
    Integers(Vec<i32>),
    /// Array of unsigned 32 bits.
    Counts(Vec<u32>),
    /// Array of single precision.
    Floats(Vec<f32>),
    /// Array of truth values.
    Flags(Vec<bool>),
}

impl From<u32> for MetadataValue {
    fn from(value: u32) -> Self {
        MetadataValue::U32(value)
    }
}

impl From<f32> for MetadataValue {
    fn from(value: f32) -> Self {
        MetadataValue::F32(value)
    }
}

impl From<bool> for MetadataValue {
    fn from(value: bool) -> Self {
        MetadataValue::Bool(value)
    }
}

impl From<&str> for MetadataValue {
    fn from(value: &str) -> Self {
        MetadataValue::String(value.to_owned())
    }
}

impl From<Vec<String>> for MetadataValue {
    fn from(value: Vec<String>) -> Self {
        MetadataValue::Strings(value)
    }
}

impl From<Vec<i32>> for MetadataValue {
    fn from(value: Vec<i32>) -> Self {
        MetadataValue::Integers(value)
    }
}

impl From<Vec<u32>> for MetadataValue {
    fn from(value: Vec<u32>) -> Self {
        MetadataValue::Counts(value)
    }
}

impl From<Vec<f32>> for MetadataValue {
    fn from(value: Vec<f32>) -> Self {
        MetadataValue::Floats(value)
    }
}

impl From<Vec<bool>> for MetadataValue {
    fn from(value: Vec<bool>) -> Self {
        MetadataValue::Flags(value)
    }
}

impl MetadataValue {
    fn write(&self, out: &mut Vec<u8>) {
        let start = |out: &mut Vec<u8>, value_type: ValueType| out.extend(value_type.number().to_le_bytes());
        let start_array = |out: &mut Vec<u8>, element: ValueType, count: usize| {
            start(out, ValueType::Array);
            start(out, element);
            out.extend((count as u64).to_le_bytes());
        };
        match self {
            MetadataValue::U32(value) => {
                start(out, ValueType::U32);
                out.extend(value.to_le_bytes());
            }
            MetadataValue::F32(value) => {
                start(out, ValueType::F32);
                out.extend(value.to_le_bytes());
            }
            MetadataValue::Bool(value) => {
                start(out, ValueType::Bool);
                out.push(u8::from(*value));
            }
            MetadataValue::String(text) => {
                start(out, ValueType::String);
                write_string(text, out);
            }
            MetadataValue::Strings(texts) => {
                start_array(out, ValueType::String, texts.len());
                texts.iter().for_each(|text| write_string(text, out));
            }
            MetadataValue::Integers(values) => {
                start_array(out, ValueType::I32, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
            MetadataValue::Counts(values) => {
                start_array(out, ValueType::U32, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
            MetadataValue::Flags(values) => {
                start_array(out, ValueType::Bool, values.len());
                out.extend(values.iter().map(|value| u8::from(*value)));
            }
            MetadataValue::Floats(values) => {
                start_array(out, ValueType::F32, values.len());
                values.iter().for_each(|value| out.extend(value.to_le_bytes()));
            }
        }
    }
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A file in the making. Setting a key or a tensor again replaces it.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    metadata: Vec<(String, MetadataValue)>,
    tensors: Vec<TensorToWrite>,
}

#[derive(Clone, Debug)]
struct TensorToWrite {
    name: String,
    dimensions: Vec<u64>,
    number: u32,
    data: Vec<u8>,
}

impl Writer {
    /// A file without metadata and tensors.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Sets a metadata value. `general.alignment` also sets the alignment of the tensors.
    pub fn set(&mut self, key: &str, value: impl Into<MetadataValue>) -> &mut Writer {
        let value = value.into();
        match self.metadata.iter_mut().find(|(existing, _)| existing == key) {
            Some((_, existing)) => *existing = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Takes a metadata value out.
    pub fn unset(&mut self, key: &str) -> &mut Writer {
        self.metadata.retain(|(existing, _)| existing != key);
        self
    }

    /// Sets a tensor from its values, quantised to `format`. `dimensions` has the fastest one first: a matrix
    /// is `[columns, rows]`.
    ///
    /// # Panics
    /// If the values do not fill the dimensions, or a row is no multiple of the format's block.
    pub fn tensor(
        &mut self,
        name: &str,
        dimensions: &[u64],
        format: TensorType,
        values: &[f32],
    ) -> &mut Writer {
        assert_eq!(values.len() as u64, dimensions.iter().product::<u64>(), "values of tensor {name}");
        assert!(format.row_bytes(dimensions[0] as usize).is_some(), "rows of {name} as {}", format.name());
        self.raw_tensor(name, dimensions, format.ggml_number(), format.quantize(values))
    }

    /// Sets a tensor from its bytes, under any dimensions and any type number.
    pub fn raw_tensor(&mut self, name: &str, dimensions: &[u64], number: u32, data: Vec<u8>) -> &mut Writer {
        self.remove_tensor(name);
        self.tensors.push(TensorToWrite {
            name: name.to_owned(),
            dimensions: dimensions.to_vec(),
            number,
            data,
        });
        self
    }

    /// Takes a tensor out.
    pub fn remove_tensor(&mut self, name: &str) -> &mut Writer {
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    /// The file, as GGUF version 3.
    pub fn to_bytes(&self) -> Vec<u8> {
        let alignment = self.metadata.iter().find_map(|(key, value)| match value {
            MetadataValue::U32(alignment) if key == ALIGNMENT_KEY && *alignment > 0 => Some(*alignment),
            _ => None,
        });
        let alignment = alignment.unwrap_or(DEFAULT_ALIGNMENT) as usize;
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            write_string(key, &mut out);
            value.write(&mut out);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            write_string(&tensor.name, &mut out);
            out.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().for_each(|dimension| out.extend(dimension.to_le_bytes()));
            out.extend(tensor.number.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(alignment);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(alignment), 0);
            out.extend(&tensor.data);
        }
        out
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    pub fn write(&self, path: &Path) -> Result<(), GgufError> {
        std::fs::write(path, self.to_bytes()).map_err(|source| GgufError::Io { action: "write", source })
    }
}
