//! A server to test: the real `main`, as a process of its own on a free port.
//!
//! The binary is `limpid-under-test`, which this package builds from the server's own `main.rs`, so that no
//! test has to run cargo. A process per test keeps environments, logs and telemetry of tests apart, and ends
//! as an operator's does: by a signal.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use limpid_engine::gguf::GgufError;
use limpid_engine::gguf::fixture::{CONTROL_TOKENS, TinyLlama, tiny_llama, vocabulary, write_tiny_llama};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::client::Client;

/// How long a start or an end may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Debian's, by its path: where it starts a process there is no variable that says where to look.
pub const CHROOT: &str = "/usr/sbin/chroot";

/// The name under which every tested model is served.
pub const MODEL: &str = "tested";

/// Longest sequence of the tiny models.
pub const CONTEXT_LENGTH: usize = 4096;

/// Path of a tiny model with random weights that is fast enough for thousands of tokens a second.
pub fn tiny_model() -> PathBuf {
    fixture("tiny.gguf", &TinyLlama { context_length: CONTEXT_LENGTH, ..TinyLlama::default() })
}

/// Path of a model that is small, but takes seconds for a few thousand tokens: something to interrupt.
pub fn slow_model() -> PathBuf {
    fixture(
        "slow.gguf",
        &TinyLlama {
            layers: 6,
            width: 256,
            heads: 8,
            kv_heads: 8,
            head_size: 32,
            value_head_size: 32,
            feed_forward: 768,
            context_length: CONTEXT_LENGTH,
            ..TinyLlama::default()
        },
    )
}

/// A token of the fixtures' vocabulary: the byte `~`.
pub const BROKEN_TOKEN: u32 = CONTROL_TOKENS.len() as u32 + b'~' as u32;

/// Path of a tiny model whose forward pass fails on [`BROKEN_TOKEN`], and on no other.
pub fn broken_model() -> PathBuf {
    let model = TinyLlama { context_length: CONTEXT_LENGTH, tied: false, ..TinyLlama::default() };
    let mut writer = tiny_llama(&model);
    let rows = vocabulary().len();
    // Values in no particular order, and none that are numbers in one row.
    let mut values: Vec<f32> =
        (0..rows * model.width).map(|index| ((index * 7919) % 1000) as f32 / 1000.0 - 0.5).collect();
    let row = BROKEN_TOKEN as usize * model.width;
    values[row..row + model.width].fill(f32::NAN);
    let dimensions = [model.width as u64, rows as u64];
    writer.remove_tensor("token_embd.weight").tensor("token_embd.weight", &dimensions, model.format, &values);
    written("broken.gguf", |path| writer.write(path))
}

fn fixture(name: &str, model: &TinyLlama) -> PathBuf {
    written(name, |path| write_tiny_llama(path, model))
}

fn written(name: &str, write: impl FnOnce(&Path) -> Result<(), GgufError>) -> PathBuf {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    static WRITING: Mutex<()> = Mutex::new(());
    let _writing = WRITING.lock().unwrap();
    let path = FOLDER.get_or_init(|| TempDir::new().expect("a temporary folder")).path().join(name);
    if !path.exists() {
        write(&path).expect("the fixture should be written");
    }
    path
}

/// The binary under test.
pub fn binary() -> PathBuf {
    built("limpid-under-test")
}

/// A binary of this package, beside the test's own.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows its path");
    let folder = test.parent().and_then(Path::parent).expect("tests lie in target/PROFILE/deps");
    let binary = folder.join(name);
    assert!(binary.is_file(), "cargo builds {binary:?} together with the tests");
    binary
}

/// The command line and environment of a server that is not running yet.
#[derive(Clone, Debug)]
pub struct Options {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// Where the process sees the file system begin, with the binary as `/limpid`.
    root: Option<PathBuf>,
}

impl Options {
    /// Serves `model` on the CPU device, on a port of the system's choice.
    pub fn new(model: &Path) -> Options {
        Options { arguments: vec!["serve".into()], environment: Vec::new(), root: None }
            .plain(&model.display().to_string())
            .arg("--host", "127.0.0.1")
            .arg("--port", "0")
            .arg("--device", "cpu")
            .arg("--served-model-name", MODEL)
            // Enough for four of the longest sequences, and little memory for the many servers of a test run.
            .arg("--num-gpu-blocks-override", "1025")
    }

    /// A sub-command with nothing set.
    pub fn command(command: &str) -> Options {
        Options { arguments: vec![command.into()], environment: Vec::new(), root: None }
    }

    /// Adds a flag with a value; a flag that was set before is replaced.
    pub fn arg(mut self, flag: &str, value: &str) -> Options {
        if let Some(index) = self.arguments.iter().position(|argument| argument == flag) {
            self.arguments[index + 1] = value.to_owned();
            return self;
        }
        self.plain(flag).plain(value)
    }

    /// Takes out a flag with its value.
    pub fn without(mut self, flag: &str) -> Options {
        if let Some(index) = self.arguments.iter().position(|argument| argument == flag) {
            self.arguments.drain(index..index + 2);
        }
        self
    }

    /// Adds a word.
    pub fn plain(mut self, word: &str) -> Options {
        self.arguments.push(word.to_owned());
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: &str) -> Options {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// In a folder with `/limpid` and what it needs, and with no variable but those set here.
    pub fn inside(mut self, root: &Path) -> Options {
        self.root = Some(root.to_owned());
        self
    }

    /// Starts the process without waiting for anything.
    fn spawn(&self) -> Running {
        let mut command = match &self.root {
            Some(root) => {
                let mut command = Command::new(CHROOT);
                command.env_clear().arg(root).arg("/limpid");
                command
            }
            None => Command::new(binary()),
        };
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("OTEL_") || name.starts_with("LIMPID_") || name == "RUST_LOG" {
                command.env_remove(&*name);
            }
        }
        let mut child = command
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary should start");
        let log = Log::default();
        log.follow(child.stdout.take().expect("piped"));
        log.follow(child.stderr.take().expect("piped"));
        Running { child, log }
    }

    /// Starts a server and waits until it listens.
    ///
    /// # Panics
    /// With its log if it ends before.
    pub async fn start(&self) -> Server {
        let mut running = self.spawn();
        let address = tokio::select! {
            address = running.log.wait_for(listening_address) => address,
            status = running.child.wait() => {
                running.log.wait_for_end().await;
                panic!("{:?} ended with {status:?}:\n{}", self.arguments, running.log.text())
            }
            () = tokio::time::sleep(PATIENCE) => {
                panic!("{:?} does not listen after {PATIENCE:?}:\n{}", self.arguments, running.log.text())
            }
        };
        Server { running, address }
    }

    /// Runs a process that is expected to end by itself.
    ///
    /// # Panics
    /// With its log if it does not.
    pub async fn run(&self) -> Ended {
        let mut running = self.spawn();
        match tokio::time::timeout(PATIENCE, running.child.wait()).await {
            Ok(status) => {
                running.log.wait_for_end().await;
                Ended { status: status.expect("a status"), log: running.log.text() }
            }
            Err(_) => panic!("{:?} runs on after {PATIENCE:?}:\n{}", self.arguments, running.log.text()),
        }
    }
}

/// The address in the log line that says that the port is open.
fn listening_address(line: &str) -> Option<SocketAddr> {
    if !line.to_ascii_lowercase().contains("listening") {
        return None;
    }
    let (_, rest) = line.split_once("http://")?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ':').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Lines of both output streams as they come.
#[derive(Clone, Default)]
struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    changed: Arc<watch::Sender<()>>,
    open: Arc<Mutex<usize>>,
}

impl Log {
    fn follow(&self, stream: impl AsyncRead + Unpin + Send + 'static) {
        let log = self.clone();
        *log.open.lock().unwrap() += 1;
        tokio::spawn(async move {
            let mut lines = BufReader::new(stream).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                log.lines.lock().unwrap().push(line);
                log.changed.send_replace(());
            }
            *log.open.lock().unwrap() -= 1;
            log.changed.send_replace(());
        });
    }

    async fn wait_for<T>(&self, check: impl Fn(&str) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = self.lines.lock().unwrap().iter().find_map(|line| check(line)) {
                return found;
            }
            changed.changed().await.expect("the sender lives in self");
        }
    }

    async fn wait_for_end(&self) {
        let mut changed = self.changed.subscribe();
        while *self.open.lock().unwrap() > 0 {
            changed.changed().await.expect("the sender lives in self");
        }
    }

    fn text(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }
}

struct Running {
    child: Child,
    log: Log,
}

/// A server that listens. Dropping it kills it; if the test failed, its log is shown.
pub struct Server {
    running: Running,
    address: SocketAddr,
}

/// A process that ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// What it printed on both streams.
    pub log: String,
}

impl Drop for Server {
    #[allow(clippy::print_stderr)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.running.log.text());
        }
    }
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A client for it.
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        self.running.log.text()
    }

    /// Waits for a line in its log.
    ///
    /// # Panics
    /// If it has not come within `timeout`.
    pub async fn wait_for_log(&self, timeout: Duration, check: impl Fn(&str) -> bool) -> String {
        let found = self.running.log.wait_for(|line| check(line).then(|| line.to_owned()));
        match tokio::time::timeout(timeout, found).await {
            Ok(line) => line,
            Err(_) => panic!("the line did not come within {timeout:?}"),
        }
    }

    /// Sends SIGTERM without waiting for the end.
    pub fn terminate(&self) {
        let pid = self.running.child.id().expect("the server runs");
        let kill = std::process::Command::new("kill").arg("-TERM").arg(pid.to_string()).status();
        assert!(kill.expect("kill should run").success());
    }

    /// Waits for the end after [`Server::terminate`].
    ///
    /// # Panics
    /// If it does not come.
    pub async fn ended(mut self) -> Ended {
        let status = tokio::time::timeout(PATIENCE, self.running.child.wait()).await;
        let status = status.expect("the server should end").expect("a status");
        self.running.log.wait_for_end().await;
        Ended { status, log: self.log() }
    }

    /// Ends it as an operator does.
    pub async fn stop(self) -> Ended {
        self.terminate();
        self.ended().await
    }

    /// Resident memory in bytes.
    ///
    /// # Panics
    /// Where there is no `/proc`.
    pub fn resident_bytes(&self) -> u64 {
        let pid = self.running.child.id().expect("the server runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("Linux");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        let kibibytes: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kibibytes * 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_address_in_a_log_line() {
        let line = "2026-11-30T12:00:00Z  INFO limpid: listening on http://127.0.0.1:8000, ready";
        assert_eq!(listening_address(line), "127.0.0.1:8000".parse().ok());
        assert_eq!(listening_address("traces go to http://127.0.0.1:4317"), None);
    }

    #[test]
    fn a_flag_that_is_set_twice_keeps_the_last_value() {
        let options = Options::new(Path::new("a.gguf")).arg("--port", "8001");
        assert_eq!(options.arguments.iter().filter(|argument| *argument == "--port").count(), 1);
        assert!(options.arguments.contains(&"8001".to_owned()));
    }
}
