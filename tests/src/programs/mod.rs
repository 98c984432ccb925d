//! The real programs at the far end of OTLP, each on free ports of 127.0.0.1: the collector
//! ([`collector`]), Jaeger ([`jaeger`]), Prometheus ([`prometheus`]).
//!
//! `cargo xtask programs` brings them; [`missing`] says whether a suite has to do without. A program is ready
//! when its own health page says so, ends with the value that stands for it, and shows its log if the test
//! failed.

pub mod collector;
pub mod jaeger;
pub mod prometheus;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use xtask::programs::Program;

use crate::client::{Client, Reply};
use crate::environment::skip;

/// How long a start or an end may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a page is asked again that says nothing by itself.
const POLL: Duration = Duration::from_millis(50);

/// Whether one of the programs is missing, which is said.
///
/// # Panics
/// With `LIMPID_REQUIRE_PROGRAMS=1` if one is.
pub fn missing(programs: &[(Program, &str)]) -> bool {
    let absent = programs.iter().find_map(|(program, binary)| program.binary(binary).err());
    if let Some(error) = &absent {
        skip("a program of the pipeline", "LIMPID_REQUIRE_PROGRAMS", &error.to_string());
    }
    absent.is_some()
}

/// Addresses of 127.0.0.1 that nobody listens on. They are held until all are chosen, so none comes twice.
pub fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    let listeners: [TcpListener; N] =
        std::array::from_fn(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("a bound port"))
}

/// Asks until `check` makes something of what it sees.
///
/// # Panics
/// With `what` if it has not within `timeout`.
pub async fn poll<T>(what: &str, timeout: Duration, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not come within {timeout:?}");
        tokio::time::sleep(POLL).await;
    }
}

/// A process with its folder for files and its log.
struct Process {
    name: &'static str,
    child: Child,
    folder: TempDir,
}

impl Process {
    /// Starts a program in a folder of its own, in which `files` are written first.
    fn start(
        program: Program,
        binary: &'static str,
        files: &[(&str, &str)],
        arguments: &[String],
    ) -> Process {
        let path = program.binary(binary).unwrap_or_else(|error| panic!("{error}"));
        let folder = TempDir::new().expect("a temporary folder");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("a file in a temporary folder");
        }
        let log = File::create(folder.path().join("log")).expect("a log");
        let child = Command::new(path)
            .args(arguments)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{binary} should start: {error}"));
        Process { name: binary, child, folder }
    }

    /// Waits until a page answers with 200.
    async fn wait_for(&mut self, address: SocketAddr, path: &str) {
        let client = Client::new(address);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if client.try_get(path).await.is_some_and(|reply| reply.status == 200) {
                return;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("{} ended with {status}", self.name);
            }
            assert!(Instant::now() < deadline, "{} is not ready after {PATIENCE:?}", self.name);
            tokio::time::sleep(POLL).await;
        }
    }

    /// Ends it as an operator does, so that it hands on what it holds.
    async fn stop(mut self) {
        let pid = self.child.id().expect("the program runs");
        let kill = std::process::Command::new("kill").arg("-TERM").arg(pid.to_string()).status();
        assert!(kill.expect("kill should run").success());
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        status.unwrap_or_else(|_| panic!("{} does not end", self.name)).expect("a status");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Process {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of {}:\n{}", self.name, self.log());
        }
    }
}

/// An answer that has to be 200.
#[track_caller]
fn ok(what: &str, reply: Reply) -> Reply {
    assert_eq!(reply.status, 200, "{what}: {}", reply.text());
    reply
}

/// Percent-encodes a value of a query string.
fn encode(value: &str) -> String {
    value
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// Runs a program to its end and returns what it printed on both streams.
///
/// # Errors
/// The same text, if it ended badly.
pub fn run(program: Program, binary: &str, folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let path = program.binary(binary).unwrap_or_else(|error| panic!("{error}"));
    let output = std::process::Command::new(path)
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| panic!("{binary} should start: {error}"));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() { Ok(text) } else { Err(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_addresses_are_different_and_local() {
        let addresses = free_addresses::<4>();
        for (index, address) in addresses.iter().enumerate() {
            assert!(address.ip().is_loopback());
            assert!(!addresses[..index].contains(address));
        }
    }

    #[test]
    fn queries_survive_their_way_in_an_address() {
        assert_eq!(encode("a{b=\"c d\"}"), "a%7Bb%3D%22c%20d%22%7D");
    }
}
