//! The tensor list: names, shapes, and where the data lies.

use std::ops::Range;

use super::GgufError;
use super::cursor::{Cursor, Span};
use super::ggml_type::GgmlType;
use super::metadata::name;

const MAX_DIMENSIONS: usize = 4;

/// A tensor of an open file.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its dimensions, the fastest first: a matrix is `[columns, rows]`.
    pub dimensions: &'a [u64],
    /// How its values are stored.
    pub format: &'static GgmlType,
    /// Where its data lies in the file.
    pub range: Range<usize>,
}

/// What the file says of a tensor.
#[derive(Debug)]
pub(super) struct TensorEntry {
    pub(super) name: Span,
    dimensions: [u64; MAX_DIMENSIONS],
    num_dimensions: usize,
    format: &'static GgmlType,
    /// In the data section at first; in the file once placed.
    offset: u64,
    bytes: u64,
}

impl TensorEntry {
    /// The least bytes of an entry: name length, number of dimensions, one dimension, type, offset.
    pub(super) const LEAST_BYTES: usize = 8 + 4 + 8 + 4 + 8;

    /// Reads an entry and computes the size of its data.
    pub(super) fn read(cursor: &mut Cursor<'_>, bytes: &[u8], number: u64) -> Result<TensorEntry, GgufError> {
        const WHAT: &str = "the tensor list";
        let span = cursor.string(WHAT)?;
        let text = std::str::from_utf8(span.of(bytes))
            .map_err(|_| GgufError::NameNotUtf8 { what: "tensor", number })?;
        let tensor = || text.to_owned();

        let found = cursor.u32(WHAT)?;
        if !(1..=MAX_DIMENSIONS as u32).contains(&found) {
            return Err(GgufError::Dimensions { tensor: tensor(), found });
        }
        let num_dimensions = found as usize;
        let mut dimensions = [1; MAX_DIMENSIONS];
        for dimension in &mut dimensions[..num_dimensions] {
            *dimension = cursor.u64(WHAT)?;
        }
        let number = cursor.u32(WHAT)?;
        let format = GgmlType::from_number(number)
            .ok_or_else(|| GgufError::TensorType { tensor: tensor(), number })?;
        let offset = cursor.u64(WHAT)?;

        let (columns, block) = (dimensions[0], format.block_elements as u64);
        if !columns.is_multiple_of(block) {
            return Err(GgufError::PartialBlock {
                tensor: tensor(),
                columns,
                format: format.name,
                block: format.block_elements,
            });
        }
        let size = dimensions[1..]
            .iter()
            .try_fold(columns / block, |product, dimension| product.checked_mul(*dimension))
            .and_then(|blocks| blocks.checked_mul(format.block_bytes as u64));
        let Some(size) = size else {
            let dimensions = dimensions[..num_dimensions].to_vec();
            return Err(GgufError::TensorSize { tensor: tensor(), dimensions });
        };
        Ok(TensorEntry { name: span, dimensions, num_dimensions, format, offset, bytes: size })
    }

    /// Turns the offset in the data section into one in the file and checks that all the data is there.
    pub(super) fn place(&mut self, data_start: usize, alignment: u32, bytes: &[u8]) -> Result<(), GgufError> {
        let tensor = || name(self.name, bytes).to_owned();
        if !self.offset.is_multiple_of(u64::from(alignment)) {
            return Err(GgufError::TensorOffset { tensor: tensor(), offset: self.offset, alignment });
        }
        let file_size = bytes.len() as u64;
        let start = self.offset.checked_add(data_start as u64);
        let end = start.and_then(|start| start.checked_add(self.bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_size => {
                self.offset = start;
                Ok(())
            }
            _ => Err(GgufError::TensorOutside { tensor: tensor(), end: end.unwrap_or(u64::MAX), file_size }),
        }
    }

    /// The tensor as users of the file see it.
    pub(super) fn view<'a>(&'a self, bytes: &'a [u8]) -> Tensor<'a> {
        // Both were checked to be inside the file, so they fit a usize.
        let start = self.offset as usize;
        Tensor {
            name: name(self.name, bytes),
            dimensions: &self.dimensions[..self.num_dimensions],
            format: self.format,
            range: start..start + self.bytes as usize,
        }
    }
}
