//! Delivering one request: attempts, back-off, giving up, and one voice about it.
//!
//! A batch is retried for up to [`Delivery`]'s `patience`, so a collector that starts after the server, or
//! restarts, loses nothing; meanwhile the queue in front fills up to its bound and then drops, counted. Once
//! [`Closing`] has begun, what is under way ends by the deadline and nothing is tried again.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::RngExt as _;
use tokio::time::Instant;

use super::closing::Closing;
use super::counts::Counts;
use super::grpc::GrpcClient;
use super::http::HttpClient;
use super::signal::Signal;
use crate::config::{ConfigError, Protocol, Push};

const FIRST_DELAY: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// A collector may ask for more patience, but not for any amount of it.
const LONGEST_ASKED_DELAY: Duration = Duration::from_secs(30);

/// Why an attempt failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// Warned about once, until something succeeds again.
    pub(super) kind: &'static str,
    /// Without secrets.
    pub(super) message: String,
    pub(super) retryable: bool,
    pub(super) retry_after: Option<Duration>,
}

#[derive(Clone, Debug)]
enum Client {
    Grpc(GrpcClient),
    Http(HttpClient),
}

/// The way to the collector for one signal. Clones share everything.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    client: Client,
    endpoint: Arc<str>,
    /// Of one attempt.
    timeout: Duration,
    /// From the first failure of a batch to giving it up.
    patience: Duration,
    closing: Closing,
    counts: Arc<Counts>,
    warned: Arc<Mutex<HashSet<&'static str>>>,
}

impl Delivery {
    /// Must be called inside the runtime that will drive it.
    pub(crate) fn new(
        push: &Push,
        patience: Duration,
        closing: &Closing,
        counts: &Arc<Counts>,
    ) -> Result<Delivery, ConfigError> {
        let client = match push.protocol {
            Protocol::Grpc => Client::Grpc(GrpcClient::new(push)?),
            Protocol::HttpProtobuf => Client::Http(HttpClient::new(push)?),
        };
        Ok(Delivery {
            client,
            endpoint: push.shown_endpoint().into(),
            timeout: push.timeout,
            patience,
            closing: closing.clone(),
            counts: Arc::clone(counts),
            warned: Arc::default(),
        })
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Delivers or gives up, and counts which.
    pub(super) async fn deliver<S: Signal>(&self, message: S::Request, items: u64) {
        let started = Instant::now();
        let mut delay = FIRST_DELAY;
        loop {
            let failure = match self.attempt::<S>(&message).await {
                Ok(response) => {
                    self.counts.request(true);
                    self.succeeded::<S>(&response, items);
                    return;
                }
                Err(failure) => failure,
            };
            self.counts.request(false);
            self.warn::<S>(&failure);
            let jitter = rand::rng().random_range(0.8..1.2);
            let pause = match failure.retry_after {
                Some(asked) => asked.min(LONGEST_ASKED_DELAY),
                None => delay.mul_f64(jitter),
            };
            delay = (delay * 2).min(LONGEST_DELAY);
            let patient = started.elapsed() + pause <= self.patience;
            if !failure.retryable || !patient || self.closing.begun() {
                self.counts.gave_up(items);
                return;
            }
            // When the end begins there is one last attempt, at once.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.closing.beginning() => {}
            }
        }
    }

    async fn attempt<S: Signal>(&self, message: &S::Request) -> Result<S::Response, Failure> {
        let send = async {
            match &self.client {
                Client::Grpc(client) => client.send::<S>(message.clone()).await,
                Client::Http(client) => client.send::<S>(message).await,
            }
        };
        let timed_out = |message: String| Failure { kind: "timeout", message, retryable: true, retry_after: None };
        tokio::select! {
            result = send => result,
            () = tokio::time::sleep(self.timeout) => Err(timed_out(format!("no answer within {:?}", self.timeout))),
            () = self.closing.passed() => Err(timed_out("no answer before the server's end".to_owned())),
        }
    }

    fn succeeded<S: Signal>(&self, response: &S::Response, items: u64) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        match S::refused(response) {
            Some((refused, _)) => {
                self.counts.delivered(items, refused);
                if warned.insert("partial") {
                    tracing::warn!(
                        endpoint = %self.endpoint,
                        "OTLP {}: the collector refused {refused} of {items} {}",
                        S::NAME,
                        S::ITEMS,
                    );
                }
            }
            None => {
                self.counts.delivered(items, 0);
                if !warned.is_empty() {
                    warned.clear();
                    tracing::info!(endpoint = %self.endpoint, "OTLP {}: delivered again", S::NAME);
                }
            }
        }
    }

    fn warn<S: Signal>(&self, failure: &Failure) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.insert(failure.kind) {
            tracing::warn!(
                endpoint = %self.endpoint,
                "OTLP {}: {} {} not delivered yet: {}",
                S::NAME,
                if failure.retryable { "will retry," } else { "giving up," },
                S::ITEMS,
                failure.message,
            );
        }
    }
}
