//! A server from start to end: everything is checked and opened before the port opens, and everything is
//! drained and flushed before the process ends.
//!
//! [`Server::start`] is the one way to a running server: of the binary, of the demo and of tests.
//!
//! Invariant: no step of the shutdown waits without a bound, and a request that is cut off by it is ended
//! as aborted, never lost.

mod listener;
mod startup;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use limpid_engine::config::EngineConfig;
use limpid_engine::device::DeviceChoice;
use limpid_engine::model::Quantization;
use limpid_telemetry::{ModelTelemetry, Telemetry, TelemetrySettings};
use opentelemetry_sdk::trace::SpanProcessor;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, timeout};

use crate::api::{self, AppParts};
use crate::cli::ServeArgs;
use crate::frontend::{AdmissionLimits, EngineParts, Frontend};
use crate::{runtime, store};

use listener::{Connections, Port};
use startup::Opened;

/// How long aborted requests get to write their last bytes.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the frontend gets to close its books once the engine has ended.
const BOOKS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the exporters get to send what they have.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The GGUF file or the Hugging Face directory.
    pub model_path: PathBuf,
    /// How a directory's matrices are quantised while loading, if they are.
    pub quantization: Option<Quantization>,
    /// Address or name to listen on.
    pub host: String,
    /// Port to listen on; 0 takes any free one.
    pub port: u16,
    /// Keys that open the server; none opens it to all.
    pub api_keys: Vec<String>,
    /// Names of the model; at least one.
    pub served_model_names: Vec<String>,
    /// The engine's settings.
    pub engine: EngineConfig,
    /// The device.
    pub device: DeviceChoice,
    /// Refuse the CPU device and software adapters.
    pub require_gpu: bool,
    /// Directory in which drivers' compiled pipelines are kept from one start to the next; `None` keeps none.
    pub pipelines: Option<PathBuf>,
    /// Telemetry settings from flags; the device is added to the resource.
    pub telemetry: TelemetrySettings,
    /// How much is let in at once.
    pub admission: AdmissionLimits,
    /// How long the engine may make no step while requests are open before the server counts as unhealthy.
    pub engine_iteration_timeout: Duration,
    /// How often the log says what the engine does; `None` is never.
    pub log_stats_interval: Option<Duration>,
    /// How long running requests get to end at shutdown.
    pub shutdown_timeout: Duration,
}

/// A server that is about to run.
pub struct Server;

/// A server that runs. Dropping it without [`RunningServer::shutdown`] leaves it running.
pub struct RunningServer {
    /// Where it listens.
    pub addr: SocketAddr,
    frontend: Frontend,
    frontend_tasks: Vec<JoinHandle<()>>,
    connections: Connections,
    stats_tasks: Vec<JoinHandle<()>>,
    telemetry: Telemetry,
    shutdown_timeout: Duration,
}

impl Server {
    /// Opens the model and the device, checks every setting, and only then opens the port. Spans go to
    /// `span_processors` besides the exporters.
    ///
    /// # Errors
    /// The first thing that is wrong, for people: setting, value found, what is allowed.
    pub async fn start(
        options: ServeOptions,
        span_processors: Vec<Box<dyn SpanProcessor>>,
    ) -> anyhow::Result<RunningServer> {
        // Bound before the slow part, so that a port in use is found at once, but not open yet.
        let port = Port::bind(&options.host, options.port).await?;
        let addr = port.address()?;
        let shutdown_timeout = options.shutdown_timeout;
        let log_stats_interval = options.log_stats_interval;
        let api_keys = options.api_keys.clone();
        let admission = options.admission;
        let iteration_timeout = options.engine_iteration_timeout;
        let served_names = options.served_model_names.clone();
        // Reading, hashing, uploading and compiling take their time and their thread.
        let opened = tokio::task::spawn_blocking(move || startup::open(&options, span_processors))
            .await
            .context("the start-up failed")??;
        let Opened { engines, telemetry, text, device, max_model_len, has_priorities, prefix_block_size } =
            opened;
        let stats_tasks = match log_stats_interval {
            Some(interval) => {
                let log = |engine: &EngineParts| tokio::spawn(log_stats(engine.telemetry.clone(), interval));
                engines.iter().map(log).collect()
            }
            None => Vec::new(),
        };
        let (frontend, frontend_tasks) =
            Frontend::start(engines, &text, admission, prefix_block_size, iteration_timeout);
        let router = api::router(AppParts {
            frontend: frontend.clone(),
            telemetry: telemetry.clone(),
            text,
            served_names,
            max_model_len,
            has_priorities,
            api_keys,
            device,
            address: Some(addr),
        });
        let connections = port.listen(router)?;
        tracing::info!("listening on http://{addr}");
        Ok(RunningServer {
            addr,
            frontend,
            frontend_tasks,
            connections,
            stats_tasks,
            telemetry,
            shutdown_timeout,
        })
    }
}

impl RunningServer {
    /// Stops accepting, lets running requests end, aborts the rest, flushes the telemetry.
    pub async fn shutdown(mut self) {
        self.connections.stop_accepting();
        let drained = timeout(self.shutdown_timeout, self.connections.finished()).await;
        if drained.is_err() {
            tracing::warn!(
                "requests still run after {} s; they are aborted",
                self.shutdown_timeout.as_secs_f64()
            );
            self.frontend.abort_all();
            // Connections whose clients do not read are cut off.
            let _cut_off = timeout(LAST_WORDS_TIMEOUT, self.connections.finished()).await;
        }
        self.connections.close().await;
        let frontend = self.frontend.clone();
        let books = async {
            // Clients that went away last may still have a request in the engine, which ends it now.
            let _ended = tokio::task::spawn_blocking(move || frontend.shutdown()).await;
            for task in &mut self.frontend_tasks {
                let _ended = task.await;
            }
        };
        if timeout(BOOKS_TIMEOUT, books).await.is_err() {
            tracing::warn!("an engine did not end in time; its open requests are closed as aborted");
            self.frontend_tasks.iter().for_each(JoinHandle::abort);
        }
        self.stats_tasks.iter().for_each(JoinHandle::abort);
        for lost in self.telemetry.shutdown(FLUSH_TIMEOUT).await {
            tracing::warn!("{lost}");
        }
        tracing::info!("ended");
    }
}

/// Says every so often what an engine does.
async fn log_stats(telemetry: ModelTelemetry, interval: Duration) {
    let mut interval = tokio::time::interval(interval);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        if let Some(line) = telemetry.stats_line(Instant::now()) {
            tracing::info!("{line}");
        }
    }
}

/// `limpid serve`: serves until SIGTERM or Ctrl-C.
///
/// # Errors
/// Whatever keeps the server from starting.
pub fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let mut options = args.options(store::resolve(args.model.as_deref())?);
    options.pipelines = store::pipelines();
    runtime::run(async {
        let signals = Signals::new()?;
        let start = Server::start(options, Vec::new());
        serve_until_signal(start, signals).await
    })
}

async fn serve_until_signal(
    start: impl Future<Output = anyhow::Result<RunningServer>>,
    mut signals: Signals,
) -> anyhow::Result<()> {
    let server = tokio::select! {
        server = start => server?,
        name = signals.next() => {
            tracing::info!("{name} during the start");
            return Ok(());
        }
    };
    let name = signals.next().await;
    tracing::info!("{name}: shutting down; a second signal ends the process at once");
    tokio::select! {
        () = server.shutdown() => Ok(()),
        name = signals.next() => {
            tracing::warn!("{name} again: ending at once");
            std::process::exit(1)
        }
    }
}

/// The signals that end the server.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Signals> {
        Ok(Signals {
            #[cfg(unix)]
            terminate: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
                .context("SIGTERM cannot be handled")?,
        })
    }

    /// Waits for the next one and names it.
    async fn next(&mut self) -> &'static str {
        #[cfg(unix)]
        let terminate = self.terminate.recv();
        #[cfg(not(unix))]
        let terminate = std::future::pending::<Option<()>>();
        tokio::select! {
            _ = tokio::signal::ctrl_c() => "SIGINT",
            _ = terminate => "SIGTERM",
        }
    }
}
