//! What an adapter can do at most: bytes a second that it reads in order, and multiplications and additions a second.
//!
//! Reading goes the way weights are read: from textures on software adapters, from buffers on others.

use std::time::Instant;

use wgpu::BufferUsages;

use super::gpu::Gpu;
use super::shader::{Access, Kernel, TEXEL_BYTES, Texel};
use super::weights::uniform;
use crate::device::{DeviceError, Peak};

/// Bytes that are read: more than a cache holds.
const BYTES: u64 = 64 << 20;
/// Values that a thread reads, or steps of its multiplications.
const READS: usize = 64;
const STEPS: usize = 1024;
/// Runs, of which the fastest counts.
const RUNS: usize = 5;

/// Measures with commands of their own.
pub(super) fn measure(gpu: &Gpu) -> Result<Peak, DeviceError> {
    let options = gpu.options();
    let software = options.mapping.is_software();
    let workgroup = if software { 8 } else { 256 };
    let bytes = BYTES.min(options.max_binding);
    let small = gpu.storage("a peak's factor", 16, options)?;
    let buffer = gpu.storage("a peak's source", if software { 16 } else { bytes }, options)?;
    let texture = gpu.texels(
        "a peak's source",
        if software { bytes / TEXEL_BYTES as u64 } else { 1 },
        Texel::Floats,
        options,
    )?;
    let view = texture.create_view(&wgpu::TextureViewDescriptor::default());
    let source = match software {
        true => wgpu::BindingResource::TextureView(&view),
        false => buffer.as_entire_binding(),
    };
    let read = match software {
        true => (
            &[Access::Texels(Texel::Floats), Access::Write] as &'static [Access],
            include_str!("peak_read_texels.wgsl"),
        ),
        false => (&[Access::Read, Access::Write] as &'static [Access], include_str!("peak_read_buffer.wgsl")),
    };
    let of = |(storage, work): (&[Access], &str), part| {
        let constants = [("WORKGROUP", workgroup), ("PART", part)];
        Kernel::new("peak", storage, &constants, &[work, include_str!("peak.wgsl")])
    };
    let groups = bytes / (TEXEL_BYTES * READS * workgroup) as u64;
    let read_seconds = fastest(gpu, &of(read, READS), source, groups)?;
    let compute = (&[Access::Read, Access::Write] as &'static [Access], include_str!("peak_compute.wgsl"));
    // Enough for every unit of a large GPU; milliseconds on two cores.
    let compute_groups = if software { 1024 } else { 1 << 14 };
    let kernel = of(compute, STEPS);
    let compute_seconds = fastest(gpu, &kernel, small.as_entire_binding(), compute_groups)?;
    // Four chains of four values.
    let flops = compute_groups as f64 * (workgroup * STEPS * 16 * 2) as f64;
    Ok(Peak {
        bytes_per_second: (groups as usize * TEXEL_BYTES * READS * workgroup) as f64 / read_seconds,
        flops_per_second: flops / compute_seconds,
    })
}

/// Seconds of the fastest of some runs.
fn fastest(
    gpu: &Gpu,
    kernel: &Kernel,
    source: wgpu::BindingResource<'_>,
    groups: u64,
) -> Result<f64, DeviceError> {
    let options = gpu.options();
    let params = uniform(gpu, "peak", &[0; 16])?;
    let step = gpu.bound("peak", 64, BufferUsages::STORAGE | BufferUsages::COPY_DST, options)?;
    let out = gpu.storage("peak", 16, options)?;
    let pipeline = gpu.pipeline(kernel)?;
    let resources = [
        params.as_entire_binding(),
        params.as_entire_binding(),
        step.as_entire_binding(),
        source,
        out.as_entire_binding(),
    ];
    let entries: Vec<_> =
        (0..).zip(resources).map(|(binding, resource)| wgpu::BindGroupEntry { binding, resource }).collect();
    let bind_group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("peak"),
        layout: &gpu.layout(&kernel.storage),
        entries: &entries,
    });
    let (x, y) = super::shader::fold(groups, options.max_workgroups).unwrap_or((1, 1));
    let mut fastest = f64::INFINITY;
    for _ in 0..=RUNS {
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &bind_group, &[]);
        pass.dispatch_workgroups(x, y, 1);
        drop(pass);
        let commands = encoder.finish();
        let started = Instant::now();
        gpu.queue.submit([commands]);
        gpu.wait()?;
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    Ok(fastest)
}
