//! An engine of another make, measured: it answers every prompt with as many tokens as it has, and its metrics
//! come out under vLLM's names. `cargo run -p limpid-telemetry --example own_engine`

use std::time::{Duration, Instant};

use limpid_telemetry::observation::*;
use limpid_telemetry::*;

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = TelemetryConfig::resolve(TelemetrySettings::default(), &|name| std::env::var(name).ok())?;
    let telemetry = Telemetry::start(config, Vec::new())?;
    let model_name = "toy".to_owned();
    let model = telemetry.model(ModelIdentity { model_name, max_model_len: 128, ..ModelIdentity::default() });
    for num_prompt_tokens in [3, 5] {
        let started = RequestStarted {
            arrival: Instant::now(),
            operation: Operation::TextCompletion,
            id: format!("cmpl-{num_prompt_tokens}"),
            num_prompt_tokens,
            max_tokens: 128,
            params: RequestParams::default(),
        };
        let mut request = model.request(None, started);
        let mut news = vec![RequestEventKind::Queued, RequestEventKind::Scheduled { num_cached_tokens: 0 }];
        for token in 0..num_prompt_tokens {
            let step = StepFinished {
                started: Instant::now(),
                finished: Instant::now(),
                scheduler: SchedulerStats { num_running: 1, ..SchedulerStats::default() },
                times: StepTimes::default(),
                num_prompt_tokens: if token == 0 { num_prompt_tokens } else { 0 },
                num_generation_tokens: 1,
                work: StepWork::default(),
                apply: Duration::ZERO,
            };
            model.step_finished(&step);
            let events: Vec<_> = news.drain(..).map(|kind| RequestEvent { at: step.started, kind }).collect();
            request.progress(RequestProgress {
                new_tokens_at: step.finished,
                now: step.finished,
                events: &events,
                num_new_tokens: 1,
                times: step.times,
            });
        }
        let now = Instant::now();
        request.finish(RequestOutcome { now, reason: FinishReason::Stop, error_type: None });
    }
    print!("{}", telemetry.render_metrics(None).body);
    Ok(())
}
