//! What the machine offers, and whether its absence is a skip or a failure.
//!
//! A laptop may lack the default model or a Vulkan driver, and the suites then say what they skip and why.
//! Continuous integration sets `LIMPID_REQUIRE_MODEL=1` and `LIMPID_REQUIRE_GPU=1`, and there the same
//! absence fails.

use std::path::PathBuf;
use std::process::Command;

/// Says why a test does nothing here, where `cargo test -- --nocapture` shows it.
///
/// # Panics
/// If the variable `requirement` is 1.
#[allow(clippy::print_stderr)]
pub fn skip(what: &str, requirement: &str, reason: &str) {
    let required = std::env::var(requirement).is_ok_and(|value| value == "1");
    assert!(!required, "{requirement}=1, but {what} is missing: {reason}");
    eprintln!("skipped, {what} is missing: {reason}");
}

/// The default model's file: `LIMPID_TEST_MODEL`, else the model store's copy.
///
/// # Panics
/// With `LIMPID_REQUIRE_MODEL=1` if there is none.
pub fn default_model() -> Option<PathBuf> {
    let found = match std::env::var_os("LIMPID_TEST_MODEL") {
        Some(path) => {
            let path = PathBuf::from(path);
            path.is_file().then_some(path).ok_or("LIMPID_TEST_MODEL names no file".to_owned())
        }
        None => stored_model(limpid::store::DEFAULT_MODEL),
    };
    found.map_err(|reason| skip("the default model", "LIMPID_REQUIRE_MODEL", &reason)).ok()
}

/// The model store's copy of a known model.
///
/// # Panics
/// With `LIMPID_REQUIRE_MODEL=1` if there is none.
pub fn known_model(name: &str) -> Option<PathBuf> {
    stored_model(name).map_err(|reason| skip(name, "LIMPID_REQUIRE_MODEL", &reason)).ok()
}

fn stored_model(name: &str) -> Result<PathBuf, String> {
    match limpid::store::stored(name) {
        Ok(Some(path)) => Ok(path),
        Ok(None) => Err(format!("`limpid pull {name}` has not fetched it")),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether wgpu finds an adapter, a software one included.
///
/// # Panics
/// With `LIMPID_REQUIRE_GPU=1` if it does not.
pub fn has_wgpu_adapter() -> bool {
    match limpid_engine::device::find_adapters(limpid_engine::device::DeviceChoice::Wgpu, false, 1, None) {
        Ok(_) => true,
        Err(error) => {
            skip("a wgpu adapter", "LIMPID_REQUIRE_GPU", &error.to_string());
            false
        }
    }
}

/// The library that shows a program a clock of ours: Debian's `libfaketime`.
///
/// # Panics
/// With `LIMPID_REQUIRE_TOOLS=1` if there is none.
pub fn fake_time_library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let found =
        folders.map(|folder| folder.path().join("faketime/libfaketime.so.1")).find(|path| path.is_file());
    if found.is_none() {
        skip("libfaketime", "LIMPID_REQUIRE_TOOLS", "/usr/lib/*/faketime/libfaketime.so.1 is no file");
    }
    found
}

/// A Python interpreter that can import `module`: the one that `LIMPID_TEST_PYTHON` names, else `python3`.
/// Second opinions (the official Prometheus parser, the official OpenAI client) run in it.
///
/// # Panics
/// If `LIMPID_TEST_PYTHON` is set and its interpreter cannot import the module.
pub fn python_with(module: &str) -> Option<PathBuf> {
    let named = std::env::var_os("LIMPID_TEST_PYTHON");
    let python = PathBuf::from(named.clone().unwrap_or_else(|| "python3".into()));
    let import = Command::new(&python).arg("-c").arg(format!("import {module}")).output();
    if import.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    assert!(named.is_none(), "LIMPID_TEST_PYTHON cannot import {module}: {import:?}");
    skip(&format!("Python's {module}"), "LIMPID_REQUIRE_TOOLS", "pip install it, or set LIMPID_TEST_PYTHON");
    None
}
