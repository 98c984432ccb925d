//! The wgpu device: ops as WGSL dispatches.

use super::{Adapter, DeviceError};

/// Finds a wgpu adapter: hardware first; software ones (`device_type` Cpu) only unless `hardware_only`.
///
/// # Errors
/// [`DeviceError::NoAdapter`] with the adapters and backends that were tried.
pub fn find(hardware_only: bool) -> Result<Box<dyn Adapter>, DeviceError> {
    let _ = hardware_only;
    Err(DeviceError::NoAdapter { wanted: "wgpu adapter", tried: String::new(), advice: "" })
}
