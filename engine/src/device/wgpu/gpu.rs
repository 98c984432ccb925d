//! A wgpu device with what is made from it: buffers within the limits, layouts, pipelines, and the faults it
//! reported.
//!
//! Invariant: nothing is asked of the driver that is over its limits; an error of the driver is kept until
//! [`Gpu::check`] hands it out, and a lost device stays lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wgpu::{BufferUsages, DeviceType, Features, Limits};

use super::adapter::error_chain;
use super::shader::{Access, Kernel, Mapping};
use crate::device::DeviceError;

/// What may differ from what the adapter offers. Tests force small limits and the other mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How matmul and attention are spread over threads.
    pub(crate) mapping: Mapping,
    /// Most bytes in one storage binding.
    pub(crate) max_binding: u64,
    /// Most workgroups in one dimension of a dispatch.
    pub(crate) max_workgroups: u32,
    /// Measure the forward pass.
    pub(crate) timestamps: bool,
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
    layouts: Mutex<HashMap<&'static [Access], wgpu::BindGroupLayout>>,
    pipelines: Mutex<HashMap<String, wgpu::ComputePipeline>>,
}

#[derive(Default)]
struct Faults {
    lost: Mutex<Option<String>>,
    failed: Mutex<Option<DeviceError>>,
}

impl Gpu {
    /// Opens the adapter with everything it offers that is of use.
    pub(super) fn open(adapter: &wgpu::Adapter) -> Result<Gpu, DeviceError> {
        let info = adapter.get_info();
        let software = info.device_type == DeviceType::Cpu;
        let mut wanted = Features::TIMESTAMP_QUERY;
        if software {
            wanted |= Features::SUBGROUP;
        }
        let (features, limits) = (adapter.features() & wanted, adapter.limits());
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("limpid"),
            required_features: features,
            required_limits: limits.clone(),
            ..Default::default()
        });
        let (device, queue) =
            pollster::block_on(request).map_err(|error| DeviceError::Failed(error_chain(&error)))?;
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
        Ok(Gpu {
            device,
            queue,
            limits,
            features,
            software,
            subgroup_size: uniform.then_some(info.subgroup_min_size),
            faults,
            layouts: Mutex::default(),
            pipelines: Mutex::default(),
        })
    }

    /// What the adapter offers.
    pub(super) fn options(&self) -> Options {
        // Shuffling needs the 8 threads of a workgroup to be one subgroup, whole.
        let shuffle = self.features.contains(Features::SUBGROUP) && self.subgroup_size == Some(8);
        Options {
            mapping: if self.software { Mapping::Software { shuffle } } else { Mapping::Hardware },
            // Kernels count in 32-bit words.
            max_binding: self.limits.max_storage_buffer_binding_size.min(u64::from(u32::MAX)) / 4 * 4,
            max_workgroups: self.limits.max_compute_workgroups_per_dimension,
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

    /// The pipeline of a kernel, built the first time.
    pub(super) fn pipeline(&self, kernel: &Kernel) -> Result<wgpu::ComputePipeline, DeviceError> {
        if let Some(pipeline) = lock(&self.pipelines).get(&kernel.source) {
            return Ok(pipeline.clone());
        }
        let mut checks = wgpu::ShaderRuntimeChecks::checked();
        // Bounding the loops a second time keeps drivers from unrolling them: on lavapipe matmul takes two to
        // four times as long. Bounds of buffers stay checked.
        checks.force_loop_bounding = false;
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: Some(kernel.name),
            source: wgpu::ShaderSource::Wgsl(kernel.source.as_str().into()),
        };
        // SAFETY: the sources are this crate's own, and each of their loops counts up or down to a bound that
        // is fixed before the loop starts, so none is infinite.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let bindings = self.layout(kernel.storage);
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
            cache: None,
        });
        self.check()?;
        lock(&self.pipelines).insert(kernel.source.clone(), pipeline.clone());
        Ok(pipeline)
    }

    /// The layout of the one bind group of a kernel.
    pub(super) fn layout(&self, storage: &'static [Access]) -> wgpu::BindGroupLayout {
        lock(&self.layouts).entry(storage).or_insert_with(|| self.build_layout(storage)).clone()
    }

    fn build_layout(&self, storage: &[Access]) -> wgpu::BindGroupLayout {
        let entry = |binding: usize, ty: wgpu::BufferBindingType| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
            count: None,
        };
        let mut entries = vec![
            entry(0, wgpu::BufferBindingType::Uniform),
            entry(1, wgpu::BufferBindingType::Uniform),
            entry(2, wgpu::BufferBindingType::Storage { read_only: true }),
        ];
        for (index, access) in storage.iter().enumerate() {
            let read_only = *access == Access::Read;
            entries.push(entry(3 + index, wgpu::BufferBindingType::Storage { read_only }));
        }
        self.device
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
    }
}

/// A panic elsewhere must not turn every later error into one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
