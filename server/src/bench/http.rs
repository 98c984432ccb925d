//! What HTTP costs: the same requests to the engine alone, in this process, and to a server, over HTTP and streamed.
//!
//! Both are closed loops of as many requests in flight. The server is a process of this binary, idle while the engine
//! alone works, and the two take turns, so that a machine that grows warm or busy hits both alike. The client shares
//! the machine with the server, so its work counts as overhead too.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use limpid_engine::config::EngineConfig;
use limpid_engine::device::{Device, DeviceChoice, DeviceError, DeviceSource, find_adapter};
use limpid_engine::engine::EngineHandle;
use limpid_engine::gguf::fixture::{TinyLlama, write_tiny_llama};
use limpid_engine::model::Model;
use limpid_engine::request::{EngineRequest, FinishReason, RequestId, SamplingParams, StepOutput};
use serde::Serialize;

use super::serve::{Load, TokenRequest, run_load, token_pool, token_request};
use super::stats::Summary;
use super::telemetry::ServerProcess;
use crate::client::Client;

/// The comparison.
#[derive(Clone, Debug, Serialize)]
pub(super) struct HttpReport {
    /// What was asked of each, each time.
    load: Load,
    /// Generated tokens per second of each pair.
    pairs: Vec<Pair>,
    /// Server's rate as a share of the engine's, over the pairs.
    ratio: Summary,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Pair {
    engine: f64,
    server: f64,
}

impl HttpReport {
    /// The table.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} requests, {} in flight, prompts of {} and outputs of {} tokens, a run\n\n engine tokens/s  server \
             tokens/s     ratio\n",
            self.load.requests, self.load.concurrency, self.load.prompt_tokens, self.load.output_tokens,
        );
        for Pair { engine, server } in &self.pairs {
            text.push_str(&format!("{engine:>16.1}{server:>17.1}{:>10.3}\n", server / engine));
        }
        let Summary { p50, min, max, .. } = self.ratio;
        text + &format!("\nratio {p50:.3} (median; {min:.3} to {max:.3})\n")
    }
}

/// Measures `pairs` pairs on the model in `path`, or on a tiny one of its own.
pub(super) async fn compare(
    path: Option<PathBuf>,
    device: DeviceChoice,
    load: Load,
    pairs: usize,
    bar: &ProgressBar,
) -> anyhow::Result<HttpReport> {
    let folder = tempfile::tempdir().context("no temporary folder can be made")?;
    let path = match path {
        Some(path) => path,
        None => {
            let path = folder.path().join("tiny.gguf");
            write_tiny_llama(&path, &TinyLlama { context_length: 4096, ..TinyLlama::default() })?;
            path
        }
    };
    let server = ServerProcess::start(&path, device, None).await?;
    let client = Client::new(&server.url, None)?;
    let pool = token_pool(&client, &client.served_model().await?).await?;
    let mut engine = EngineAlone::open(&path, device)?;
    let mut measured = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let mut rates = Pair { engine: 0.0, server: 0.0 };
        for is_server in [pair % 2 == 1, pair % 2 == 0] {
            if is_server {
                let result = run_load(&client, &load, bar).await?;
                if result.failed > 0 {
                    bail!("{} requests failed: {}", result.failed, result.first_error.unwrap_or_default());
                }
                rates.server = result.output_tokens as f64 / result.seconds.max(1e-9);
            } else {
                // Nothing else runs in this process meanwhile.
                rates.engine = tokio::task::block_in_place(|| engine.run(&load, &pool))?;
                bar.inc(load.requests as u64);
            }
        }
        measured.push(rates);
    }
    engine.handle.shutdown();
    let ratio = Summary::of(measured.iter().map(|pair| pair.server / pair.engine));
    Ok(HttpReport { load, pairs: measured, ratio: ratio.context("no pair was measured")? })
}

/// An engine without a server.
struct EngineAlone {
    handle: EngineHandle,
    steps: Receiver<StepOutput>,
    next_id: u64,
}

impl EngineAlone {
    fn open(path: &Path, device: DeviceChoice) -> anyhow::Result<EngineAlone> {
        let model = Model::open(path)?;
        let adapter = find_adapter(device, false)?;
        let config =
            EngineConfig::default().resolve(&model.program, model.context_length, adapter.memory())?;
        let device = adapter.open(&model.program, &model, config.device_limits())?;
        let (sender, steps) = channel();
        let handle = EngineHandle::start(config, device, Box::new(NeverAsleep), move |step| {
            // Nobody listens once the measurement is over.
            let _ = sender.send(step);
        });
        Ok(EngineAlone { handle, steps, next_id: 0 })
    }

    /// Tokens per second under the load.
    fn run(&mut self, load: &Load, pool: &[u64]) -> anyhow::Result<f64> {
        let mut requests = (0..load.requests).map(|number| token_request(load, pool, number));
        let (mut in_flight, mut tokens) = (0, 0);
        let started = Instant::now();
        for request in requests.by_ref().take(load.concurrency) {
            self.submit(request)?;
            in_flight += 1;
        }
        while in_flight > 0 {
            let step = self.steps.recv().context("the engine ended")?;
            for output in step.outputs {
                tokens += output.tokens.len();
                let Some(reason) = output.finish else { continue };
                ensure!(reason == FinishReason::Length, "a request ended with {reason:?}");
                in_flight -= 1;
                if let Some(request) = requests.next() {
                    self.submit(request)?;
                    in_flight += 1;
                }
            }
        }
        Ok(tokens as f64 / started.elapsed().as_secs_f64().max(1e-9))
    }

    fn submit(&mut self, request: TokenRequest) -> anyhow::Result<()> {
        self.next_id += 1;
        let prompt: Vec<u32> = request.prompt.into_iter().map(u32::try_from).collect::<Result<_, _>>()?;
        let taken = self.handle.submit(EngineRequest {
            id: RequestId(self.next_id),
            prompt: Arc::from(prompt),
            params: SamplingParams {
                temperature: 0.0,
                max_tokens: request.output_tokens,
                ..SamplingParams::default()
            },
            priority: 0,
            arrival: Instant::now(),
            cache_salt: None,
            siblings: None,
        });
        ensure!(taken, "the engine ended");
        Ok(())
    }
}

/// For an engine that nobody puts to sleep.
struct NeverAsleep;

impl DeviceSource for NeverAsleep {
    fn open(&mut self) -> Result<Box<dyn Device>, DeviceError> {
        Err(DeviceError::Failed("this engine does not sleep".to_owned()))
    }

    fn discard(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_alone_generates_what_the_load_asks_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        write_tiny_llama(&path, &TinyLlama::default()).unwrap();
        let mut engine = EngineAlone::open(&path, DeviceChoice::Cpu).unwrap();
        let load = Load {
            concurrency: 3,
            requests: 7,
            prompt_tokens: "4-9".parse().unwrap(),
            output_tokens: "2-5".parse().unwrap(),
            seed: 1,
            stream: true,
        };
        let pool: Vec<u64> = (1..20).collect();
        let rate = engine.run(&load, &pool).unwrap();
        assert!(rate.is_finite() && rate > 0.0);
        assert_eq!(engine.next_id, 7);
        engine.handle.shutdown();
        assert!(engine.run(&load, &pool).is_err());
    }
}
