//! Every way a request can end, over both protocols: the trace it leaves, compared with what is declared.

use limpid_tests::client::Client;
use limpid_tests::compliance::{check_request, check_tree};
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{BROKEN_TOKEN, CONTEXT_LENGTH, MODEL, Options, broken_model, slow_model};
use limpid_tests::spans::{self, Span, StatusCode, Trace};
use serde_json::{Value, json};

use crate::{CHAT, COMPLETIONS, completion, protocol, quick, scrape_until, with};

/// What a path leaves behind.
struct Expected {
    path: Path,
    /// Of the response; `None` if the client left before there was one.
    status: Option<i64>,
    /// `error.type` of the SERVER span, and its being an error.
    server_error: Option<&'static str>,
    /// Model spans: one per choice, none if the request never got so far.
    choices: usize,
    /// Finish reason of each model span.
    reason: &'static str,
    /// Spans below each model span.
    phases: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Length,
    EndToken,
    StopString,
    Choices,
    BestOf,
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
    Overloaded,
    LeavesStream,
    Shutdown,
    ShutdownInQueue,
}

const KEY: &str = "s3cret";
const PHASES: &[&str] = &["queue", "prefill", "decode"];

const fn good(path: Path, reason: &'static str) -> Expected {
    Expected { path, status: Some(200), server_error: None, choices: 1, reason, phases: PHASES }
}

const fn refused(path: Path, status: i64) -> Expected {
    Expected { path, status: Some(status), server_error: None, choices: 0, reason: "", phases: &[] }
}

/// Paths of a server whose device can be made to fail.
const BROKEN: [Expected; 15] = [
    good(Path::Length, "length"),
    good(Path::EndToken, "stop"),
    good(Path::StopString, "stop"),
    Expected { choices: 3, ..good(Path::Choices, "length") },
    // All that were computed, those that the answer leaves out as well.
    Expected { choices: 4, ..good(Path::BestOf, "length") },
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
        choices: 1,
        reason: "error",
        phases: &["queue", "prefill"],
    },
    Expected {
        path: Path::FailsMidStream,
        status: Some(200),
        server_error: Some("engine_error"),
        choices: 1,
        reason: "error",
        phases: PHASES,
    },
];

/// Paths of a slow server that runs one request at a time and takes in two.
const SLOW: [Expected; 6] = [
    Expected { status: None, phases: &["queue", "prefill"], ..good(Path::LeavesInPrefill, "abort") },
    Expected { status: None, phases: &["queue"], ..good(Path::LeavesQueue, "abort") },
    Expected { server_error: Some("server_overloaded"), ..refused(Path::Overloaded, 503) },
    good(Path::LeavesStream, "abort"),
    good(Path::Shutdown, "abort"),
    Expected { phases: &["queue"], ..good(Path::ShutdownInQueue, "abort") },
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

    /// Sends a request and walks away without its answer once `until` resolves.
    async fn leave(self, client: Client, body: &Value, until: impl Future<Output = ()>) {
        tokio::select! {
            () = self.post(client, COMPLETIONS, body) => panic!("{self:?}: the answer came first"),
            () = until => {}
        }
    }

    async fn stream(self, client: Client, body: &Value) -> limpid_tests::client::EventStream {
        let (traceparent, bearer) = self.headers(KEY);
        let headers = [("traceparent", traceparent.as_str()), ("authorization", &bearer)];
        client.stream(COMPLETIONS, &headers, &with(body.clone(), json!({"stream": true}))).await
    }

    /// Takes this path on a server of [`broken_model`].
    async fn take(self, client: Client) {
        /// Of the fixtures.
        const END_TOKEN: u32 = 2;
        let forced = |token: u32| json!({"logit_bias": {token.to_string(): 100}});
        // By chance, but neither to the end nor to a failure.
        let sampled = || {
            let never = [END_TOKEN, BROKEN_TOKEN].map(|token| (token.to_string(), json!(-100)));
            json!({"temperature": 1, "logit_bias": serde_json::Map::from_iter(never)})
        };
        match self {
            Path::Length => self.post(client, COMPLETIONS, &completion(5)).await,
            Path::EndToken => {
                self.post(client, COMPLETIONS, &with(completion(5), forced(END_TOKEN))).await;
            }
            Path::StopString => {
                let fields = with(forced(BROKEN_TOKEN - 1), json!({"stop": ["}}"]}));
                self.post(client, COMPLETIONS, &with(completion(9), fields)).await;
            }
            Path::Choices => {
                self.post(client, COMPLETIONS, &with(completion(5), with(sampled(), json!({"n": 3})))).await;
            }
            Path::BestOf => {
                let fields = with(sampled(), json!({"n": 2, "best_of": 4}));
                self.post(client, COMPLETIONS, &with(completion(5), fields)).await;
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
            Path::LeavesInPrefill
            | Path::LeavesQueue
            | Path::Overloaded
            | Path::LeavesStream
            | Path::Shutdown
            | Path::ShutdownInQueue => unreachable!("taken on the slow server"),
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
    check_request(gaps, &what, trace, expected.choices);
    let servers = trace.of_kind(spans::SpanKind::Server);
    let Some(server) = servers.first() else { return };
    gaps.equal(
        format_args!("{what}: http.response.status_code"),
        server.int("http.response.status_code"),
        expected.status,
    );
    gaps.equal(format_args!("{what}: SERVER error.type"), server.string("error.type"), expected.server_error);
    let status = if expected.server_error.is_some() { StatusCode::Error } else { StatusCode::Unset };
    gaps.equal(format_args!("{what}: SERVER status"), server.status(), status);
    gaps.equal(format_args!("{what}: version"), server.string("network.protocol.version"), Some("1.1"));
    for model in trace.models() {
        check_model(gaps, &what, expected, trace, model);
    }
}

fn check_model(gaps: &mut Gaps, what: &str, expected: &Expected, trace: &Trace, model: &Span) {
    let failed = expected.reason == "error";
    gaps.equal(
        format_args!("{what}: finish reasons"),
        model.strings("gen_ai.response.finish_reasons"),
        Some(vec![expected.reason.to_owned()]),
    );
    let status = if failed { StatusCode::Error } else { StatusCode::Unset };
    gaps.equal(format_args!("{what}: model status"), model.status(), status);
    gaps.equal(
        format_args!("{what}: model error.type"),
        model.string("error.type"),
        failed.then_some("engine_error"),
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
        .arg("--max-num-queued-reqs", "2")
        .arg("--max-num-batched-tokens", "64")
        .arg("--shutdown-timeout", "0");
    let server = sent_to(&receiver, transport, options).await;
    let client = server.client();
    let gauge = |name: &'static str, value: f64| async move {
        scrape_until(client, name, |scrape| scrape.value(name, &[]) == value).await;
    };
    const RUNNING: &str = "vllm:num_requests_running";
    const WAITING: &str = "vllm:num_requests_waiting";

    let long = json!({"model": MODEL, "prompt": vec![100; CONTEXT_LENGTH - 10], "max_tokens": 4});
    Path::LeavesInPrefill.leave(client, &long, gauge(RUNNING, 1.0)).await;
    gauge(RUNNING, 0.0).await;

    let mut running = Path::LeavesStream.stream(client, &completion(4000)).await;
    running.next().await.expect("it runs");
    let meanwhile = async {
        gauge(WAITING, 1.0).await;
        Path::Overloaded.post(client, COMPLETIONS, &completion(4)).await;
    };
    Path::LeavesQueue.leave(client, &completion(4), meanwhile).await;
    gauge(WAITING, 0.0).await;
    drop(running);
    gauge(RUNNING, 0.0).await;

    let mut last = Path::Shutdown.stream(client, &completion(4000)).await;
    last.next().await.expect("it runs");
    let queued = completion(4);
    let terminate = async {
        gauge(WAITING, 1.0).await;
        server.terminate();
        while last.next().await.is_some() {}
    };
    tokio::join!(Path::ShutdownInQueue.post(client, COMPLETIONS, &queued), terminate);
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
