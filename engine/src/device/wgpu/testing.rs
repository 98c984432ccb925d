//! What tests of kernels and of the device share: an adapter, random weights, and a rig that runs a program
//! on chosen activations and shows what became of every buffer.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::gpu::{Array, Gpu, Options};
use super::shader::{Mapping, TEXEL_BYTES, stride};
use super::{WgpuDevice, adapter};
use crate::device::{
    Batch, BatchSequence, Candidate, Device, DeviceError, DeviceLimits, ExecuteTimes, WeightSource,
};
use crate::program::{Buffer, BufferId, Op, OpKind, Program, Rows, Weight, WeightId};
use crate::tensor_type::TensorType;

/// What outputs hold before a kernel writes them, and what must be left where it does not.
pub(crate) const POISON: u32 = u32::MAX;

/// Says why a test does nothing; a failure where an adapter is required.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
pub(crate) fn skip(reason: &str) {
    let required = std::env::var("LIMPID_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(!required || reason == "there is a GPU", "LIMPID_REQUIRE_GPU=1, and {reason}");
    eprintln!("skipped: {reason}");
}

/// A device of the test's own, or a stated skip.
pub(super) fn own_gpu() -> Option<Arc<Gpu>> {
    match adapter::best(false) {
        Ok(adapters) => Some(Arc::new(Gpu::open(&adapters[0], None).expect("the adapter opens"))),
        Err(error) => {
            skip(&error.to_string());
            None
        }
    }
}

/// The device that tests share, with its pipelines.
pub(super) fn shared_gpu() -> Option<Arc<Gpu>> {
    static GPU: OnceLock<Option<Arc<Gpu>>> = OnceLock::new();
    GPU.get_or_init(own_gpu).clone()
}

/// Every way to spread the work: the adapter's own first.
pub(crate) const MAPPINGS: [Option<Mapping>; 4] = [
    None,
    Some(Mapping::Software { shuffle: false }),
    Some(Mapping::Hardware { subgroups: false }),
    Some(HARDWARE),
];

/// What most GPUs have.
pub(crate) const HARDWARE: Mapping = Mapping::Hardware { subgroups: true };

/// Stored weights by number.
pub(crate) struct Stored(pub(crate) Vec<Vec<u8>>);

impl WeightSource for Stored {
    fn weight(&self, id: WeightId) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.0[id.0])
    }
}

/// Seeded random numbers.
pub(crate) struct Random(ChaCha8Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(crate) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.0.random_range(-1.0..1.0)).collect()
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.0.random_range(0..bound)
    }

    /// A stored weight whose values are about as large as `size`.
    pub(crate) fn weight(&mut self, weight: &Weight, size: f32) -> Vec<u8> {
        let format = weight.format;
        let blocks = weight.rows * weight.columns / format.block_elements();
        let mut bytes = Vec::with_capacity(weight.bytes());
        for _ in 0..blocks {
            let value: f32 = self.0.random_range(-size..size);
            let scales: &[f32] = match format {
                TensorType::F32 => {
                    bytes.extend(value.to_le_bytes());
                    continue;
                }
                TensorType::Bf16 => {
                    bytes.extend(bf16::from_f32(value).to_le_bytes());
                    continue;
                }
                TensorType::F16 => &[value],
                TensorType::Q4_0 => &[value / 8.0],
                TensorType::Q4_1 => &[value / 8.0, -value],
                TensorType::Q8_0 => &[value / 127.0],
                _ => {
                    let values: Vec<f32> =
                        (0..format.block_elements()).map(|_| self.0.random_range(-size..size)).collect();
                    bytes.extend(format.quantize(&values));
                    continue;
                }
            };
            bytes.extend(scales.iter().flat_map(|scale| f16::from_f32(*scale).to_le_bytes()));
            let mut quanta = vec![0; format.block_bytes() - 2 * scales.len()];
            self.0.fill_bytes(&mut quanta);
            bytes.extend(quanta);
        }
        bytes
    }
}

/// A program of one op; logits are the last buffer whose rows are [`Rows::Logits`], a spare one if none is.
pub(crate) fn one_op(kind: OpKind, mut buffers: Vec<Buffer>, weights: Vec<Weight>) -> Program {
    let logits = buffers.iter().rposition(|buffer| buffer.rows == Rows::Logits).unwrap_or_else(|| {
        buffers.push(Buffer { name: "logits", rows: Rows::Logits, width: 1 });
        buffers.len() - 1
    });
    let ops = vec![Op { name: "op".to_owned(), kind }];
    Program {
        buffers,
        weights,
        ops,
        logits: BufferId(logits),
        num_layers: 1,
        num_kv_heads: 1,
        head_size: 1,
        value_head_size: 1,
    }
}

/// A buffer with a row for each token.
pub(crate) fn tokens(name: &'static str, width: usize) -> Buffer {
    Buffer { name, rows: Rows::Tokens, width }
}

/// A weight without a name.
pub(crate) fn weight(format: TensorType, rows: usize, columns: usize) -> Weight {
    Weight { name: "weight".to_owned(), format, rows, columns }
}

/// One sequence of this many rows from position 0, slots in order, logits of the last row.
pub(crate) fn one_sequence(rows: usize, block_size: usize) -> Batch {
    let rows = rows as u32;
    Batch {
        tokens: vec![0; rows as usize],
        positions: (0..rows).collect(),
        slots: (0..rows).collect(),
        sequences: vec![BatchSequence {
            first_row: 0,
            num_rows: rows,
            context_len: rows,
            block_table_start: 0,
        }],
        block_tables: (0..rows.div_ceil(block_size as u32)).collect(),
        logits_rows: vec![rows - 1],
        candidates: vec![],
    }
}

/// Room for one sequence of `rows` rows, and two guard rows.
pub(crate) fn limits_for(rows: usize) -> DeviceLimits {
    let (block_size, max_tokens) = (16, rows + 2);
    let blocks = max_tokens.div_ceil(block_size);
    DeviceLimits {
        num_blocks: blocks,
        block_size,
        max_tokens,
        max_sequences: 4,
        max_blocks_per_sequence: blocks,
    }
}

/// A program on the shared device, with access to its buffers.
pub(crate) struct Rig {
    pub(super) device: WgpuDevice,
}

impl Rig {
    /// Opens the program; `None` is a skip, already said.
    pub(crate) fn open(program: &Program, weights: &Stored, limits: DeviceLimits) -> Option<Rig> {
        Some(Rig::try_open(program, weights, limits, |_| ())?.expect("the program opens"))
    }

    /// Opens the program with a mapping (`None`: the adapter's own).
    pub(crate) fn mapped(
        program: &Program,
        weights: &Stored,
        limits: DeviceLimits,
        mapping: Option<Mapping>,
    ) -> Option<Rig> {
        let rig = Rig::try_open(program, weights, limits, |options| {
            options.mapping = mapping.unwrap_or(options.mapping);
        });
        Some(rig?.expect("the program opens"))
    }

    /// Opens the program with few workgroups to a dimension.
    pub(crate) fn folded(
        program: &Program,
        weights: &Stored,
        limits: DeviceLimits,
        max_workgroups: u32,
    ) -> Option<Rig> {
        let rig = Rig::try_open(program, weights, limits, |options| options.max_workgroups = max_workgroups);
        Some(rig?.expect("the program opens"))
    }

    /// Opens the program with changed options.
    pub(crate) fn try_open(
        program: &Program,
        weights: &Stored,
        limits: DeviceLimits,
        change: impl FnOnce(&mut Options),
    ) -> Option<Result<Rig, DeviceError>> {
        Some(Rig::on(shared_gpu()?, program, weights, limits, change))
    }

    /// Opens the program on this device.
    pub(super) fn on(
        gpu: Arc<Gpu>,
        program: &Program,
        weights: &Stored,
        limits: DeviceLimits,
        change: impl FnOnce(&mut Options),
    ) -> Result<Rig, DeviceError> {
        let mut options = gpu.options();
        change(&mut options);
        let info = crate::device::DeviceInfo {
            kind: "wgpu",
            name: String::new(),
            device_type: String::new(),
            backend: String::new(),
            driver: String::new(),
        };
        let device = WgpuDevice::open(gpu, info, program, weights, limits, options)?;
        Ok(Rig { device })
    }

    /// Fills the first rows of a buffer.
    pub(crate) fn write(&self, id: usize, rows: &[f32]) {
        let width = self.device.program.buffers[id].width;
        let mut padded = Vec::new();
        for row in rows.chunks_exact(width) {
            padded.extend_from_slice(row);
            padded.resize(padded.len().next_multiple_of(stride(width)), 0.0);
        }
        for array in self.device.plan.activations.arrays(BufferId(id)) {
            self.upload(array, &padded);
        }
    }

    /// Fills a buffer, guard rows included, with [`POISON`]; what lies between its rows stays zero.
    pub(crate) fn poison(&self, id: usize) {
        let poison = self.row_capacity(id) * self.device.program.buffers[id].width;
        self.write(id, &vec![f32::from_bits(POISON); poison]);
    }

    fn row_capacity(&self, id: usize) -> usize {
        let limits = &self.device.limits;
        match self.device.program.buffers[id].rows {
            Rows::Tokens => limits.max_tokens,
            Rows::Logits => limits.max_sequences,
        }
    }

    /// The first rows of a buffer, after a look at the rest: [`POISON`] in the rows behind them, zeros between
    /// rows.
    pub(crate) fn read(&self, id: usize, rows: usize) -> Vec<f32> {
        let width = self.device.program.buffers[id].width;
        let mut all = self.all_of(self.device.plan.activations.now(BufferId(id)));
        all.truncate(self.row_capacity(id) * stride(width));
        let mut values = Vec::with_capacity(rows * width);
        for (index, row) in all.chunks_exact(stride(width)).enumerate() {
            let (row, between) = row.split_at(width);
            assert!(between.iter().all(|value| value.to_bits() == 0), "written behind row {index}");
            if index < rows {
                values.extend_from_slice(row);
            } else {
                let untouched = row.iter().all(|value| value.to_bits() == POISON);
                assert!(untouched, "guard row {index} of {rows} was written");
            }
        }
        values
    }

    /// Fills keys (0) or values (1) of layer 0 from the first slot on.
    pub(crate) fn write_cache(&self, half: usize, values: &[f32]) {
        self.upload(&self.device.plan.cache[0][half], values);
    }

    /// All slots of keys (0) or values (1) of layer 0.
    pub(crate) fn read_cache(&self, half: usize) -> Vec<f32> {
        let limits = &self.device.limits;
        let mut all = self.all_of(&self.device.plan.cache[0][half]);
        let program = &self.device.program;
        let width = [program.key_width(), program.value_width()][half];
        all.truncate(limits.num_blocks * limits.block_size * width);
        all
    }

    /// Whether attention splits this batch's pasts.
    pub(crate) fn splits(&self, batch: &Batch) -> bool {
        self.device.plan.extent(batch).partitions.is_some()
    }

    /// Runs a batch; the logits are of no interest.
    pub(crate) fn run(&mut self, batch: &Batch) {
        self.device.execute(batch, &mut Vec::new()).expect("the batch runs");
    }

    /// Runs a batch.
    pub(crate) fn execute(
        &mut self,
        batch: &Batch,
        logits: &mut Vec<f32>,
    ) -> Result<ExecuteTimes, DeviceError> {
        self.device.execute(batch, logits)
    }

    /// Most candidates of a row that can be asked for.
    pub(crate) fn max_candidates(&self) -> usize {
        self.device.max_candidates()
    }

    /// What the last batch picked.
    pub(crate) fn candidates(&self) -> &[Candidate] {
        self.device.candidates()
    }

    /// The device alone, for whoever takes any.
    pub(crate) fn into_device(self) -> Box<dyn Device> {
        Box::new(self.device)
    }

    /// Runs step data that no sound batch could have.
    pub(crate) fn run_unchecked(&mut self, change: impl FnOnce(&mut Vec<u32>), batch: &Batch) {
        let device = &mut self.device;
        super::step::lay_out(batch, &device.limits, 1, &device.plan.ropes, &mut device.words);
        change(&mut device.words);
        device.run(batch).expect("the step runs");
        device.read(batch, &mut Vec::new()).expect("the step has results");
    }

    /// Fills an array from its start on.
    fn upload(&self, array: &Array, values: &[f32]) {
        let gpu = &self.device.gpu;
        match array {
            Array::Buffer(buffer) => gpu.queue.write_buffer(buffer, 0, bytemuck::cast_slice(values)),
            Array::Texels(texture) => {
                let mut padded = values.to_vec();
                padded.resize(values.len().next_multiple_of(4 * texture.width() as usize), 0.0);
                gpu.write_texels(texture, 0, bytemuck::cast_slice(&padded));
            }
        }
    }

    fn all_of(&self, array: &Array) -> Vec<f32> {
        let texture = match array {
            Array::Buffer(buffer) => {
                return self.copied(buffer.size(), |encoder, copy| {
                    encoder.copy_buffer_to_buffer(buffer, 0, copy, 0, copy.size());
                });
            }
            Array::Texels(texture) => texture,
        };
        // A copy's rows begin where the copy allows.
        let row_bytes = texture.width() * TEXEL_BYTES as u32;
        let copied_bytes = row_bytes.next_multiple_of(wgpu::COPY_BYTES_PER_ROW_ALIGNMENT);
        let mut all = self.copied(u64::from(copied_bytes * texture.height()), |encoder, copy| {
            let layout = wgpu::TexelCopyBufferLayout {
                offset: 0,
                bytes_per_row: Some(copied_bytes),
                rows_per_image: None,
            };
            let to = wgpu::TexelCopyBufferInfo { buffer: copy, layout };
            encoder.copy_texture_to_buffer(texture.as_image_copy(), to, texture.size());
        });
        let (row, copied) = (row_bytes as usize / 4, copied_bytes as usize / 4);
        for index in 0..texture.height() as usize {
            all.copy_within(index * copied..index * copied + row, index * row);
        }
        all.truncate(row * texture.height() as usize);
        all
    }

    fn copied(&self, bytes: u64, record: impl FnOnce(&mut wgpu::CommandEncoder, &wgpu::Buffer)) -> Vec<f32> {
        let gpu = &self.device.gpu;
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let copy = gpu.buffer("copy", bytes, usage).expect("the copy has room");
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        record(&mut encoder, &copy);
        gpu.queue.submit([encoder.finish()]);
        copy.map_async(wgpu::MapMode::Read, .., |_| ());
        gpu.wait().expect("the copy is made");
        let view = copy.get_mapped_range(..).expect("the copy is mapped");
        bytemuck::cast_slice(&view).to_vec()
    }
}

/// Asserts that values agree within `tolerance` times the size each was made of.
pub(crate) fn assert_close(what: &str, found: &[f32], expected: &[f32], sizes: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    for (index, ((found, expected), size)) in found.iter().zip(expected).zip(sizes).enumerate() {
        let difference = (found - expected).abs();
        // Not `difference > …`: a NaN must not pass.
        let close = difference <= tolerance * size.max(1e-3);
        assert!(close, "{what}: value {index} is {found}, expected {expected}");
    }
}
