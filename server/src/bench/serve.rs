//! Closed-loop load on a server: a fixed number of clients, each with one request in flight.
//!
//! Prompts are exact in length and unlike each other, so that no prefix cache helps: random draws from the
//! token ids of a passage, which the server itself tokenises. Request `i` is the same for a given seed whatever
//! the concurrency. Times are what a client sees, from sending the request on.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::stats::Summary;
use crate::client::{Client, ClientError};

/// What the prompts are drawn from.
const PASSAGE: &str = "The keeper of the lighthouse counted the ships that passed between the rocks and \
    the harbour. Each night he wrote down the hour, the wind, the height of the water and the colour of every \
    lantern he saw. When two lists disagreed, he walked to the village in the morning and asked the fishermen, \
    who had seen the same sea from the other side. Numbers, he used to say, are only as good as the eyes that \
    took them; a clock that is wrong by a minute still tells you how long a storm lasted.";

/// A length, or a range of lengths to draw from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Lengths {
    least: usize,
    most: usize,
}

/// Longest prompt or output that can be asked for.
const MAX_LENGTH: usize = 1 << 20;

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Lengths, String> {
        let number =
            |text: &str| text.parse::<usize>().ok().filter(|number| (1..=MAX_LENGTH).contains(number));
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        match (number(least), number(most)) {
            (Some(least), Some(most)) if least <= most => Ok(Lengths { least, most }),
            _ => Err(format!("allowed: N or LEAST-MOST, from 1 to {MAX_LENGTH}")),
        }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.least == self.most {
            true => write!(formatter, "{}", self.most),
            false => write!(formatter, "{}-{}", self.least, self.most),
        }
    }
}

impl Lengths {
    fn range(&self) -> RangeInclusive<usize> {
        self.least..=self.most
    }
}

/// The load.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Load {
    /// Clients.
    pub(super) concurrency: usize,
    /// Requests of all clients together.
    pub(super) requests: usize,
    /// Prompt lengths in tokens.
    pub(super) prompt_tokens: Lengths,
    /// Output lengths in tokens.
    pub(super) output_tokens: Lengths,
    /// Draws lengths and prompts.
    pub(super) seed: u64,
    /// Whether answers are streamed.
    pub(super) stream: bool,
}

/// What the load showed. Times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LoadResult {
    /// From the first request to the last answer.
    pub(super) seconds: f64,
    /// Requests that were answered.
    pub(super) completed: usize,
    /// Requests that failed.
    pub(super) failed: usize,
    /// Prompt tokens of the completed requests, as the server counts them.
    pub(super) prompt_tokens: u64,
    /// Generated tokens of the completed requests, as the server counts them.
    pub(super) output_tokens: u64,
    /// Time to the first piece of text; only of streamed answers.
    pub(super) time_to_first_token: Option<Summary>,
    /// Time between two pieces of text of one answer; only of streamed answers.
    pub(super) inter_token_latency: Option<Summary>,
    /// Time to the end of the answer.
    pub(super) end_to_end: Option<Summary>,
    /// The first failure in words.
    pub(super) first_error: Option<String>,
}

/// Runs the load.
///
/// # Errors
/// The server cannot be reached, lists no model or does not tokenise; or not one request succeeded.
pub(super) async fn run_load(
    client: &Client,
    load: &Load,
    progress: &ProgressBar,
) -> anyhow::Result<LoadResult> {
    let model: Arc<str> = client.served_model().await?.into();
    let pool: Arc<[u64]> = token_pool(client, &model).await?.into();
    // One request before the clock starts: connections, first touches of memory.
    ask(client, &request(load, &model, &pool, load.requests)).await.context("the first request")?;

    let next = Arc::new(AtomicUsize::new(0));
    let load = Arc::new(load.clone());
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..load.concurrency.min(load.requests) {
        let (client, progress) = (client.clone(), progress.clone());
        let (model, pool, next, load) = (model.clone(), pool.clone(), next.clone(), load.clone());
        clients.spawn(async move {
            let mut answers = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= load.requests {
                    return answers;
                }
                answers.push(ask(&client, &request(&load, &model, &pool, number)).await);
                progress.inc(1);
            }
        });
    }
    let mut answers = Vec::with_capacity(load.requests);
    while let Some(result) = clients.join_next().await {
        answers.extend(result.context("a client panicked")?);
    }
    let result = sum_up(answers, started.elapsed().as_secs_f64());
    if result.completed == 0 {
        bail!("all {} requests failed: {}", result.failed, result.first_error.unwrap_or_default());
    }
    Ok(result)
}

/// Token ids to draw prompts from: those of a passage, as the server tokenises it.
pub(super) async fn token_pool(client: &Client, model: &str) -> anyhow::Result<Vec<u64>> {
    let body = json!({ "model": model, "prompt": PASSAGE, "add_special_tokens": false });
    let answer = client.post("/tokenize", &body).await?;
    let ids: Vec<u64> = answer["tokens"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    match ids.is_empty() {
        true => bail!("/tokenize returned no tokens"),
        false => Ok(ids),
    }
}

/// What request number `number` asks for: the same for the same load, whoever sends it.
pub(super) fn draw(load: &Load, pool: &[u64], number: usize) -> (Vec<u64>, usize) {
    let mut random = ChaCha8Rng::seed_from_u64(load.seed);
    random.set_stream(number as u64);
    let prompt_tokens = random.random_range(load.prompt_tokens.range());
    let output_tokens = random.random_range(load.output_tokens.range());
    ((0..prompt_tokens).map(|_| pool[random.random_range(0..pool.len())]).collect(), output_tokens)
}

/// The body of a request.
#[derive(Debug, PartialEq, Serialize)]
struct Body<'a> {
    model: &'a str,
    prompt: Vec<u64>,
    max_tokens: usize,
    min_tokens: usize,
    ignore_eos: bool,
    temperature: u32,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
}

#[derive(Debug, PartialEq, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

fn request<'a>(load: &Load, model: &'a str, pool: &[u64], number: usize) -> Body<'a> {
    let (prompt, output_tokens) = draw(load, pool, number);
    Body {
        model,
        prompt,
        max_tokens: output_tokens,
        min_tokens: output_tokens,
        ignore_eos: true,
        temperature: 0,
        stream: load.stream,
        stream_options: load.stream.then_some(StreamOptions { include_usage: true }),
    }
}

/// What a client saw of one answer. Times in seconds.
struct Answer {
    time_to_first_token: Option<f64>,
    inter_token_latencies: Vec<f64>,
    end_to_end: f64,
    prompt_tokens: u64,
    output_tokens: u64,
}

/// What is read of an event or of a whole answer. Servers that leave something out are measured without it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Piece {
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Choice {
    text: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

async fn ask(client: &Client, body: &Body<'_>) -> Result<Answer, ClientError> {
    const PATH: &str = "/v1/completions";
    let started = Instant::now();
    let mut pieces: Vec<Instant> = Vec::new();
    let usage = if body.stream {
        let mut usage = None;
        let mut events = client.post_stream(PATH, body).await?;
        while let Some(event) = events.next_json::<Piece>().await? {
            if event.choices.iter().any(|choice| !choice.text.is_empty()) {
                pieces.push(Instant::now());
            }
            usage = event.usage.or(usage);
        }
        usage
    } else {
        serde_json::from_value::<Piece>(client.post(PATH, body).await?)?.usage
    };
    let usage = usage.unwrap_or_default();
    Ok(Answer {
        time_to_first_token: pieces.first().map(|first| first.duration_since(started).as_secs_f64()),
        inter_token_latencies: pieces
            .windows(2)
            .map(|pair| pair[1].duration_since(pair[0]).as_secs_f64())
            .collect(),
        end_to_end: started.elapsed().as_secs_f64(),
        prompt_tokens: usage.prompt_tokens,
        output_tokens: usage.completion_tokens,
    })
}

fn sum_up(results: Vec<Result<Answer, ClientError>>, seconds: f64) -> LoadResult {
    let mut first_error = None;
    let mut answers = Vec::with_capacity(results.len());
    let mut failed = 0;
    for result in results {
        match result {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                failed += 1;
                first_error.get_or_insert(error.to_string());
            }
        }
    }
    LoadResult {
        seconds,
        completed: answers.len(),
        failed,
        prompt_tokens: answers.iter().map(|answer| answer.prompt_tokens).sum(),
        output_tokens: answers.iter().map(|answer| answer.output_tokens).sum(),
        time_to_first_token: Summary::of(answers.iter().filter_map(|answer| answer.time_to_first_token)),
        inter_token_latency: Summary::of(
            answers.iter().flat_map(|answer| answer.inter_token_latencies.iter().copied()),
        ),
        end_to_end: Summary::of(answers.iter().map(|answer| answer.end_to_end)),
        first_error,
    }
}

#[cfg(test)]
mod tests;
