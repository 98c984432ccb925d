//! Rules about the repository itself: who may depend on whom, whose licence is allowed, whether the files
//! that ship beside the binary agree with each other and with the documents.
//!
//! Nothing here starts a server.

#![allow(missing_docs)]

mod collector;
mod dependencies;
mod documents;
mod licences;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root")
}

/// Runs cargo in the root, without network, and returns what it printed or what it complained about.
fn try_cargo(arguments: &[&str]) -> Result<String, String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo).args(arguments).arg("--offline").current_dir(root()).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Runs cargo and expects it to work.
fn cargo(arguments: &[&str]) -> String {
    try_cargo(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// `rustc -vV`.
fn rustc_version() -> String {
    let output = Command::new("rustc").arg("-vV").output().expect("rustc should run");
    String::from_utf8(output.stdout).unwrap()
}

/// The files below a folder of the root whose names end in one of `extensions`; build outputs left out.
fn files(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root().join(folder)];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}")) {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "target" && name != ".git" {
                open.push(path);
            } else if extensions.iter().any(|extension| name.ends_with(extension)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A file of the repository as text.
fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}
