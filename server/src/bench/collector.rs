//! A collector for measurements: it takes every payload and throws it away, or misbehaves as collectors do.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::net::TcpListener;

/// How long a slow collector takes for an answer.
const SLOW: Duration = Duration::from_secs(3);
/// How long a restarting collector is up, and then down.
const RESTART: Duration = Duration::from_secs(2);

/// What the collector does with what it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Behaviour {
    /// Takes everything at once
    Takes,
    /// Nothing listens at its address
    Absent,
    /// Takes connections and never answers
    BlackHole,
    /// Takes everything, after three seconds
    Slow,
    /// Answers 404 to everything
    NotFound,
    /// Up for two seconds, down for two
    Restarting,
}

/// A collector on a port of its own. It works until the runtime ends.
pub(super) struct Collector {
    pub(super) address: SocketAddr,
    exports: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
}

impl Collector {
    pub(super) async fn start(behaviour: Behaviour) -> anyhow::Result<Collector> {
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let address = listener.local_addr().context("the collector has no address")?;
        let (exports, bytes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (counted, sized) = (Arc::clone(&exports), Arc::clone(&bytes));
        let answer = move |body: Bytes| {
            counted.fetch_add(1, Ordering::Relaxed);
            sized.fetch_add(body.len() as u64, Ordering::Relaxed);
            answer_as(behaviour)
        };
        let router = Router::new().fallback(answer).layer(axum::extract::DefaultBodyLimit::disable());
        match behaviour {
            // The port stays unused: it was free a moment ago and is of the ephemeral ones.
            Behaviour::Absent => drop(listener),
            Behaviour::Restarting => {
                tokio::spawn(restart(listener, address, router));
            }
            _ => {
                tokio::spawn(async move { axum::serve(listener, router).await });
            }
        }
        Ok(Collector { address, exports, bytes })
    }

    /// Requests that arrived, and their bytes.
    pub(super) fn received(&self) -> (u64, u64) {
        (self.exports.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

async fn answer_as(behaviour: Behaviour) -> Response {
    match behaviour {
        Behaviour::NotFound => return StatusCode::NOT_FOUND.into_response(),
        Behaviour::BlackHole => std::future::pending().await,
        Behaviour::Slow => tokio::time::sleep(SLOW).await,
        Behaviour::Takes | Behaviour::Absent | Behaviour::Restarting => {}
    }
    [("content-type", "application/x-protobuf")].into_response()
}

async fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("the collector cannot listen on {address}"))
}

/// Serves and stops serving in turns; connections end with each turn.
async fn restart(listener: TcpListener, address: SocketAddr, router: Router) -> anyhow::Result<()> {
    let mut next = Some(listener);
    loop {
        let listener = match next.take() {
            Some(listener) => listener,
            None => listen(address).await?,
        };
        let server = tokio::spawn(axum::serve(listener, router.clone()).into_future());
        tokio::time::sleep(RESTART).await;
        server.abort();
        let _ = server.await;
        tokio::time::sleep(RESTART).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;

    #[tokio::test]
    async fn the_collector_counts_and_answers_as_otlp_wants() {
        let collector = Collector::start(Behaviour::Takes).await.unwrap();
        let url = format!("http://{}", collector.address);
        // The answer is protobuf of no bytes, which is no JSON: the client of the API says so.
        let _ = Client::new(&url, None).unwrap().post("/v1/traces", &serde_json::json!({})).await;
        assert_eq!(collector.received(), (1, 2));
    }

    #[tokio::test]
    async fn an_absent_collector_refuses_connections() {
        let collector = Collector::start(Behaviour::Absent).await.unwrap();
        assert!(tokio::net::TcpStream::connect(collector.address).await.is_err());
    }
}
