//! A wgpu device with what is made from it: buffers within the limits, layouts, pipelines, and the faults it
//! reported.
//!
//! Invariant: nothing is asked of the driver that is over its limits; an error of the driver is kept until
//! [`Gpu::check`] hands it out, and a lost device stays lost.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wgpu::{BufferUsages, DeviceType, Features, Limits};

use super::adapter::error_chain;
use super::pipelines::PipelineFile;
use super::shader::{Access, Kernel, Mapping, Place, TEXEL_BYTES, TEXELS_PER_ROW, Texel};
use crate::device::DeviceError;
use crate::device::turns::give_way;

/// What may differ from what the adapter offers. Tests force small limits and the other mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How matmul and attention are spread over threads.
    pub(crate) mapping: Mapping,
    /// Most bytes in one storage binding.
    pub(crate) max_binding: u64,
    /// Most workgroups in one dimension of a dispatch.
    pub(crate) max_workgroups: u32,
    /// Most rows of texels in a texture.
    pub(crate) max_texel_rows: u32,
    /// Measure the forward pass.
    pub(crate) timestamps: bool,
}

/// Values on the device.
#[derive(Clone)]
pub(super) enum Array {
    Buffer(wgpu::Buffer),
    Texels(wgpu::Texture),
}

impl Array {
    /// Whether it is a texture.
    pub(super) fn is_texels(&self) -> bool {
        matches!(self, Array::Texels(_))
    }

    /// How an op binds it, which takes another array for both input and output if this is `shared`.
    pub(super) fn place(&self, shared: bool) -> Place {
        match self {
            Array::Texels(_) => Place::Texels,
            Array::Buffer(_) if shared => Place::SharedBuffer,
            Array::Buffer(_) => Place::Buffer,
        }
    }

    /// The buffer of what is none.
    ///
    /// # Panics
    /// It is a texture.
    pub(super) fn buffer(&self) -> &wgpu::Buffer {
        match self {
            Array::Buffer(buffer) => buffer,
            Array::Texels(_) => unreachable!("nothing but a product reads a texture"),
        }
    }
}

/// An open wgpu device.
pub(super) struct Gpu {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    limits: Limits,
    features: Features,
    software: bool,
    subgroup_size: Option<u32>,
    faults: Arc<Faults>,
    layouts: Mutex<HashMap<Vec<Access>, wgpu::BindGroupLayout>>,
    pipelines: Mutex<HashMap<Arc<str>, wgpu::ComputePipeline>>,
    /// Where the driver's part of them outlives the process.
    pub(super) pipeline_file: Option<PipelineFile>,
}

#[derive(Default)]
struct Faults {
    lost: Mutex<Option<String>>,
    failed: Mutex<Option<DeviceError>>,
}

/// A software adapter starts the threads it computes with, and they are scheduled as the thread that opens it is.
fn on_a_thread_that_gives_way<T: Send>(open: impl FnOnce() -> T + Send) -> Result<T, DeviceError> {
    std::thread::scope(|scope| {
        let opener =
            std::thread::Builder::new().name("limpid-software".to_owned()).spawn_scoped(scope, || {
                give_way();
                open()
            });
        let opener =
            opener.map_err(|error| DeviceError::Failed(format!("cannot start a thread: {error}")))?;
        Ok(opener.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

impl Gpu {
    /// Opens the adapter with everything it offers that is of use. Compiled pipelines are kept in `directory`, if any.
    pub(super) fn open(adapter: &wgpu::Adapter, directory: Option<&Path>) -> Result<Gpu, DeviceError> {
        let info = adapter.get_info();
        let software = info.device_type == DeviceType::Cpu;
        let mut wanted = Features::TIMESTAMP_QUERY | Features::SUBGROUP;
        if directory.is_some() {
            wanted |= Features::PIPELINE_CACHE;
        }
        let (features, limits) = (adapter.features() & wanted, adapter.limits());
        let request = || {
            pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
                label: Some("limpid"),
                required_features: features,
                required_limits: limits.clone(),
                ..Default::default()
            }))
        };
        let opened = if software { on_a_thread_that_gives_way(request)? } else { request() };
        let (device, queue) = opened.map_err(|error| DeviceError::Failed(error_chain(&error)))?;
        let faults = Arc::new(Faults::default());
        let lost = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, message| {
            lock(&lost.lost).get_or_insert_with(|| format!("{reason:?}: {message}"));
        });
        let failed = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            lock(&failed.failed).get_or_insert_with(|| DeviceError::Failed(error_chain(&error)));
        }));
        let uniform = info.subgroup_min_size == info.subgroup_max_size;
        let mut gpu = Gpu {
            device,
            queue,
            limits,
            features,
            software,
            subgroup_size: uniform.then_some(info.subgroup_min_size),
            faults,
            layouts: Mutex::default(),
            pipelines: Mutex::default(),
            pipeline_file: None,
        };
        gpu.pipeline_file = directory.and_then(|directory| PipelineFile::open(&gpu, &info, directory));
        Ok(gpu)
    }

    /// What the adapter offers.
    pub(super) fn options(&self) -> Options {
        let subgroups = self.features.contains(Features::SUBGROUP);
        // Shuffling needs the 8 threads of a workgroup to be one subgroup, whole.
        let shuffle = subgroups && self.subgroup_size == Some(8);
        Options {
            mapping: match self.software {
                true => Mapping::Software { shuffle },
                false => Mapping::Hardware { subgroups },
            },
            // Kernels count in 32-bit words.
            max_binding: self.limits.max_storage_buffer_binding_size.min(u64::from(u32::MAX)) / 4 * 4,
            max_workgroups: self.limits.max_compute_workgroups_per_dimension,
            max_texel_rows: self.limits.max_texture_dimension_2d,
            timestamps: self.features.contains(Features::TIMESTAMP_QUERY),
        }
    }

    /// An error if the device is lost, or if anything failed since the last call.
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        if let Some(reason) = &*lock(&self.faults.lost) {
            return Err(DeviceError::Lost(reason.clone()));
        }
        lock(&self.faults.failed).take().map_or(Ok(()), Err)
    }

    /// Waits until everything submitted is done, which also frees what was dropped.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        let polled = self.device.poll(wgpu::PollType::wait_indefinitely());
        self.check()?;
        polled.map(|_| ()).map_err(|error| DeviceError::Failed(error_chain(&error)))
    }

    /// A buffer of zeros that kernels bind and that can be copied from and to.
    pub(super) fn storage(
        &self,
        what: &str,
        bytes: u64,
        options: Options,
    ) -> Result<wgpu::Buffer, DeviceError> {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST | BufferUsages::COPY_SRC;
        self.bound(what, bytes, usage, options)
    }

    /// A buffer of zeros that kernels bind.
    pub(super) fn bound(
        &self,
        what: &str,
        bytes: u64,
        usage: BufferUsages,
        options: Options,
    ) -> Result<wgpu::Buffer, DeviceError> {
        if bytes > options.max_binding {
            return Err(DeviceError::Limit {
                what: what.to_owned(),
                needed: bytes,
                allowed: options.max_binding,
                unit: "bytes in one binding",
            });
        }
        self.buffer(what, bytes, usage)
    }

    /// A texture of zeros with room for this many texels.
    pub(super) fn texels(
        &self,
        what: &str,
        count: u64,
        texel: Texel,
        options: Options,
    ) -> Result<wgpu::Texture, DeviceError> {
        let rows = count.div_ceil(u64::from(TEXELS_PER_ROW)).max(1);
        if rows > u64::from(options.max_texel_rows) {
            return Err(DeviceError::Limit {
                what: what.to_owned(),
                needed: rows,
                allowed: u64::from(options.max_texel_rows),
                unit: "rows of texels in one texture",
            });
        }
        self.texture(what, [TEXELS_PER_ROW, rows as u32], texel)
    }

    /// A texture of zeros with so many texels in a row, and so many rows.
    pub(super) fn texture(
        &self,
        what: &str,
        [width, height]: [u32; 2],
        texel: Texel,
    ) -> Result<wgpu::Texture, DeviceError> {
        let texture = self.device.create_texture(&wgpu::TextureDescriptor {
            label: Some(what),
            size: wgpu::Extent3d { width, height, depth_or_array_layers: 1 },
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: texture_format(texel),
            // Never drawn to; but what can be is filled with zeros by drawing, on all cores, and else by copying.
            usage: wgpu::TextureUsages::STORAGE_BINDING
                | wgpu::TextureUsages::RENDER_ATTACHMENT
                | wgpu::TextureUsages::COPY_DST
                | wgpu::TextureUsages::COPY_SRC,
            view_formats: &[],
        });
        self.check()?;
        Ok(texture)
    }

    /// Writes whole rows of texels, from this row on.
    pub(super) fn write_texels(&self, texture: &wgpu::Texture, first_row: u32, bytes: &[u8]) {
        let row_bytes = texture.width() * TEXEL_BYTES as u32;
        let rows = bytes.len() as u32 / row_bytes;
        let to = wgpu::TexelCopyTextureInfo {
            texture,
            mip_level: 0,
            origin: wgpu::Origin3d { x: 0, y: first_row, z: 0 },
            aspect: wgpu::TextureAspect::All,
        };
        let layout = wgpu::TexelCopyBufferLayout {
            offset: 0,
            bytes_per_row: Some(row_bytes),
            rows_per_image: Some(rows),
        };
        let size = wgpu::Extent3d { width: texture.width(), height: rows, depth_or_array_layers: 1 };
        self.queue.write_texture(to, bytes, layout, size);
    }

    /// Any buffer.
    pub(super) fn buffer(
        &self,
        what: &str,
        bytes: u64,
        usage: BufferUsages,
    ) -> Result<wgpu::Buffer, DeviceError> {
        if bytes > self.limits.max_buffer_size {
            return Err(DeviceError::Limit {
                what: what.to_owned(),
                needed: bytes,
                allowed: self.limits.max_buffer_size,
                unit: "bytes in one buffer",
            });
        }
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(what),
            size: bytes.next_multiple_of(16).max(16),
            usage,
            mapped_at_creation: false,
        });
        self.check()?;
        Ok(buffer)
    }

    /// Builds the pipelines of kernels, on all cores.
    pub(super) fn build_pipelines<'k>(
        &self,
        kernels: impl Iterator<Item = &'k Kernel>,
    ) -> Result<(), DeviceError> {
        let by_source: HashMap<&str, &Kernel> = kernels.map(|kernel| (&*kernel.source, kernel)).collect();
        // The longest first, so that no thread is left with one of them in the end.
        let mut kernels: Vec<&Kernel> = by_source.into_values().collect();
        kernels.sort_by_key(|kernel| std::cmp::Reverse(kernel.source.len()));
        let next = AtomicUsize::new(0);
        let build = || -> Result<(), DeviceError> {
            while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.pipeline(kernel)?;
            }
            Ok(())
        };
        let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.min(kernels.len())).map(|_| scope.spawn(build)).collect();
            let joined =
                others.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            std::iter::once(build()).chain(joined).collect()
        })
    }

    /// The pipeline of a kernel, built the first time.
    pub(super) fn pipeline(&self, kernel: &Kernel) -> Result<wgpu::ComputePipeline, DeviceError> {
        if let Some(pipeline) = lock(&self.pipelines).get(&*kernel.source) {
            return Ok(pipeline.clone());
        }
        let mut checks = wgpu::ShaderRuntimeChecks::checked();
        // Bounding the loops a second time keeps drivers from unrolling them: on lavapipe matmul takes two to
        // four times as long. Bounds of buffers stay checked.
        checks.force_loop_bounding = false;
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(kernel.name),
            source: wgpu::ShaderSource::Wgsl((&*kernel.source).into()),
        };
        // SAFETY: the sources are this crate's own, and each of their loops counts up or down to a bound that
        // is fixed before the loop starts, so none is infinite.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let bindings = self.layout(&kernel.storage);
        let layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(kernel.name),
            bind_group_layouts: &[Some(&bindings)],
            immediate_size: 0,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(kernel.name),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: self.pipeline_file.as_ref().map(PipelineFile::cache),
        });
        self.check()?;
        lock(&self.pipelines).insert(Arc::clone(&kernel.source), pipeline.clone());
        Ok(pipeline)
    }

    /// The layout of the one bind group of a kernel.
    pub(super) fn layout(&self, storage: &[Access]) -> wgpu::BindGroupLayout {
        let mut layouts = lock(&self.layouts);
        layouts.entry(storage.to_vec()).or_insert_with(|| self.build_layout(storage)).clone()
    }

    fn build_layout(&self, storage: &[Access]) -> wgpu::BindGroupLayout {
        let entry = |binding: usize, ty: wgpu::BindingType| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty,
            count: None,
        };
        let buffer = |ty: wgpu::BufferBindingType| wgpu::BindingType::Buffer {
            ty,
            has_dynamic_offset: false,
            min_binding_size: None,
        };
        let texture = |access: wgpu::StorageTextureAccess, texel: Texel| wgpu::BindingType::StorageTexture {
            access,
            format: texture_format(texel),
            view_dimension: wgpu::TextureViewDimension::D2,
        };
        let uniform = wgpu::BufferBindingType::Uniform;
        let read_only = |read_only: bool| wgpu::BufferBindingType::Storage { read_only };
        let mut entries =
            vec![entry(0, buffer(uniform)), entry(1, buffer(uniform)), entry(2, buffer(read_only(true)))];
        for (index, access) in storage.iter().enumerate() {
            let ty = match access {
                Access::Read => buffer(read_only(true)),
                Access::Write => buffer(read_only(false)),
                Access::Texels(texel) => texture(wgpu::StorageTextureAccess::ReadOnly, *texel),
                Access::WriteTexels => texture(wgpu::StorageTextureAccess::WriteOnly, Texel::Floats),
            };
            entries.push(entry(3 + index, ty));
        }
        self.device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
    }
}

fn texture_format(texel: Texel) -> wgpu::TextureFormat {
    match texel {
        Texel::Words => wgpu::TextureFormat::Rgba32Uint,
        Texel::Floats => wgpu::TextureFormat::Rgba32Float,
    }
}

/// A panic elsewhere must not turn every later error into one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::on_a_thread_that_gives_way;
    use crate::device::turns::{NICER, NICEST, TURN_NANOSECONDS, turn};

    #[test]
    fn what_a_software_adapter_starts_gives_way_and_who_asked_for_it_does_not() {
        let Some((nice, usual)) = turn() else { return };
        // As a driver's threads do, one that is started there takes over how its starter is scheduled.
        let started = on_a_thread_that_gives_way(|| std::thread::spawn(turn).join().unwrap()).unwrap();
        assert_eq!(started, Some(((nice + NICER).min(NICEST), TURN_NANOSECONDS)));
        assert_eq!(turn(), Some((nice, usual)));
    }
}
