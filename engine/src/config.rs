//! The engine's settings: as asked for ([`EngineConfig`]) and as resolved against a model and a device
//! ([`ResolvedConfig`]), after which nothing needs checking any more.
//!
//! The KV pool has one size for the engine's whole life. Without `--num-gpu-blocks-override` it is the
//! smallest of
//!
//! - what is left of `--gpu-memory-utilization` of the device's memory after weights and activations, where
//!   that memory is known;
//! - [`DEFAULT_POOL_BYTES`], or one full sequence if that is more, where the memory is not known (most wgpu
//!   adapters) or is the host's (the CPU), which other programs need too; [`FILLED_POOL_BYTES`] instead where it is
//!   filled at the start (software adapters);
//! - `--max-num-seqs` sequences of `--max-model-len` tokens, because more can never be in use at once.
//!
//! Engines on one device divide its memory, or the default pool, evenly; the override is each engine's own.

use crate::cache_layout::{CacheLayout, blocks_per_sequence};
use crate::device::{DeviceLimits, DeviceMemory, Sharing};
use crate::program::{CostModel, Program};

/// Bytes of the KV pool on a device whose memory is not known or not its own: small enough for a laptop that has other
/// things to do, large enough for tens of thousands of tokens of a small model.
pub const DEFAULT_POOL_BYTES: u64 = 2 << 30;

/// The same where the pool is filled with zeros at the start by the host's cores, at a gigabyte a second: some ten
/// thousand tokens of a small model, for which such a device computes minutes.
pub const FILLED_POOL_BYTES: u64 = 512 << 20;

/// Bounds that keep every size below what a `u32` can number.
const MAX_BLOCK_SIZE: usize = 256;
const MAX_NUM_SEQS: usize = 1 << 16;
const MAX_NUM_BATCHED_TOKENS: usize = 1 << 20;
/// Most engines: what the metrics' tables of series are made for.
pub const MAX_DATA_PARALLEL_SIZE: usize = 16;

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
    /// Engines, each with a scheduler and a KV cache of its own. The other settings are those of each.
    pub data_parallel_size: usize,
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
    /// Report how long KV blocks keep their contents.
    pub kv_cache_metrics: bool,
    /// Share of the blocks that are watched for it.
    pub kv_cache_metrics_sample: f64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            data_parallel_size: 1,
            max_model_len: None,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            block_size: 16,
            num_gpu_blocks_override: None,
            gpu_memory_utilization: 0.9,
            enable_prefix_caching: true,
            scheduling_policy: SchedulingPolicy::Fcfs,
            kv_cache_metrics: false,
            kv_cache_metrics_sample: 0.01,
        }
    }
}

impl EngineConfig {
    /// Engines to start, checked.
    ///
    /// # Errors
    /// There are none, or too many.
    pub fn num_engines(&self) -> Result<usize, ConfigError> {
        let size = self.data_parallel_size;
        if !(1..=MAX_DATA_PARALLEL_SIZE).contains(&size) {
            let allowed = format!("1 to {MAX_DATA_PARALLEL_SIZE} engines");
            return Err(ConfigError::new("--data-parallel-size", size, allowed));
        }
        Ok(size)
    }

    /// Checks the settings and sizes the pool of one engine. `context_length` is the model's longest sequence,
    /// `memory` what weights, activations and caches of all engines on the device may use together.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn resolve(
        &self,
        program: &Program,
        context_length: usize,
        memory: DeviceMemory,
        sharing: Sharing,
    ) -> Result<ResolvedConfig, ConfigError> {
        let max_model_len = self.max_model_len.unwrap_or(context_length);
        if !(2..=context_length).contains(&max_model_len) {
            let allowed = format!("2 to {context_length}, the model's context length");
            return Err(ConfigError::new("--max-model-len", max_model_len, allowed));
        }
        let in_range = |setting, value: usize, most: usize| match (1..=most).contains(&value) {
            true => Ok(value),
            false => Err(ConfigError::new(setting, value, format!("1 to {most}"))),
        };
        let max_num_seqs = in_range("--max-num-seqs", self.max_num_seqs, MAX_NUM_SEQS)?;
        let max_num_batched_tokens =
            in_range("--max-num-batched-tokens", self.max_num_batched_tokens, MAX_NUM_BATCHED_TOKENS)?;
        let block_size = in_range("--block-size", self.block_size, MAX_BLOCK_SIZE)?;
        let utilization = self.gpu_memory_utilization;
        for (setting, share) in [
            ("--gpu-memory-utilization", utilization),
            ("--kv-cache-metrics-sample", self.kv_cache_metrics_sample),
        ] {
            if !(share > 0.0 && share <= 1.0) {
                return Err(ConfigError::new(setting, share, "more than 0, at most 1".to_owned()));
            }
        }
        let cache_windows = CacheLayout::of(program).windows;
        let engines = sharing.engines as u64;
        let weight_bytes = program.weight_bytes();
        let sizes = Sizes {
            engines,
            weights: if sharing.weights { weight_bytes.div_ceil(engines) } else { weight_bytes },
            activations: program.activation_bytes(max_num_batched_tokens, max_num_seqs),
            block: program.kv_bytes_per_slot() * block_size as u64,
            blocks_per_sequence: blocks_per_sequence(
                &cache_windows,
                block_size,
                max_model_len,
                max_num_batched_tokens,
            ),
        };
        let default_bytes = match memory {
            DeviceMemory::SharedAndFilled(_) => FILLED_POOL_BYTES,
            _ => DEFAULT_POOL_BYTES,
        };
        let default_pool =
            (default_bytes / engines / sizes.block.max(1)).max(sizes.blocks_per_sequence as u64 + 1);
        let num_blocks = match (self.num_gpu_blocks_override, memory) {
            (Some(blocks), _) => sizes.check_override(blocks, block_size)?,
            (None, DeviceMemory::Own(bytes)) => sizes.cap(sizes.fit(bytes, utilization)?, max_num_seqs),
            (None, DeviceMemory::Shared(bytes) | DeviceMemory::SharedAndFilled(bytes)) => {
                sizes.cap(sizes.fit(bytes, utilization)?.min(default_pool), max_num_seqs)
            }
            (None, DeviceMemory::Unknown) => sizes.cap(default_pool, max_num_seqs),
        };
        Ok(ResolvedConfig {
            max_model_len,
            max_num_seqs,
            max_num_batched_tokens,
            block_size,
            num_blocks: num_blocks.min(u32::MAX as usize / block_size),
            enable_prefix_caching: self.enable_prefix_caching,
            scheduling_policy: self.scheduling_policy,
            kv_cache_metrics_sample: self.kv_cache_metrics.then_some(self.kv_cache_metrics_sample),
            cost: CostModel::new(program),
            cache_windows,
        })
    }
}

/// What sizing the pool depends on; bytes unless said otherwise.
struct Sizes {
    /// Engines that divide the memory.
    engines: u64,
    /// This engine's part of them, if they are shared.
    weights: u64,
    activations: u64,
    block: u64,
    /// Blocks of one sequence of the greatest length.
    blocks_per_sequence: usize,
}

impl Sizes {
    /// No more blocks than can be in use at once, with the null block.
    fn cap(&self, blocks: u64, max_num_seqs: usize) -> usize {
        let most = (self.blocks_per_sequence as u64).saturating_mul(max_num_seqs as u64).saturating_add(1);
        usize::try_from(blocks.min(most)).unwrap_or(usize::MAX)
    }

    /// Blocks that fit into the engine's part of `utilization` of the memory beside weights and activations.
    fn fit(&self, memory: u64, utilization: f64) -> Result<u64, ConfigError> {
        let budget = (memory as f64 * utilization) as u64 / self.engines;
        let left = budget.saturating_sub(self.weights.saturating_add(self.activations));
        let blocks = left / self.block.max(1);
        let needed = self.blocks_per_sequence as u64 + 1;
        if blocks < needed {
            let (each, fewer) = match self.engines {
                1 => (String::new(), ""),
                engines => (format!(" for each of {engines} engines"), ", --data-parallel-size"),
            };
            let cache = needed.saturating_mul(self.block);
            let least = self.weights.saturating_add(self.activations).saturating_add(cache);
            let lower = format!("--max-model-len{fewer}, --max-num-batched-tokens or --max-num-seqs");
            let advice = match least <= memory / self.engines {
                true => format!("Raise it, or lower {lower}"),
                false => format!("Lower {lower}, or take a smaller model or quantisation"),
            };
            let allowed = format!(
                "enough for {least} bytes: {} of weights, {} of activations, {cache} of {needed} KV blocks (one \
                 sequence of --max-model-len and the null block); {budget} of {memory} available bytes may be \
                 used{each}, which leaves {blocks} blocks. {advice}",
                self.weights, self.activations,
            );
            return Err(ConfigError::new("--gpu-memory-utilization", utilization, allowed));
        }
        Ok(blocks)
    }

    fn check_override(&self, blocks: usize, block_size: usize) -> Result<usize, ConfigError> {
        let (needed, most) = (self.blocks_per_sequence + 1, u32::MAX as usize / block_size);
        if !(needed..=most).contains(&blocks) {
            let allowed = format!(
                "{needed} to {most}: one sequence of --max-model-len takes {}, the null block 1. Raise it, or \
                 lower --max-model-len",
                self.blocks_per_sequence
            );
            return Err(ConfigError::new("--num-gpu-blocks-override", blocks, allowed));
        }
        Ok(blocks)
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
    /// Share of the KV blocks whose residency is watched; `None` watches none.
    pub kv_cache_metrics_sample: Option<f64>,
    /// What a step costs, for its report.
    pub cost: CostModel,
    /// The window of each group of layers that has block tables of its own; `None` where they attend to everything.
    pub cache_windows: Vec<Option<usize>>,
}

impl ResolvedConfig {
    /// The pool's size for the start-up log.
    pub fn describe_kv_cache(&self, program: &Program) -> String {
        let slots = self.num_blocks as u64 * self.block_size as u64;
        let mib = (slots * program.kv_bytes_per_slot()) as f64 / f64::from(1 << 20);
        let groups = self.cache_windows.len() as u64;
        let shared = match groups {
            1 => String::new(),
            _ => format!(" in each of {groups} groups of layers"),
        };
        format!(
            "kv cache: {} blocks of {} tokens = {} tokens{shared}, {mib:.1} MiB",
            self.num_blocks,
            self.block_size,
            slots / groups,
        )
    }

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

impl ConfigError {
    fn new(setting: &'static str, found: impl ToString, allowed: String) -> ConfigError {
        ConfigError { setting, found: found.to_string(), allowed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Buffer, BufferId, Rows, Weight};
    use crate::tensor_type::TensorType;

    /// 1 MiB of weights, 1 KiB of cache per token, 1 KiB of activations per token and logits row.
    fn program() -> Program {
        Program {
            buffers: vec![
                Buffer { name: "hidden", rows: Rows::Tokens, width: 256 },
                Buffer { name: "logits", rows: Rows::Logits, width: 256 },
            ],
            weights: vec![Weight { name: "w".to_owned(), format: TensorType::F32, rows: 1024, columns: 256 }],
            ops: Vec::new(),
            logits: BufferId(1),
            num_layers: 2,
            num_kv_heads: 2,
            head_size: 32,
            value_head_size: 32,
        }
    }

    fn config() -> EngineConfig {
        EngineConfig { max_num_seqs: 8, max_num_batched_tokens: 56, ..EngineConfig::default() }
    }

    fn refused(config: EngineConfig, memory: DeviceMemory) -> ConfigError {
        config.resolve(&program(), 1000, memory, Sharing::NONE).unwrap_err()
    }

    #[test]
    fn pool_takes_what_weights_and_activations_leave() {
        // Half of 8 MiB, less 1 MiB and 64 KiB, in blocks of 16 KiB.
        let config = EngineConfig { gpu_memory_utilization: 0.5, ..config() };
        let resolved = config.resolve(&program(), 1000, DeviceMemory::Own(8 << 20), Sharing::NONE).unwrap();
        assert_eq!(resolved.num_blocks, (3 * 1024 - 64) / 16);
        assert_eq!(resolved.max_model_len, 1000);
        assert_eq!(
            resolved.describe_kv_cache(&program()),
            "kv cache: 188 blocks of 16 tokens = 3008 tokens, 2.9 MiB"
        );
    }

    #[test]
    fn pool_is_no_larger_than_all_sequences_at_full_length() {
        let all = 8 * 1000_usize.div_ceil(16) + 1;
        assert_eq!(
            config().resolve(&program(), 1000, DeviceMemory::Own(1 << 40), Sharing::NONE).unwrap().num_blocks,
            all
        );
        assert_eq!(
            config().resolve(&program(), 1000, DeviceMemory::Unknown, Sharing::NONE).unwrap().num_blocks,
            all
        );
    }

    #[test]
    fn unknown_memory_gives_the_default_pool_or_one_full_sequence() {
        let resolved = config().resolve(&program(), 1 << 20, DeviceMemory::Unknown, Sharing::NONE).unwrap();
        assert_eq!(resolved.num_blocks as u64 * (16 << 10), DEFAULT_POOL_BYTES);
        let resolved = config().resolve(&program(), 1 << 24, DeviceMemory::Unknown, Sharing::NONE).unwrap();
        assert_eq!(resolved.num_blocks, (1 << 20) + 1);
    }

    #[test]
    fn memory_of_the_host_gives_no_more_than_the_default_pool() {
        let blocks =
            |memory| config().resolve(&program(), 1 << 20, memory, Sharing::NONE).unwrap().num_blocks;
        assert_eq!(blocks(DeviceMemory::Shared(1 << 40)), blocks(DeviceMemory::Unknown));
        assert!(blocks(DeviceMemory::Own(1 << 40)) > blocks(DeviceMemory::Unknown));
        let memory = DeviceMemory::SharedAndFilled(1 << 40);
        let filled = config().resolve(&program(), 1 << 16, memory, Sharing::NONE).unwrap();
        assert_eq!(filled.num_blocks as u64 * (16 << 10), FILLED_POOL_BYTES);
        assert!(matches!(
            config().resolve(&program(), 1 << 20, DeviceMemory::Shared(1 << 20), Sharing::NONE),
            Err(ConfigError { setting: "--gpu-memory-utilization", .. })
        ));
    }

    #[test]
    fn pool_too_small_for_one_sequence_is_refused_with_what_is_missing() {
        let error = refused(config(), DeviceMemory::Own(2 << 20));
        assert_eq!(error.setting, "--gpu-memory-utilization");
        assert!(
            error.allowed.contains("64 KV blocks") && error.allowed.contains("leaves 47 blocks"),
            "{error}"
        );
        let least = (1 << 20) + (64 << 10) + (64 << 14);
        let bytes = format!("enough for {least} bytes: 1048576 of weights");
        assert!(
            error.allowed.contains(&bytes) && error.allowed.contains("of 2097152 available bytes"),
            "{error}"
        );
        // Raising the share helps only where there is as much memory as that.
        assert!(error.allowed.contains("a smaller model"), "{error}");
        assert!(refused(config(), DeviceMemory::Own(least)).allowed.contains("Raise it"));
        let error =
            refused(EngineConfig { num_gpu_blocks_override: Some(63), ..config() }, DeviceMemory::Unknown);
        assert_eq!((error.setting, error.found.as_str()), ("--num-gpu-blocks-override", "63"));
        let config = EngineConfig { num_gpu_blocks_override: Some(64), ..config() };
        assert_eq!(
            config.resolve(&program(), 1000, DeviceMemory::Unknown, Sharing::NONE).unwrap().num_blocks,
            64
        );
    }

    #[test]
    fn engines_on_one_device_divide_its_memory_and_the_weights_if_they_share_them() {
        let config = EngineConfig { gpu_memory_utilization: 0.5, ..config() };
        let blocks = |weights| {
            let sharing = Sharing { engines: 2, weights };
            config.resolve(&program(), 1000, DeviceMemory::Own(16 << 20), sharing).unwrap().num_blocks
        };
        // A quarter of 16 MiB, less 1 MiB or half of it and 64 KiB, in blocks of 16 KiB.
        assert_eq!((blocks(false), blocks(true)), ((3 * 1024 - 64) / 16, (3 * 1024 + 512 - 64) / 16));
        let pool = |engines| {
            let sharing = Sharing { engines, weights: true };
            let config = EngineConfig { max_num_seqs: 64, ..config.clone() };
            config.resolve(&program(), 1 << 16, DeviceMemory::Unknown, sharing).unwrap().num_blocks
        };
        assert_eq!(pool(4), pool(1) / 4);
        let sharing = Sharing { engines: 8, weights: true };
        let error = config.resolve(&program(), 1000, DeviceMemory::Own(16 << 20), sharing).unwrap_err();
        let share = "1048576 of 16777216 available bytes may be used for each of 8 engines";
        assert!(error.allowed.contains(share), "{error}");
        assert!(error.allowed.contains("--data-parallel-size"), "{error}");
    }

    #[test]
    fn no_engine_and_too_many_engines_are_refused() {
        let engines = |data_parallel_size| EngineConfig { data_parallel_size, ..config() }.num_engines();
        assert_eq!((engines(1), engines(16)), (Ok(1), Ok(16)));
        for wrong in [0, 17] {
            let error = engines(wrong).unwrap_err().to_string();
            assert_eq!(error, format!("--data-parallel-size is {wrong}; allowed: 1 to 16 engines"));
        }
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let cases = [
            (EngineConfig { max_model_len: Some(1001), ..config() }, "--max-model-len"),
            (EngineConfig { max_model_len: Some(1), ..config() }, "--max-model-len"),
            (EngineConfig { max_num_seqs: 0, ..config() }, "--max-num-seqs"),
            (EngineConfig { max_num_seqs: usize::MAX, ..config() }, "--max-num-seqs"),
            (EngineConfig { max_num_batched_tokens: 0, ..config() }, "--max-num-batched-tokens"),
            (EngineConfig { block_size: 0, ..config() }, "--block-size"),
            (EngineConfig { block_size: 257, ..config() }, "--block-size"),
            (EngineConfig { gpu_memory_utilization: 0.0, ..config() }, "--gpu-memory-utilization"),
            (EngineConfig { gpu_memory_utilization: 1.1, ..config() }, "--gpu-memory-utilization"),
            (EngineConfig { kv_cache_metrics_sample: 0.0, ..config() }, "--kv-cache-metrics-sample"),
            (EngineConfig { kv_cache_metrics_sample: 1.5, ..config() }, "--kv-cache-metrics-sample"),
            (EngineConfig { gpu_memory_utilization: f64::NAN, ..config() }, "--gpu-memory-utilization"),
            (
                EngineConfig { num_gpu_blocks_override: Some(usize::MAX), ..config() },
                "--num-gpu-blocks-override",
            ),
        ];
        for (config, setting) in cases {
            assert_eq!(refused(config, DeviceMemory::Unknown).setting, setting);
        }
    }
}
