//! What the demo does with a running server: ask, draw, go on drawing.
//!
//! It knows the server only by its address and by the trees that come out of the collector.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use opentelemetry_sdk::trace::SpanData;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::collector::Trace;
use super::conversation::{QUESTIONS, ask};
use super::metrics;
use super::waterfall::{Canvas, render};
use crate::client::Client;

/// How long the traces of the first round may take once the answers are there.
const TRACES_TIMEOUT: Duration = Duration::from_secs(30);

/// A running server and a place to draw.
pub(super) struct Session<'a, W> {
    /// `http://HOST:PORT`.
    pub(super) base: &'a str,
    /// Trees as requests end.
    pub(super) traces: mpsc::Receiver<Trace>,
    /// Where to draw.
    pub(super) out: W,
    /// How to draw.
    pub(super) canvas: Canvas,
}

impl<W: Write> Session<'_, W> {
    /// Asks the questions, draws their traces and the main metrics.
    pub(super) async fn first_round(&mut self) -> anyhow::Result<()> {
        let client = Client::new(self.base, None)?;
        let model = client.served_model().await?;
        let device = &client.get_json("/version").await?["device"];
        let fact = |key: &str| device[key].as_str().unwrap_or("unknown");
        writeln!(self.out, "{model} on {} ({}, {})", fact("name"), fact("kind"), fact("backend"))?;
        self.converse(&client, &model).await?;
        let traces = self.await_traces(QUESTIONS.len(), TRACES_TIMEOUT).await?;
        writeln!(self.out, "\nTheir traces, as OTLP exports them:\n")?;
        for trace in traces {
            writeln!(self.out, "{}", render(&trace, self.canvas))?;
        }
        let scrape = client.get_text("/metrics").await?;
        writeln!(self.out, "The main metrics (all of them: {}/metrics):\n", self.base)?;
        let rows = metrics::summary(&scrape);
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in rows {
            writeln!(self.out, "  {name:width$}  {value}")?;
        }
        Ok(self.out.flush()?)
    }

    /// Says how to go on: with this server, or `once` it is gone, with another.
    pub(super) fn hints(&mut self, once: bool) -> anyhow::Result<()> {
        let base = if once { "http://127.0.0.1:8000" } else { self.base };
        let serve = if once { "limpid serve &\n  " } else { "" };
        let chat = r#"{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}"#;
        writeln!(
            self.out,
            "\nAsk it yourself:\n\n  \
             {serve}curl {base}/v1/chat/completions -H 'content-type: application/json' \\\n    -d '{chat}'\n\n\
             Send the traces to Jaeger, and look at http://localhost:16686:\n\n  \
             docker run -d -p 16686:16686 -p 4317:4317 jaegertracing/jaeger\n  \
             limpid serve --otlp-traces-endpoint http://localhost:4317 --collect-detailed-traces all"
        )?;
        Ok(self.out.flush()?)
    }

    /// Draws what others ask, until the server is gone.
    pub(super) async fn keep_drawing(&mut self) -> anyhow::Result<()> {
        writeln!(self.out, "\nServing until Ctrl-C; the next requests appear here.\n")?;
        self.out.flush()?;
        while let Some(trace) = self.traces.recv().await {
            writeln!(self.out, "{}", render(&trace, self.canvas))?;
            self.out.flush()?;
        }
        Ok(())
    }

    async fn converse(&mut self, client: &Client, model: &str) -> anyhow::Result<()> {
        writeln!(
            self.out,
            "Asking {} questions at once; from the last one the client walks away.\n",
            QUESTIONS.len()
        )?;
        for (number, question) in QUESTIONS.iter().enumerate() {
            writeln!(self.out, "[{}] > {}", number + 1, question.text)?;
        }
        writeln!(self.out)?;
        let (sender, mut lines) = mpsc::channel(64);
        let mut tasks = JoinSet::new();
        let width = self.canvas.width.saturating_sub(4);
        for (number, question) in QUESTIONS.into_iter().enumerate() {
            tasks.spawn(ask(client.clone(), model.to_owned(), number, question, width, sender.clone()));
        }
        drop(sender);
        while let Some(line) = lines.recv().await {
            writeln!(self.out, "[{}] {}", line.number + 1, line.text)?;
            self.out.flush()?;
        }
        while let Some(result) = tasks.join_next().await {
            result.context("a question panicked")?.context("a question got no answer")?;
        }
        Ok(())
    }

    /// The next traces of model calls, in the order of their starts. Other requests are passed over.
    async fn await_traces(&mut self, count: usize, timeout: Duration) -> anyhow::Result<Vec<Trace>> {
        let mut found = Vec::new();
        let deadline = tokio::time::Instant::now() + timeout;
        while found.len() < count {
            match tokio::time::timeout_at(deadline, self.traces.recv()).await {
                Ok(Some(trace)) if trace.iter().any(is_model_call) => found.push(trace),
                Ok(Some(_)) => {}
                Ok(None) => bail!("the server ended before its traces came"),
                Err(_) => bail!(
                    "{} of {count} traces came within {} s; a sampler (OTEL_TRACES_SAMPLER) may drop the others",
                    found.len(),
                    timeout.as_secs()
                ),
            }
        }
        found.sort_by_key(|trace| trace.iter().map(|span| span.start_time).min());
        Ok(found)
    }
}

fn is_model_call(span: &SpanData) -> bool {
    span.attributes.iter().any(|attribute| attribute.key.as_str() == "gen_ai.operation.name")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Json;
    use axum::body::{Body, Bytes};
    use axum::response::IntoResponse;
    use axum::routing::{get, post};
    use futures::StreamExt;
    use opentelemetry::KeyValue;
    use opentelemetry::trace::{Span as _, SpanKind, Tracer, TracerProvider};
    use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
    use serde_json::json;
    use tokio::sync::Notify;

    use super::super::collector::collector;
    use super::*;

    /// A server that answers every chat with endless words, or with six if `max_tokens` is small, and opens
    /// a SERVER span that ends with the response.
    fn fake_server(tracer: SdkTracer) -> axum::Router {
        let chat = move |Json(request): Json<serde_json::Value>| {
            let mut span =
                tracer.span_builder("POST /v1/chat/completions").with_kind(SpanKind::Server).start(&tracer);
            span.set_attribute(KeyValue::new("gen_ai.operation.name", "chat"));
            let count = if request["max_tokens"] == 512 { usize::MAX } else { 6 };
            async move {
                let event = json!({ "choices": [{ "delta": { "content": "word " } }] });
                let events = futures::stream::repeat(Bytes::from(format!("data: {event}\n\n"))).take(count);
                let done = futures::stream::once(async { Bytes::from("data: [DONE]\n\n") });
                // The span lives in the stream, so that it ends when the client goes away.
                let events = events.chain(done).then(move |event| {
                    let _alive = &span;
                    async move {
                        tokio::task::yield_now().await;
                        Ok::<_, std::io::Error>(event)
                    }
                });
                Body::from_stream(events).into_response()
            }
        };
        axum::Router::new()
            .route("/v1/models", get(|| async { Json(json!({ "data": [{ "id": "fake-model" }] })) }))
            .route("/v1/chat/completions", post(chat))
            .route("/version", get(|| async { Json(version()) }))
            .route("/metrics", get(|| async { "vllm:generation_tokens_total 18\n" }))
    }

    fn version() -> serde_json::Value {
        json!({ "device": { "kind": "cpu", "name": "Fake CPU", "backend": "rust" } })
    }

    #[derive(Clone)]
    struct Screen(Arc<std::sync::Mutex<Vec<u8>>>, Arc<Notify>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            self.1.notify_one();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Screen {
        fn new() -> Screen {
            Screen(Arc::default(), Arc::default())
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    async fn listen(router: axum::Router) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        base
    }

    #[tokio::test]
    async fn the_demo_streams_answers_draws_all_traces_and_the_next_ones_too() {
        let (processor, traces) = collector();
        let provider = SdkTracerProvider::builder().with_span_processor(processor).build();
        let base = listen(fake_server(provider.tracer("test"))).await;
        let screen = Screen::new();
        let canvas = Canvas { width: 100, color: false };
        let mut session = Session { base: &base, traces, out: screen.clone(), canvas };

        session.first_round().await.unwrap();
        session.hints(false).unwrap();
        let text = screen.text();
        assert!(text.contains("fake-model on Fake CPU (cpu, rust)"), "{text}");
        assert!(text.contains("[1] word word word word word word\n"), "{text}");
        assert!(text.contains("[4] (the client closes the connection)"), "{text}");
        assert_eq!(text.matches("POST /v1/chat/completions █").count(), 4, "{text}");
        assert!(text.contains("vllm:generation_tokens_total  18"), "{text}");
        assert!(text.contains(&format!("curl {base}/v1/chat/completions")), "{text}");

        let request = json!({ "max_tokens": 1 });
        let client = Client::new(&base, None).unwrap();
        let ask = async {
            let mut stream = client.post_stream("/v1/chat/completions", &request).await.unwrap();
            while stream.next().await.unwrap().is_some() {}
            drop(stream);
            loop {
                screen.1.notified().await;
                if screen.text().matches("POST /v1/chat/completions █").count() == 5 {
                    break;
                }
            }
        };
        tokio::select! {
            () = ask => {}
            result = session.keep_drawing() => panic!("ended: {result:?}"),
        }
    }

    #[tokio::test]
    async fn missing_traces_are_an_error_that_names_the_sampler() {
        let (_sender, traces) = mpsc::channel(1);
        let mut session =
            Session { base: "", traces, out: Vec::new(), canvas: Canvas { width: 80, color: false } };
        let error = session.await_traces(1, Duration::ZERO).await.unwrap_err().to_string();
        assert!(error.contains("0 of 1") && error.contains("OTEL_TRACES_SAMPLER"), "{error}");
    }

    #[tokio::test]
    async fn a_refused_question_ends_the_demo_with_the_servers_words() {
        let refuse = || async {
            let body = r#"{"error":{"message":"the device was lost"}}"#;
            (axum::http::StatusCode::INTERNAL_SERVER_ERROR, body)
        };
        let router = axum::Router::new()
            .route("/v1/models", get(|| async { Json(json!({ "data": [{ "id": "m" }] })) }))
            .route("/version", get(|| async { Json(version()) }))
            .route("/v1/chat/completions", post(refuse));
        let base = listen(router).await;
        let (_sender, traces) = mpsc::channel(1);
        let mut session =
            Session { base: &base, traces, out: Vec::new(), canvas: Canvas { width: 80, color: false } };
        let error = session.first_round().await.unwrap_err();
        assert!(format!("{error:#}").contains("the device was lost"), "{error:#}");
    }
}
