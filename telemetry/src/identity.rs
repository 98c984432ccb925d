//! What is served: names and sizes that never change while it is.

use std::time::Duration;

/// Labels of a served model and facts that never change while it is served. What an engine does not know it
/// leaves at its default.
#[derive(Clone, Debug, Default)]
pub struct ModelIdentity {
    /// `model_name`: the first served name.
    pub model_name: String,
    /// `engine`: index of the engine.
    pub engine: u32,
    /// Engines that serve the model; 0 is as good as 1.
    pub data_parallel_size: usize,
    /// Longest sequence; bounds the token histograms' buckets.
    pub max_model_len: usize,
    /// Most sequences running at once.
    pub max_num_seqs: usize,
    /// Labels of `vllm:cache_config_info`, in vLLM's names. A label of that family that is not here reads
    /// `None`; a name that is not a label of it is left out.
    pub cache_config: Vec<(&'static str, String)>,
    /// The KV cache.
    pub pool: PoolIdentity,
    /// Bytes the weights take on the device.
    pub weight_bytes: u64,
    /// How long the start took.
    pub startup: StartupTimes,
    /// What computes.
    pub device: DeviceIdentity,
}

/// Sizes of a KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolIdentity {
    /// Blocks that requests can have.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Bytes of all of them.
    pub num_bytes: u64,
}

/// How long parts of an engine's start took; `None` where it was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartupTimes {
    /// Bringing the weights onto the device, its buffers and pipelines included.
    pub load_weights: Option<Duration>,
    /// From the first look at the model's file to an engine that takes requests.
    pub total: Option<Duration>,
}

/// Names of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The engine's word for its way of computing: `wgpu`, `cpu`.
    pub kind: String,
    /// Name as the driver or the operating system gives it.
    pub name: String,
    /// `DiscreteGpu`, `IntegratedGpu`, `VirtualGpu`, `Cpu` or `Other`.
    pub device_type: String,
    /// `vulkan`, `metal`, `dx12`, `rust`.
    pub backend: String,
    /// Driver name and version; empty if there is none.
    pub driver: String,
}
