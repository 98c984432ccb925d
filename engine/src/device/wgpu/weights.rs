//! Weights on the device: as stored, sorted into what kernels read aligned.
//!
//! What [`super::packing`] makes of a stored row goes to two buffers, one of values and one of scales. A weight over
//! the binding limit is cut between rows into parts. Where kernels load from textures, it goes to two textures instead.
//!
//! Invariant: the values are never dequantised here; vectors of norms, which are small, are the exception.

use std::borrow::Cow;

use wgpu::BufferUsages;

use super::gpu::{Array, Gpu, Options};
use super::packing::{block_words, pack_row};
use super::shader::{TEXEL_BYTES, TEXELS_PER_ROW, Texel};
use crate::device::{DeviceError, WeightSource};
use crate::kernels::matmul::unit;
use crate::program::{Weight, WeightId};
use crate::tensor_type::TensorType;

/// Upload size after which the device is waited for, so that staging memory stays small.
const UPLOAD_BYTES: usize = 16 << 20;

/// Bytes of a row of texels.
const ROW_OF_TEXELS: usize = TEXELS_PER_ROW as usize * TEXEL_BYTES;

/// Rows whose blocks alternate in a texture.
const SIDE_BY_SIDE: usize = 32;

/// Neighbouring rows of a weight.
pub(super) struct Part {
    /// Row of the weight that is this part's first.
    pub(super) first_row: usize,
    /// Rows.
    pub(super) rows: usize,
    /// Blocks' values.
    pub(super) values: Array,
    /// Blocks' scales; 16 bytes of nothing for formats that have none.
    pub(super) scales: Array,
}

/// What is uploaded as one matrix.
struct Matrix<'a> {
    name: &'a str,
    format: TensorType,
    columns: usize,
    /// Stored rows.
    rows: Vec<&'a [u8]>,
}

/// Uploads a matrix.
fn upload(gpu: &Gpu, matrix: &Matrix<'_>, options: Options) -> Result<Vec<Part>, DeviceError> {
    let Matrix { name, format, columns, ref rows } = *matrix;
    let packed_row = columns.div_ceil(32) * block_words(format) * 4;
    let in_texels = options.mapping.is_software();
    let most_rows = if in_texels {
        rows.len()
    } else {
        let most_rows = options.max_binding / packed_row as u64;
        if most_rows == 0 {
            return Err(DeviceError::Limit {
                what: format!("a row of {name}"),
                needed: packed_row as u64,
                allowed: options.max_binding,
                unit: "bytes in one binding",
            });
        }
        usize::try_from(most_rows).unwrap_or(usize::MAX).min(rows.len())
    };
    let mut parts = Vec::new();
    for (index, rows) in rows.chunks(most_rows.max(1)).enumerate() {
        let packed = |rows: usize| (rows * packed_row) as u64;
        let values = if in_texels {
            let rows = rows.len().next_multiple_of(SIDE_BY_SIDE);
            Array::Texels(gpu.texels(name, packed(rows).div_ceil(16), Texel::Words, options)?)
        } else {
            Array::Buffer(gpu.storage(name, packed(rows.len()), options)?)
        };
        let mut scales = Vec::new();
        let mut words = Vec::new();
        let mut written = 0;
        for group in rows.chunks(SIDE_BY_SIDE) {
            if in_texels {
                pack_side_by_side(format, columns, group, &mut words, &mut scales);
            } else {
                for row in group {
                    pack_row(format, row, &mut words, &mut scales);
                    words.resize(words.len().next_multiple_of(packed_row / 4), 0);
                }
            }
            if words.len() * 4 >= UPLOAD_BYTES {
                // The rest of a row of texels waits for what follows.
                let whole = words.len() / (ROW_OF_TEXELS / 4) * (ROW_OF_TEXELS / 4);
                write(gpu, &values, written, bytemuck::cast_slice(&words[..whole]));
                gpu.queue.submit([]);
                gpu.wait()?;
                written += whole * 4;
                words.drain(..whole);
            }
        }
        write(gpu, &values, written, bytemuck::cast_slice(&words));
        gpu.queue.submit([]);
        gpu.wait()?;
        // Kernels that put a word together from two halves read the word after it too.
        scales.resize((scales.len() + 4).next_multiple_of(16), 0);
        let packed_scales = if in_texels {
            Array::Texels(gpu.texels(name, scales.len() as u64 / 16, Texel::Words, options)?)
        } else {
            Array::Buffer(gpu.storage(name, scales.len() as u64, options)?)
        };
        write(gpu, &packed_scales, 0, &scales);
        let first_row = index * most_rows;
        parts.push(Part { first_row, rows: rows.len(), values, scales: packed_scales });
    }
    gpu.check()?;
    Ok(parts)
}

/// Packs up to [`SIDE_BY_SIDE`] rows, filled up with rows of zeros, as `block_index` of `stored_texels.wgsl` finds
/// their blocks.
fn pack_side_by_side(
    format: TensorType,
    columns: usize,
    group: &[&[u8]],
    words: &mut Vec<u32>,
    scales: &mut Vec<u8>,
) {
    let units = columns.div_ceil(32) / unit(format);
    let unit_words = block_words(format) * unit(format);
    let zeros = vec![0; group.first().map_or(0, |row| row.len())];
    let mut packed: Vec<(Vec<u32>, Vec<u8>)> = Vec::with_capacity(SIDE_BY_SIDE);
    for index in 0..SIDE_BY_SIDE {
        let (mut own_words, mut own_scales) = (Vec::new(), Vec::new());
        pack_row(format, group.get(index).unwrap_or(&zeros.as_slice()), &mut own_words, &mut own_scales);
        own_words.resize(units * unit_words, 0);
        packed.push((own_words, own_scales));
    }
    for place in 0..units {
        for (own_words, own_scales) in &packed {
            let unit_scales = own_scales.len() / units;
            words.extend_from_slice(&own_words[place * unit_words..][..unit_words]);
            scales.extend_from_slice(&own_scales[place * unit_scales..][..unit_scales]);
        }
    }
}

/// Writes from a place on; in a texture that is the start of a row of texels, and the last row is filled up.
fn write(gpu: &Gpu, to: &Array, offset: usize, bytes: &[u8]) {
    match to {
        Array::Buffer(buffer) => gpu.queue.write_buffer(buffer, offset as u64, bytes),
        Array::Texels(texture) => {
            let (whole, rest) = bytes.split_at(bytes.len() / ROW_OF_TEXELS * ROW_OF_TEXELS);
            let first_row = offset / ROW_OF_TEXELS;
            if !whole.is_empty() {
                gpu.write_texels(texture, first_row as u32, whole);
            }
            if !rest.is_empty() {
                let mut rest = rest.to_vec();
                rest.resize(ROW_OF_TEXELS, 0);
                let row = first_row + whole.len() / ROW_OF_TEXELS;
                gpu.write_texels(texture, row as u32, &rest);
            }
        }
    }
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

/// A matrix as its source has it.
struct Stored<'a> {
    bytes: Cow<'a, [u8]>,
    row_bytes: usize,
}

impl Stored<'_> {
    fn rows(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.row_bytes)
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
            let stored = self.stored(id)?;
            self.matrices[id.0] =
                Some(upload(self.gpu, &self.of(id, stored.rows().collect()), self.options)?);
        }
        Ok(self.parts(id))
    }

    /// The parts of a matrix that is there.
    pub(super) fn parts(&self, id: WeightId) -> &[Part] {
        self.matrices[id.0].as_deref().unwrap_or_default()
    }

    /// The parts of several matrices of one format and width, one after the other.
    pub(super) fn joined(&self, ids: &[WeightId]) -> Result<Vec<Part>, DeviceError> {
        let stored = ids.iter().map(|id| self.stored(*id)).collect::<Result<Vec<_>, _>>()?;
        let rows = stored.iter().flat_map(|stored| stored.rows()).collect();
        upload(self.gpu, &self.of(ids[0], rows), self.options)
    }

    /// The parts of two matrices of one format and size, `run` rows of each in turn, filled up with rows of zeros.
    pub(super) fn alternating(&self, ids: [WeightId; 2], run: usize) -> Result<Vec<Part>, DeviceError> {
        let stored = [self.stored(ids[0])?, self.stored(ids[1])?];
        let [first, second]: [Vec<&[u8]>; 2] = stored.each_ref().map(|stored| stored.rows().collect());
        let zeros = vec![0; first.first().map_or(0, |row| row.len())];
        let mut rows: Vec<&[u8]> = Vec::with_capacity(2 * first.len().next_multiple_of(run));
        for runs in first.chunks(run).zip(second.chunks(run)) {
            for chosen in [runs.0, runs.1] {
                rows.extend(chosen);
                rows.resize(rows.len().next_multiple_of(run), &zeros);
            }
        }
        upload(self.gpu, &self.of(ids[0], rows), self.options)
    }

    fn of<'r>(&'r self, id: WeightId, rows: Vec<&'r [u8]>) -> Matrix<'r> {
        let Weight { ref name, format, columns, .. } = self.declared[id.0];
        Matrix { name, format, columns, rows }
    }

    fn stored(&self, id: WeightId) -> Result<Stored<'a>, DeviceError> {
        let bytes = self.source.weight(id);
        let row_bytes = check_length(&self.declared[id.0], &bytes)?;
        Ok(Stored { bytes, row_bytes })
    }

    /// The vector of a norm, as a texture if what it norms is one.
    pub(super) fn vector_beside(&self, id: WeightId, normed: &Array) -> Result<Array, DeviceError> {
        match normed {
            Array::Texels(_) => self.vector_in_texels(id).map(Array::Texels),
            Array::Buffer(_) => self.vector(id).map(Array::Buffer),
        }
    }

    /// The vector of a norm as a texture of one row, for widths in fours.
    fn vector_in_texels(&self, id: WeightId) -> Result<wgpu::Texture, DeviceError> {
        let weight = &self.declared[id.0];
        let values = dequantized_vector(weight, &self.source.weight(id))?;
        let texture = self.gpu.texture(&weight.name, [values.len() as u32 / 4, 1], Texel::Floats)?;
        self.gpu.write_texels(&texture, 0, bytemuck::cast_slice(&values));
        Ok(texture)
    }

    /// The vector of a norm or a bias.
    pub(super) fn vector(&self, id: WeightId) -> Result<wgpu::Buffer, DeviceError> {
        upload_vector(self.gpu, &self.declared[id.0], &self.source.weight(id), self.options)
    }
}

/// A buffer of uniform data.
pub(super) fn uniform(gpu: &Gpu, what: &str, words: &[u32]) -> Result<wgpu::Buffer, DeviceError> {
    let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
    let buffer = gpu.buffer(what, (words.len() * 4) as u64, usage)?;
    gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(words));
    Ok(buffer)
}
