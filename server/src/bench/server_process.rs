//! This binary as a server in a process of its own, so that it shares nothing with the load put on it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use limpid_engine::device::DeviceChoice;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::local::TargetArgs;

/// How long a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(600);

/// A running server. Dropping it ends it.
pub(super) struct ServerProcess {
    pub(super) url: String,
    _child: Child,
}

impl ServerProcess {
    /// Starts a server on the model in `path` with the further `arguments`, and no other `OTEL_*` variables than
    /// those in `environment`.
    pub(super) async fn start(
        path: &Path,
        target: &TargetArgs,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> anyhow::Result<ServerProcess> {
        let device = match target.device {
            DeviceChoice::Auto => "auto",
            DeviceChoice::Wgpu => "wgpu",
            DeviceChoice::Cpu => "cpu",
        };
        let binary = std::env::current_exe().context("this program cannot be found")?;
        let mut command = Command::new(binary);
        command.arg("serve").arg(path).args(["--port", "0", "--device", device]).args(arguments);
        if let Some(quantization) = target.quantization {
            command.args(["--quantization", quantization.name()]);
        }
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OTEL_") {
                command.env_remove(name);
            }
        }
        command.env("RUST_LOG", "limpid=info").envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("a server cannot be started")?;
        let mut lines = BufReader::new(child.stderr.take().context("a server without a log")?).lines();
        let url = tokio::time::timeout(START_TIMEOUT, async {
            let mut seen = String::new();
            while let Some(line) = lines.next_line().await? {
                if let Some((_, address)) = line.rsplit_once("listening on ") {
                    return Ok(address.trim().to_owned());
                }
                seen = line;
            }
            bail!("a server ended at its start: {seen}")
        });
        let url = url.await.context("a server does not start")??;
        // A log that nobody reads would stop the server once its pipe is full.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(ServerProcess { url, _child: child })
    }
}
