//! Weights on the device: as stored, sorted into what kernels read aligned.
//!
//! What [`super::packing`] makes of a stored row goes to two buffers, one of values and one of scales. A weight over
//! the binding limit is cut between rows into parts.
//!
//! Invariant: the values are never dequantised here; vectors of norms, which are small, are the exception.

use wgpu::BufferUsages;

use super::gpu::{Gpu, Options};
use super::packing::{block_words, pack_row};
use crate::device::{DeviceError, WeightSource};
use crate::program::{Weight, WeightId};

/// Upload size after which the device is waited for, so that staging memory stays small.
const UPLOAD_BYTES: usize = 16 << 20;

/// Neighbouring rows of a weight.
pub(super) struct Part {
    /// Row of the weight that is this part's first.
    pub(super) first_row: usize,
    /// Rows.
    pub(super) rows: usize,
    /// Blocks' values.
    pub(super) values: wgpu::Buffer,
    /// Blocks' scales; 16 bytes of nothing for formats that have none.
    pub(super) scales: wgpu::Buffer,
}

/// Uploads a matrix.
pub(super) fn upload(
    gpu: &Gpu,
    weight: &Weight,
    stored: &[u8],
    options: Options,
) -> Result<Vec<Part>, DeviceError> {
    let row_bytes = check_length(weight, stored)?;
    let blocks = weight.columns.div_ceil(32);
    let packed_row = blocks * block_words(weight.format) * 4;
    let most_rows = options.max_binding / packed_row as u64;
    if most_rows == 0 {
        return Err(DeviceError::Limit {
            what: format!("a row of {}", weight.name),
            needed: packed_row as u64,
            allowed: options.max_binding,
            unit: "bytes in one binding",
        });
    }
    let most_rows = usize::try_from(most_rows).unwrap_or(usize::MAX).min(weight.rows).max(1);
    let mut parts = Vec::new();
    for (index, bytes) in stored.chunks(most_rows * row_bytes).enumerate() {
        let rows = bytes.len() / row_bytes;
        let values = gpu.storage(&weight.name, (rows * packed_row) as u64, options)?;
        let mut scales = Vec::new();
        let rows_at_once = (UPLOAD_BYTES / packed_row).max(1);
        for (chunk, bytes) in bytes.chunks(rows_at_once * row_bytes).enumerate() {
            let mut words = Vec::with_capacity(bytes.len() / row_bytes * packed_row / 4);
            for row in bytes.chunks_exact(row_bytes) {
                pack_row(weight.format, row, &mut words, &mut scales);
                words.resize(words.len().next_multiple_of(packed_row / 4), 0);
            }
            let offset = (chunk * rows_at_once * packed_row) as u64;
            gpu.queue.write_buffer(&values, offset, bytemuck::cast_slice(&words));
            gpu.queue.submit([]);
            gpu.wait()?;
        }
        // Kernels that put a word together from two halves read the word after it too.
        scales.resize((scales.len() + 4).next_multiple_of(16), 0);
        let buffer = gpu.storage(&weight.name, scales.len() as u64, options)?;
        gpu.queue.write_buffer(&buffer, 0, &scales);
        parts.push(Part { first_row: index * most_rows, rows, values, scales: buffer });
    }
    gpu.check()?;
    Ok(parts)
}

/// The values of a vector.
pub(super) fn dequantized_vector(weight: &Weight, stored: &[u8]) -> Result<Vec<f32>, DeviceError> {
    check_length(weight, stored)?;
    let mut values = vec![0.0f32; weight.rows * weight.columns];
    weight.format.dequantize(stored, &mut values);
    Ok(values)
}

/// Uploads the vector of a norm or a bias, as `f32`.
pub(super) fn upload_vector(
    gpu: &Gpu,
    weight: &Weight,
    stored: &[u8],
    options: Options,
) -> Result<wgpu::Buffer, DeviceError> {
    let values = dequantized_vector(weight, stored)?;
    let buffer = gpu.storage(&weight.name, (values.len() * 4) as u64, options)?;
    gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(&values));
    gpu.check()?;
    Ok(buffer)
}

/// Bytes of a weight's stored row.
fn check_length(weight: &Weight, stored: &[u8]) -> Result<usize, DeviceError> {
    match weight.format.row_bytes(weight.columns) {
        Some(row_bytes) if row_bytes > 0 && row_bytes.checked_mul(weight.rows) == Some(stored.len()) => {
            Ok(row_bytes)
        }
        row_bytes => Err(DeviceError::Failed(format!(
            "{} has {} bytes; {} rows of {} {} values take {row_bytes:?} bytes each",
            weight.name,
            stored.len(),
            weight.rows,
            weight.columns,
            weight.format.name()
        ))),
    }
}

/// The weights that a program's ops use, uploaded the first time they are asked for.
pub(super) struct Weights<'a> {
    gpu: &'a Gpu,
    options: Options,
    declared: &'a [Weight],
    source: &'a dyn WeightSource,
    matrices: Vec<Option<Vec<Part>>>,
}

impl<'a> Weights<'a> {
    pub(super) fn new(
        gpu: &'a Gpu,
        options: Options,
        declared: &'a [Weight],
        source: &'a dyn WeightSource,
    ) -> Weights<'a> {
        let matrices = declared.iter().map(|_| None).collect();
        Weights { gpu, options, declared, source, matrices }
    }

    /// The parts of a matrix.
    pub(super) fn matrix(&mut self, id: WeightId) -> Result<&[Part], DeviceError> {
        if self.matrices[id.0].is_none() {
            let parts = upload(self.gpu, &self.declared[id.0], self.source.weight(id), self.options)?;
            self.matrices[id.0] = Some(parts);
        }
        Ok(self.matrices[id.0].as_deref().unwrap_or_default())
    }

    /// The vector of a norm or a bias.
    pub(super) fn vector(&self, id: WeightId) -> Result<wgpu::Buffer, DeviceError> {
        upload_vector(self.gpu, &self.declared[id.0], self.source.weight(id), self.options)
    }
}

/// A buffer of uniform data.
pub(super) fn uniform(gpu: &Gpu, what: &str, words: &[u32]) -> Result<wgpu::Buffer, DeviceError> {
    let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
    let buffer = gpu.buffer(what, (words.len() * 4) as u64, usage)?;
    gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
    Ok(buffer)
}
