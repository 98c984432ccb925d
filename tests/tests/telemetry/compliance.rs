//! Every way a request can end, over both protocols: the trace it leaves, compared with what is declared.

use limpid_tests::client::Client;
use limpid_tests::compliance::{check_request, check_tree};
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{BROKEN_TOKEN, CONTEXT_LENGTH, MODEL, Options, broken_model, slow_model};
use limpid_tests::spans::{self, StatusCode, Trace};
use serde_json::{Value, json};

use crate::{CHAT, COMPLETIONS, completion, protocol, quick, scrape_until, with};

/// What a path leaves behind.
struct Expected {
    path: Path,
    /// Of the response; `None` if the client left before there was one.
    status: Option<i64>,
    /// `error.type` of the SERVER span, and its being an error.
    server_error: Option<&'static str>,
    /// Finish reason of the model span, `None` if the request never got so far.
    reason: Option<&'static str>,
    /// Spans below the model span.
    phases: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Length,
    EndToken,
    StopString,
    Invalid,
    ContextTooLong,
    Unauthorized,
    UnknownModel,
    UnknownRoute,
    WrongMethod,
    TooLarge,
    NotJson,
    FailsBeforeFirstToken,
    FailsMidStream,
    LeavesInPrefill,
    LeavesQueue,
    LeavesStream,
    Shutdown,
}

const KEY: &str = "s3cret";
const PHASES: &[&str] = &["queue", "prefill", "decode"];

const fn good(path: Path, reason: &'static str) -> Expected {
    Expected { path, status: Some(200), server_error: None, reason: Some(reason), phases: PHASES }
}

const fn refused(path: Path, status: i64) -> Expected {
    Expected { path, status: Some(status), server_error: None, reason: None, phases: &[] }
}

/// Paths of a server whose device can be made to fail.
const BROKEN: [Expected; 13] = [
    good(Path::Length, "length"),
    good(Path::EndToken, "stop"),
    good(Path::StopString, "stop"),
    refused(Path::Invalid, 400),
    refused(Path::ContextTooLong, 400),
    refused(Path::Unauthorized, 401),
    refused(Path::UnknownModel, 404),
    refused(Path::UnknownRoute, 404),
    refused(Path::WrongMethod, 405),
    refused(Path::TooLarge, 413),
    refused(Path::NotJson, 415),
    Expected {
        path: Path::FailsBeforeFirstToken,
        status: Some(500),
        server_error: Some("engine_error"),
        reason: Some("error"),
        phases: &["queue", "prefill"],
    },
    Expected {
        path: Path::FailsMidStream,
        status: Some(200),
        server_error: Some("engine_error"),
        reason: Some("error"),
        phases: PHASES,
    },
];

/// Paths of a slow server that runs one request at a time.
const SLOW: [Expected; 4] = [
    Expected {
        path: Path::LeavesInPrefill,
        status: None,
        server_error: None,
        reason: Some("abort"),
        phases: &["queue", "prefill"],
    },
    Expected {
        path: Path::LeavesQueue,
        status: None,
        server_error: None,
        reason: Some("abort"),
        phases: &["queue"],
    },
    good(Path::LeavesStream, "abort"),
    good(Path::Shutdown, "abort"),
];

impl Path {
    fn trace_id(self) -> String {
        format!("{:032x}", self as u32 + 1)
    }

    /// Sends a request so that its trace can be told from the others.
    async fn post(self, client: Client, path: &str, body: &Value) {
        self.send(client, http::Method::POST, path, "application/json", KEY, body.to_string()).await;
    }

    async fn send(
        self,
        client: Client,
        method: http::Method,
        path: &str,
        content_type: &str,
        key: &str,
        body: String,
    ) {
        let (traceparent, bearer) = self.headers(key);
        let headers = [
            ("traceparent", traceparent.as_str()),
            ("authorization", &bearer),
            ("content-type", content_type),
        ];
        client.request(method, path, &headers, body.into()).await;
    }

    fn headers(self, key: &str) -> (String, String) {
        (format!("00-{}-00000000000000aa-01", self.trace_id()), format!("Bearer {key}"))
    }

    async fn stream(self, client: Client, body: &Value) -> limpid_tests::client::EventStream {
        let (traceparent, bearer) = self.headers(KEY);
        let headers = [("traceparent", traceparent.as_str()), ("authorization", &bearer)];
        client.stream(COMPLETIONS, &headers, &with(body.clone(), json!({"stream": true}))).await
    }

    /// Takes this path on a server of [`broken_model`].
    async fn take(self, client: Client) {
        let forced = |token: u32| json!({"logit_bias": {token.to_string(): 100}});
        match self {
            Path::Length => self.post(client, COMPLETIONS, &completion(5)).await,
            Path::EndToken => {
                // The end token of the fixtures.
                self.post(client, COMPLETIONS, &with(completion(5), forced(2))).await;
            }
            Path::StopString => {
                let fields = with(forced(BROKEN_TOKEN - 1), json!({"stop": ["}}"]}));
                self.post(client, COMPLETIONS, &with(completion(9), fields)).await;
            }
            Path::Invalid => {
                self.post(client, COMPLETIONS, &with(completion(5), json!({"temperature": "hot"}))).await;
            }
            Path::ContextTooLong => {
                let prompt = vec![100; CONTEXT_LENGTH + 1];
                self.post(client, COMPLETIONS, &json!({"model": MODEL, "prompt": prompt})).await;
            }
            Path::Unauthorized => {
                let body = completion(5).to_string();
                self.send(client, http::Method::POST, CHAT, "application/json", "other", body).await;
            }
            Path::UnknownModel => {
                self.post(client, COMPLETIONS, &with(completion(5), json!({"model": "unknown"}))).await;
            }
            Path::UnknownRoute => self.post(client, "/v1/nowhere", &json!({})).await,
            Path::WrongMethod => {
                self.send(client, http::Method::PUT, CHAT, "application/json", KEY, String::new()).await;
            }
            Path::TooLarge => {
                let body = json!({"model": MODEL, "prompt": "a".repeat(16 << 20)});
                self.post(client, COMPLETIONS, &body).await;
            }
            Path::NotJson => {
                let body = completion(5).to_string();
                self.send(client, http::Method::POST, COMPLETIONS, "text/plain", KEY, body).await;
            }
            Path::FailsBeforeFirstToken => {
                let prompt = json!({"prompt": [100, BROKEN_TOKEN]});
                self.post(client, COMPLETIONS, &with(completion(5), prompt)).await;
            }
            Path::FailsMidStream => {
                let mut stream = self.stream(client, &with(completion(5), forced(BROKEN_TOKEN))).await;
                while stream.next().await.is_some() {}
            }
            Path::LeavesInPrefill | Path::LeavesQueue | Path::LeavesStream | Path::Shutdown => {
                unreachable!("taken on the slow server")
            }
        }
    }
}

async fn sent_to(
    receiver: &OtlpReceiver,
    transport: Transport,
    model: Options,
) -> limpid_tests::server::Server {
    quick(model)
        .arg("--api-key", KEY)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &receiver.endpoint(transport))
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", protocol(transport))
        .start()
        .await
}

fn check_path(gaps: &mut Gaps, expected: &Expected, traces: &[Trace]) {
    let what = format!("{:?}", expected.path);
    let found = traces.iter().find(|trace| trace.id() == expected.path.trace_id());
    let Some(trace) = gaps.some(format_args!("{what}: trace"), found) else { return };
    check_request(gaps, &what, trace, usize::from(expected.reason.is_some()));
    let servers = trace.of_kind(spans::SpanKind::Server);
    let Some(server) = servers.first() else { return };
    gaps.equal(
        format_args!("{what}: http.response.status_code"),
        server.int("http.response.status_code"),
        expected.status,
    );
    gaps.equal(format_args!("{what}: SERVER error.type"), server.string("error.type"), expected.server_error);
    let status = |failed: bool| if failed { StatusCode::Error } else { StatusCode::Unset };
    gaps.equal(
        format_args!("{what}: SERVER status"),
        server.status(),
        status(expected.server_error.is_some()),
    );
    gaps.equal(format_args!("{what}: version"), server.string("network.protocol.version"), Some("1.1"));
    let (Some(reason), Some(model)) = (expected.reason, trace.model()) else { return };
    gaps.equal(
        format_args!("{what}: finish reasons"),
        model.strings("gen_ai.response.finish_reasons"),
        Some(vec![reason.to_owned()]),
    );
    gaps.equal(format_args!("{what}: model status"), model.status(), status(reason == "error"));
    gaps.equal(
        format_args!("{what}: model error.type"),
        model.string("error.type"),
        (reason == "error").then_some("engine_error"),
    );
    let phases: Vec<&str> = trace.children(model).iter().map(|child| child.name()).collect();
    gaps.equal(format_args!("{what}: phases"), &phases[..], expected.phases);
    for phase in ["time_in_queue", "time_in_model_prefill", "time_in_model_decode"] {
        // An interval exists if the phase after it began, and decode if there was a token at all.
        let exists = match phase {
            "time_in_queue" => expected.phases.contains(&"prefill"),
            _ => expected.phases.contains(&"decode"),
        };
        let present = model.double(&format!("gen_ai.latency.{phase}")).is_some();
        gaps.equal(format_args!("{what}: gen_ai.latency.{phase} is there"), present, exists);
    }
}

async fn paths_of_a_broken_device(transport: Transport) {
    let receiver = OtlpReceiver::start().await;
    let server = sent_to(&receiver, transport, Options::new(&broken_model())).await;
    for expected in &BROKEN {
        expected.path.take(server.client()).await;
    }
    let ended = server.stop().await;
    assert!(ended.status.success(), "{}", ended.log);
    let spans = spans::all(&receiver.received());
    let traces = spans::request_traces(&spans);
    let mut gaps = Gaps::default();
    BROKEN.iter().for_each(|expected| check_path(&mut gaps, expected, &traces));
    gaps.equal("traces", traces.len(), BROKEN.len());
    let startups: Vec<Trace> =
        spans::traces(&spans).into_iter().filter(|trace| !trace.named("startup").is_empty()).collect();
    gaps.equal("traces of the start", startups.len(), 1);
    for startup in &startups {
        check_tree(&mut gaps, "start", startup, startup.named("startup").first().copied());
        let root = startup.named("startup")[0];
        let phases: Vec<&str> = startup.children(root).iter().map(|child| child.name()).collect();
        let expected = ["open_model", "load_tokenizer", "build_program", "find_device", "upload_weights"];
        gaps.equal("phases of the start", &phases[..], &expected[..]);
    }
    gaps.assert_none(format_args!("{transport:?}\n{}", ended.log));
}

#[tokio::test]
async fn good_refused_and_failed_requests_leave_what_is_declared_over_grpc() {
    paths_of_a_broken_device(Transport::Grpc).await;
}

#[tokio::test]
async fn good_refused_and_failed_requests_leave_what_is_declared_over_http() {
    paths_of_a_broken_device(Transport::Http).await;
}

async fn paths_of_leavers(transport: Transport) {
    let receiver = OtlpReceiver::start().await;
    let options = Options::new(&slow_model())
        .arg("--max-num-seqs", "1")
        .arg("--max-num-batched-tokens", "64")
        .arg("--shutdown-timeout", "0");
    let server = sent_to(&receiver, transport, options).await;
    let client = server.client();
    let gauge = |name: &'static str, value: f64| async move {
        scrape_until(client, name, |scrape| scrape.value(name, &[]) == value).await;
    };
    let leave = |path: Path, body: Value, until: &'static str| async move {
        tokio::select! {
            () = path.post(client, COMPLETIONS, &body) => panic!("{path:?}: the answer came first"),
            () = gauge(until, 1.0) => {}
        }
    };

    let long = json!({"model": MODEL, "prompt": vec![100; CONTEXT_LENGTH - 10], "max_tokens": 4});
    leave(Path::LeavesInPrefill, long, "vllm:num_requests_running").await;
    gauge("vllm:num_requests_running", 0.0).await;

    let mut running = Path::LeavesStream.stream(client, &completion(4000)).await;
    running.next().await.expect("it runs");
    leave(Path::LeavesQueue, completion(4), "vllm:num_requests_waiting").await;
    gauge("vllm:num_requests_waiting", 0.0).await;
    drop(running);
    gauge("vllm:num_requests_running", 0.0).await;

    let mut last = Path::Shutdown.stream(client, &completion(4000)).await;
    last.next().await.expect("it runs");
    server.terminate();
    while last.next().await.is_some() {}
    let ended = server.ended().await;
    assert!(ended.status.success(), "{}", ended.log);

    let traces = spans::request_traces(&spans::all(&receiver.received()));
    let mut gaps = Gaps::default();
    SLOW.iter().for_each(|expected| check_path(&mut gaps, expected, &traces));
    gaps.equal("traces", traces.len(), SLOW.len());
    gaps.assert_none(format_args!("{transport:?}\n{}", ended.log));
}

#[tokio::test]
async fn requests_whose_client_or_server_leaves_leave_what_is_declared_over_grpc() {
    paths_of_leavers(Transport::Grpc).await;
}

#[tokio::test]
async fn requests_whose_client_or_server_leaves_leave_what_is_declared_over_http() {
    paths_of_leavers(Transport::Http).await;
}
