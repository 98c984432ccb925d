//! What the way over HTTP costs: the same load straight on an engine, and on a server.
//!
//! The engine alone runs in this process, where nothing reads its tokens but a counter. The server is a process of
//! its own, and the clients that read its streams share its cores.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use anyhow::Context;
use indicatif::ProgressBar;
use limpid_engine::config::EngineConfig;
use limpid_engine::device::{Device, DeviceError, DeviceSource, find_adapters};
use limpid_engine::engine::EngineHandle;
use limpid_engine::model::Model;
use limpid_engine::request::{EngineRequest, RequestId, SamplingParams, StepOutput};

use super::paired::{self, Cost, Run};
use super::serve::{Load, LoadResult, draw, run_load, token_pool};
use super::server_process::ServerProcess;
use super::stats::Summary;
use crate::client::Client;
use crate::local::TargetArgs;

/// Measures `pairs` pairs on the model in `path`.
pub(super) async fn compare(
    path: &Path,
    target: &TargetArgs,
    load: Load,
    pairs: usize,
    bar: &ProgressBar,
) -> anyhow::Result<Cost> {
    let server = ServerProcess::start(path, target, &[], &[]).await?;
    let client = Client::new(&server.url, None)?;
    let pool = token_pool(&client, &client.served_model().await?).await?;
    let engine = LoneEngine::start(path, target)?;
    run_load(&client, &load, bar).await?;
    engine.run(&load, &pool, bar)?;
    paired::compare(pairs, &load, async |over_http, load| match over_http {
        true => paired::run(&client, load, bar).await,
        // Nothing else runs here meanwhile, so this thread may wait.
        false => engine.run(load, &pool, bar),
    })
    .await
}

/// An engine in this process, and what comes out of it.
struct LoneEngine {
    handle: EngineHandle,
    steps: mpsc::Receiver<StepOutput>,
}

/// This engine never sleeps, so nobody opens its device again.
struct NeverAsleep;

impl DeviceSource for NeverAsleep {
    fn open(&mut self) -> Result<Box<dyn Device>, DeviceError> {
        Err(DeviceError::Lost("it is opened once".to_owned()))
    }

    fn discard(&mut self) {}
}

impl LoneEngine {
    fn start(path: &Path, target: &TargetArgs) -> anyhow::Result<LoneEngine> {
        let model = Model::open_quantized(path, target.quantization)?;
        let adapters = find_adapters(target.device, false, 1, None)?;
        let adapter = adapters.first().context("there is no device")?;
        let config = EngineConfig::default().resolve(
            &model.program,
            model.context_length,
            adapter.memory(),
            adapter.sharing(),
        )?;
        let device = adapter.open(&model.program, &model, config.device_limits())?;
        let (sender, steps) = mpsc::channel();
        let handle = EngineHandle::start(0, config, device, Box::new(NeverAsleep), move |step| {
            // Fails only when nobody counts any more.
            let _ = sender.send(step);
        });
        Ok(LoneEngine { handle, steps })
    }

    /// Keeps `load.concurrency` requests in the engine until all are done. Blocks.
    fn run(&self, load: &Load, pool: &[u64], bar: &ProgressBar) -> anyhow::Result<Run> {
        let started = Instant::now();
        let mut sent = Vec::with_capacity(load.requests);
        let mut first_tokens = vec![None; load.requests];
        let submit = |sent: &mut Vec<Instant>| {
            let number = sent.len();
            if number == load.requests {
                return;
            }
            let (prompt, output_tokens) = draw(load, pool, number);
            let now = Instant::now();
            sent.push(now);
            self.handle.submit(EngineRequest {
                id: RequestId(number as u64),
                prompt: prompt.iter().map(|id| *id as u32).collect::<Arc<[u32]>>(),
                params: SamplingParams {
                    temperature: 0.0,
                    max_tokens: output_tokens,
                    min_tokens: output_tokens,
                    ..SamplingParams::default()
                },
                priority: 0,
                arrival: now,
                cache_salt: None,
                siblings: None,
            });
        };
        for _ in 0..load.concurrency {
            submit(&mut sent);
        }
        let (mut completed, mut output_tokens) = (0, 0);
        while completed < load.requests {
            let step = self.steps.recv().context("the engine has ended")?;
            for output in step.outputs {
                output_tokens += output.tokens.len() as u64;
                let number = output.id.0 as usize;
                if !output.tokens.is_empty() {
                    first_tokens[number].get_or_insert_with(|| sent[number].elapsed().as_secs_f64());
                }
                if output.finish.is_some() {
                    completed += 1;
                    bar.inc(1);
                    submit(&mut sent);
                }
            }
        }
        let result = LoadResult {
            seconds: started.elapsed().as_secs_f64(),
            completed,
            failed: 0,
            prompt_tokens: 0,
            output_tokens,
            time_to_first_token: Summary::of(first_tokens.into_iter().flatten()),
            inter_token_latency: None,
            end_to_end: None,
            first_error: None,
        };
        Ok(Run { result, cpu_seconds: None })
    }
}
