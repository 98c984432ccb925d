//! Finding adapters: which there are, which are best, and what to say when there is none.

use std::collections::HashSet;

use wgpu::{AdapterInfo, Backends, DeviceType};

use crate::device::{DeviceError, DeviceInfo};

/// The native compute backends; GL is left out, it has too few storage buffers and writes to stderr.
const BACKENDS: Backends = Backends::VULKAN.union(Backends::METAL).union(Backends::DX12);

/// An instance, or why there is none.
#[cfg(target_os = "linux")]
fn instance() -> Result<wgpu::Instance, String> {
    use wgpu::hal;

    let flags = wgpu::InstanceFlags::empty();
    let descriptor = hal::InstanceDescriptor {
        name: "limpid",
        flags,
        memory_budget_thresholds: wgpu::MemoryBudgetThresholds::default(),
        backend_options: wgpu::BackendOptions::default(),
        telemetry: None,
        display: None,
    };
    // Mesa's device-selection layer looks for a Wayland display as soon as an instance asks for Wayland
    // surfaces, and complains on stderr where there is none; wgpu asks for them always.
    let without_wayland: Box<hal::vulkan::CreateInstanceCallback<'_>> = Box::new(|arguments| {
        arguments.extensions.retain(|name| *name != c"VK_KHR_wayland_surface");
    });
    // SAFETY: the callback only takes an extension away. wgpu-hal, pinned in Cargo.toml, looks the extension up
    // in this list before it makes a Wayland surface, its only use, and no surface is ever made here.
    let raw = unsafe { hal::vulkan::Instance::init_with_callback(&descriptor, Some(without_wayland)) };
    let raw = raw.map_err(|error| error_chain(&error))?;
    // SAFETY: the instance was made just now, is valid, and is given away here.
    Ok(unsafe { wgpu::Instance::from_hal::<hal::api::Vulkan>(raw) })
}

/// An instance, or why there is none.
#[cfg(not(target_os = "linux"))]
fn instance() -> Result<wgpu::Instance, String> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = BACKENDS;
    descriptor.flags = wgpu::InstanceFlags::empty();
    Ok(wgpu::Instance::new(descriptor))
}

/// The best adapter and all like it, at least one: discrete before integrated before virtual before unknown before
/// software; of the same kind and backend.
///
/// # Errors
/// [`DeviceError::NoAdapter`] with the backends and adapters that were tried.
pub(super) fn best(hardware_only: bool) -> Result<Vec<wgpu::Adapter>, DeviceError> {
    let backends = backend_names();
    let wanted = if hardware_only { "GPU" } else { "wgpu adapter" };
    let none = |tried: String, advice| Err(DeviceError::NoAdapter { wanted, tried, advice });
    let install = "Install the GPU's Vulkan driver (Debian's software one is mesa-vulkan-drivers), or use \
                   --device cpu";
    let instance = match instance() {
        Ok(instance) => instance,
        Err(reason) => return none(format!("{backends}: {reason}"), install),
    };
    let mut adapters = pollster::block_on(instance.enumerate_adapters(BACKENDS));
    if adapters.is_empty() {
        return none(format!("{backends}: no adapters"), install);
    }
    adapters.sort_by_key(|adapter| rank(adapter.get_info().device_type));
    let best = adapters[0].get_info();
    if hardware_only && best.device_type == DeviceType::Cpu {
        let seen: Vec<String> = adapters.iter().map(|adapter| refusal(&adapter.get_info())).collect();
        return none(
            format!("{backends}: {}", seen.join(", ")),
            "Install the GPU's driver, use --device wgpu without --require-gpu to accept a software adapter, \
             or --device cpu",
        );
    }
    let mut buses = HashSet::new();
    adapters.retain(|adapter| {
        let info = adapter.get_info();
        let is_alike = info.device_type == best.device_type && info.backend == best.backend;
        // Two drivers for one device would give it twice.
        is_alike && (info.device_pci_bus_id.is_empty() || buses.insert(info.device_pci_bus_id))
    });
    Ok(adapters)
}

/// What the rest of the program is told about an adapter.
pub(super) fn describe(info: &AdapterInfo) -> DeviceInfo {
    DeviceInfo {
        kind: "wgpu",
        name: info.name.clone(),
        device_type: type_name(info.device_type).to_owned(),
        backend: info.backend.to_str().to_owned(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
    }
}

fn refusal(info: &AdapterInfo) -> String {
    format!(
        "{} ({}, {}) is a software adapter",
        info.name,
        info.backend.to_str(),
        type_name(info.device_type)
    )
}

fn rank(device_type: DeviceType) -> usize {
    match device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    }
}

fn type_name(device_type: DeviceType) -> &'static str {
    match device_type {
        DeviceType::DiscreteGpu => "DiscreteGpu",
        DeviceType::IntegratedGpu => "IntegratedGpu",
        DeviceType::VirtualGpu => "VirtualGpu",
        DeviceType::Cpu => "Cpu",
        DeviceType::Other => "Other",
    }
}

/// The backends of [`BACKENDS`] that exist on this platform.
fn backend_names() -> String {
    let enabled = BACKENDS & wgpu::Instance::enabled_backend_features();
    enabled.iter_names().map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>().join(", ")
}

/// An error with everything that caused it.
pub(super) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_comes_before_software_and_discrete_before_integrated() {
        let mut types = [
            DeviceType::Cpu,
            DeviceType::Other,
            DeviceType::VirtualGpu,
            DeviceType::IntegratedGpu,
            DeviceType::DiscreteGpu,
        ];
        types.sort_by_key(|device_type| rank(*device_type));
        assert_eq!(types.map(type_name), ["DiscreteGpu", "IntegratedGpu", "VirtualGpu", "Other", "Cpu"]);
    }

    #[test]
    fn only_software_adapters_here_means_no_gpu_and_the_error_names_them() {
        let Ok(any) = best(false) else {
            return super::super::testing::skip("no adapter at all");
        };
        let info = describe(&any[0].get_info());
        if info.device_type != "Cpu" {
            return super::super::testing::skip("there is a GPU");
        }
        let error = best(true).expect_err("a software adapter is no GPU").to_string();
        assert!(error.starts_with("no GPU found; tried: "), "{error}");
        assert!(error.contains(&info.name) && error.contains("Cpu"), "{error}");
    }
}
