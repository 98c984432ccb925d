//! Test support: what the machine at hand can test.
//!
//! Some tests need the default model's file or a wgpu adapter. Where one is missing they say so and pass; on
//! a machine that promises to have it (continuous integration) they fail instead. Nothing outside of tests
//! uses this module, which is why it may read the environment.

use std::path::PathBuf;

/// Path of the default model's file.
pub const TEST_MODEL: &str = "LIMPID_TEST_MODEL";

/// `1` where a missing model is a failure.
pub const REQUIRE_MODEL: &str = "LIMPID_REQUIRE_MODEL";

/// `1` where a missing wgpu adapter is a failure.
pub const REQUIRE_GPU: &str = "LIMPID_REQUIRE_GPU";

/// The default model's file. `None` means that the calling test should return; the reason has been printed.
///
/// # Panics
/// If there is none although [`REQUIRE_MODEL`] is set, or if [`TEST_MODEL`] names no file.
pub fn test_model() -> Option<PathBuf> {
    let Some(path) = std::env::var_os(TEST_MODEL).map(PathBuf::from) else {
        skip(&format!("{TEST_MODEL} names no model file"), REQUIRE_MODEL);
        return None;
    };
    assert!(path.is_file(), "{TEST_MODEL} is {}, which is no file", path.display());
    Some(path)
}

/// Folder of the vocabularies in llama.cpp's source, `models/ggml-vocab-*.gguf`.
pub const TEST_VOCABULARIES: &str = "LIMPID_TEST_VOCABULARIES";

/// The folder of vocabularies. `None` means that the calling test should return; the reason has been printed.
pub fn test_vocabularies() -> Option<PathBuf> {
    let folder = std::env::var_os(TEST_VOCABULARIES).map(PathBuf::from);
    if folder.is_none() {
        say_skipped(&format!("{TEST_VOCABULARIES} names no folder"));
    }
    folder
}

/// Folder of directories with a `tokenizer.json` each, as models of Hugging Face have them.
pub const TEST_TOKENIZERS: &str = "LIMPID_TEST_TOKENIZERS";

/// The folder of tokenizers. `None` means that the calling test should return; the reason has been printed.
pub fn test_tokenizers() -> Option<PathBuf> {
    let folder = std::env::var_os(TEST_TOKENIZERS).map(PathBuf::from);
    if folder.is_none() {
        say_skipped(&format!("{TEST_TOKENIZERS} names no folder"));
    }
    folder
}

/// Says that a test found no wgpu adapter, so that it can return.
///
/// # Panics
/// If [`REQUIRE_GPU`] is set.
pub fn skip_without_adapter(reason: &str) {
    skip(reason, REQUIRE_GPU);
}

fn skip(reason: &str, requirement: &str) {
    let required = std::env::var_os(requirement).is_some_and(|value| value == "1");
    assert!(!required, "{requirement} is 1, but {reason}");
    say_skipped(reason);
}

#[allow(clippy::print_stderr, reason = "the test harness shows it; there is no subscriber in a unit test")]
fn say_skipped(reason: &str) {
    eprintln!("skipped: {reason}");
}
