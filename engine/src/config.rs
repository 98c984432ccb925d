//! The engine's settings: as asked for ([`EngineConfig`]) and as resolved against a model and a device
//! ([`ResolvedConfig`]), after which nothing needs checking any more.

use crate::device::DeviceLimits;

/// Order of the waiting queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// By `priority`, then arrival.
    Priority,
}

/// Settings with vLLM's names and meanings.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Longest sequence, prompt and output together; the model's context length if absent.
    pub max_model_len: Option<usize>,
    /// Most sequences running at once.
    pub max_num_seqs: usize,
    /// Most tokens in one step.
    pub max_num_batched_tokens: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Size of the pool in blocks, whatever the memory.
    pub num_gpu_blocks_override: Option<usize>,
    /// Share of the device's memory to use.
    pub gpu_memory_utilization: f64,
    /// Reuse the KV of equal prompt prefixes.
    pub enable_prefix_caching: bool,
    /// Order of the waiting queue.
    pub scheduling_policy: SchedulingPolicy,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            max_model_len: None,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            block_size: 16,
            num_gpu_blocks_override: None,
            gpu_memory_utilization: 0.9,
            enable_prefix_caching: true,
            scheduling_policy: SchedulingPolicy::Fcfs,
        }
    }
}

/// Settings checked against the model and sized for the device.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedConfig {
    /// Longest sequence.
    pub max_model_len: usize,
    /// Most sequences running at once.
    pub max_num_seqs: usize,
    /// Most tokens in one step.
    pub max_num_batched_tokens: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Blocks in the pool, the null block (number 0) included.
    pub num_blocks: usize,
    /// Reuse the KV of equal prompt prefixes.
    pub enable_prefix_caching: bool,
    /// Order of the waiting queue.
    pub scheduling_policy: SchedulingPolicy,
}

impl ResolvedConfig {
    /// What the device must be able to hold.
    pub fn device_limits(&self) -> DeviceLimits {
        DeviceLimits {
            num_blocks: self.num_blocks,
            block_size: self.block_size,
            max_tokens: self.max_num_batched_tokens,
            max_sequences: self.max_num_seqs,
            max_blocks_per_sequence: self.max_model_len.div_ceil(self.block_size),
        }
    }
}

/// A setting that cannot be used. Reads: setting, value found, what is allowed.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("{setting} is {found}; allowed: {allowed}")]
pub struct ConfigError {
    /// The flag, `--max-model-len`.
    pub setting: &'static str,
    /// The value found.
    pub found: String,
    /// What is allowed, and what to do.
    pub allowed: String,
}
