//! The CPU device: the ops in Rust.

use super::{Adapter, Device, DeviceError, DeviceInfo, DeviceLimits, WeightSource};
use crate::program::Program;

/// The CPU as an adapter.
pub struct CpuAdapter {
    info: DeviceInfo,
}

impl CpuAdapter {
    /// Never fails: there is always a CPU.
    #[allow(clippy::new_without_default)]
    pub fn new() -> CpuAdapter {
        CpuAdapter {
            info: DeviceInfo {
                kind: "cpu",
                name: String::new(),
                device_type: "Cpu".to_owned(),
                backend: "rust".to_owned(),
                driver: String::new(),
            },
        }
    }
}

impl Adapter for CpuAdapter {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn available_memory(&self) -> Option<u64> {
        None
    }

    fn open(
        self: Box<Self>,
        _program: &Program,
        _weights: &dyn WeightSource,
        _limits: DeviceLimits,
    ) -> Result<Box<dyn Device>, DeviceError> {
        Err(DeviceError::Failed("stub".to_owned()))
    }
}
