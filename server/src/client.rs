//! A small HTTP client for an OpenAI-style server: JSON in, JSON or server-sent events out.
//!
//! `limpid demo` and `limpid bench serve` talk to the server through it, over real sockets, as any client
//! would. It leaves the meaning of the JSON to its callers, apart from the error object. Invariant: what the
//! server sends is bounded (bodies, lines, events) and every wait ends ([`IDLE_TIMEOUT`]).

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use memchr::{memchr2, memmem};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Longest silence of the server before a request counts as failed. A software GPU needs its time for a
/// long prompt.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// Longest body that is not a stream, and longest single event of one.
const MAX_BYTES: usize = 4 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The base address cannot be used.
    #[error("the server's address is {found}; allowed: http://HOST:PORT")]
    Address {
        /// Address as given.
        found: String,
    },
    /// No connection, or no HTTP.
    #[error("{request} failed: {reason}")]
    Request {
        /// Method and full address.
        request: String,
        /// The chain of causes in words.
        reason: String,
    },
    /// The server answered with an error.
    #[error("{request} answered {status}: {message}")]
    Status {
        /// Method and full address.
        request: String,
        /// Status code.
        status: StatusCode,
        /// `error.message` of the OpenAI error object, else the start of the body.
        message: String,
    },
    /// The answer broke off.
    #[error("the answer broke off: {0}")]
    Body(String),
    /// An event or a body above the limit.
    #[error("the server sent more than {limit} bytes in one piece")]
    TooLong {
        /// Most bytes accepted.
        limit: usize,
    },
    /// The answer is no JSON. (Requests are plain data, which can always be written as JSON.)
    #[error("the server's answer is no JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Nothing came for [`IDLE_TIMEOUT`].
    #[error("the server was silent for {} s", .0.as_secs())]
    Silent(Duration),
}

/// A client of one server. Cheap to clone; connections are pooled.
#[derive(Clone)]
pub struct Client {
    http: HyperClient<HttpConnector, Full<Bytes>>,
    authority: http::uri::Authority,
    api_key: Option<String>,
}

impl Client {
    /// A client of the server at `base`, `http://HOST:PORT`. The key, if any, goes out as bearer token.
    ///
    /// # Errors
    /// [`ClientError::Address`].
    pub fn new(base: &str, api_key: Option<String>) -> Result<Client, ClientError> {
        let address_error = || ClientError::Address { found: base.to_owned() };
        let uri: Uri = base.parse().map_err(|_| address_error())?;
        let bare = uri.path() == "/" && uri.query().is_none();
        if uri.scheme_str() != Some("http") || !bare {
            return Err(address_error());
        }
        let authority = uri.authority().ok_or_else(address_error)?.clone();
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(10)));
        connector.set_nodelay(true);
        let http = HyperClient::builder(TokioExecutor::new()).build(connector);
        Ok(Client { http, authority, api_key })
    }

    /// Body of a `GET`, as text.
    ///
    /// # Errors
    /// Any [`ClientError`]; a status outside 2xx is one.
    pub async fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let response = self.send(Method::GET, path, Bytes::new()).await?;
        let body = collect(response.into_body()).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Body of a `GET`, as JSON.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn get_json(&self, path: &str) -> Result<Value, ClientError> {
        Ok(serde_json::from_str(&self.get_text(path).await?)?)
    }

    /// Name of the first model that the server serves.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn served_model(&self) -> Result<String, ClientError> {
        let models = self.get_json("/v1/models").await?;
        let name = models["data"][0]["id"].as_str();
        name.map(str::to_owned).ok_or_else(|| ClientError::Body("/v1/models lists no model".to_owned()))
    }

    /// Posts JSON and waits for a JSON answer.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub async fn post(&self, path: &str, body: &impl Serialize) -> Result<Value, ClientError> {
        let response = self.send(Method::POST, path, serde_json::to_vec(body)?.into()).await?;
        Ok(serde_json::from_slice(&collect(response.into_body()).await?)?)
    }

    /// Posts JSON and returns the answer's events as they come. Dropping the stream closes the connection,
    /// which is how a client aborts a request.
    ///
    /// # Errors
    /// Any [`ClientError`] that shows before the first byte of the body.
    pub async fn post_stream(&self, path: &str, body: &impl Serialize) -> Result<EventStream, ClientError> {
        let response = self.send(Method::POST, path, serde_json::to_vec(body)?.into()).await?;
        Ok(EventStream {
            trace_id: trace_id(response.headers()),
            body: response.into_body(),
            parser: SseParser::default(),
            ready: VecDeque::new(),
            ended: false,
        })
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, ClientError> {
        let uri = Uri::builder()
            .scheme("http")
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
            .map_err(|_| ClientError::Address { found: format!("http://{}{path}", self.authority) })?;
        let name = || format!("{method} http://{}{path}", self.authority);
        let failed = |reason| ClientError::Request { request: name(), reason };
        let mut request = Request::builder().method(method.clone()).uri(uri);
        if method == Method::POST {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.api_key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body)).map_err(|error| failed(error.to_string()))?;
        let response = within(self.http.request(request)).await?.map_err(|error| failed(chain(&error)))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = collect(response.into_body()).await.unwrap_or_default();
        Err(ClientError::Status { request: name(), status, message: error_message(&body) })
    }
}

/// The events of one answer.
pub struct EventStream {
    /// The trace that the server says it records the request in, in hexadecimal.
    pub trace_id: Option<String>,
    body: Incoming,
    parser: SseParser,
    ready: VecDeque<Vec<u8>>,
    ended: bool,
}

impl EventStream {
    /// The next event's data; `None` at the end of the body or after `[DONE]`, which is not returned.
    ///
    /// # Errors
    /// [`ClientError::Body`] if the connection broke, [`ClientError::TooLong`], [`ClientError::Silent`].
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if event == b"[DONE]" {
                    self.ended = true;
                    self.ready.clear();
                    return Ok(None);
                }
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            match within(self.body.frame()).await? {
                None => self.ended = true,
                Some(Err(error)) => return Err(ClientError::Body(chain(&error))),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.parser.push(data, &mut self.ready)?;
                    }
                }
            }
        }
    }

    /// The next event as `T`. An error object in the stream is an error here.
    ///
    /// # Errors
    /// As [`EventStream::next`], and [`ClientError::Json`].
    pub async fn next_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ClientError> {
        let Some(event) = self.next().await? else { return Ok(None) };
        // Inside a string the quotes would be escaped.
        if memmem::find(&event, b"\"error\"").is_some() {
            let value: Value = serde_json::from_slice(&event)?;
            if value.get("error").is_some_and(|error| !error.is_null()) {
                return Err(ClientError::Body(error_message(&event)));
            }
        }
        Ok(Some(serde_json::from_slice(&event)?))
    }
}

/// Splits a byte stream into the `data` of server-sent events; other fields and comments are skipped.
#[derive(Default)]
struct SseParser {
    /// The beginning of a line that has not ended yet.
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    after_cr: bool,
}

impl SseParser {
    /// Takes bytes in, cut anywhere, and appends the events they complete.
    fn push(&mut self, mut bytes: &[u8], events: &mut VecDeque<Vec<u8>>) -> Result<(), ClientError> {
        if self.after_cr && !bytes.is_empty() {
            // A line feed after a carriage return ends the same line.
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            self.after_cr = false;
        }
        while let Some(end) = memchr2(b'\n', b'\r', bytes) {
            self.check_length(end)?;
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            match self.line.is_empty() {
                true => self.end_line(line, events),
                false => {
                    let mut whole = mem::take(&mut self.line);
                    whole.extend_from_slice(line);
                    self.end_line(&whole, events);
                }
            }
            self.after_cr = bytes[end] == b'\r' && rest.is_empty();
            bytes = if bytes[end] == b'\r' { rest.strip_prefix(b"\n").unwrap_or(rest) } else { rest };
        }
        self.check_length(bytes.len())?;
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// Whether an event with `more` bytes beside those that are here is not too long.
    fn check_length(&self, more: usize) -> Result<(), ClientError> {
        match self.line.len() + self.data.as_ref().map_or(0, Vec::len) + more > MAX_BYTES {
            true => Err(ClientError::TooLong { limit: MAX_BYTES }),
            false => Ok(()),
        }
    }

    fn end_line(&mut self, line: &[u8], events: &mut VecDeque<Vec<u8>>) {
        if line.is_empty() {
            events.extend(self.data.take());
            return;
        }
        if let Some(value) = line.strip_prefix(b"data:") {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            }
        }
    }
}

/// The trace id of a `traceresponse` header, `00-<trace id>-<span id>-<flags>`.
fn trace_id(headers: &HeaderMap) -> Option<String> {
    let value = headers.get("traceresponse")?.to_str().ok()?;
    value.split('-').nth(1).map(str::to_owned)
}

async fn within<T>(wait: impl Future<Output = T>) -> Result<T, ClientError> {
    tokio::time::timeout(IDLE_TIMEOUT, wait).await.map_err(|_| ClientError::Silent(IDLE_TIMEOUT))
}

async fn collect(body: Incoming) -> Result<Bytes, ClientError> {
    match within(Limited::new(body, MAX_BYTES).collect()).await? {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(ClientError::TooLong { limit: MAX_BYTES })
        }
        Err(error) => Err(ClientError::Body(chain(error.as_ref()))),
    }
}

fn error_message(body: &[u8]) -> String {
    let message = serde_json::from_slice::<Value>(body)
        .ok()
        .and_then(|value| value["error"]["message"].as_str().map(str::to_owned))
        .unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    message.chars().take(500).collect()
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use axum::routing::{get, post};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(pieces: &[impl AsRef<[u8]>]) -> Vec<String> {
        let mut parser = SseParser::default();
        let mut events = VecDeque::new();
        for piece in pieces {
            parser.push(piece.as_ref(), &mut events).unwrap();
        }
        events.into_iter().map(|event| String::from_utf8(event).unwrap()).collect()
    }

    #[test]
    fn comments_and_other_fields_are_no_data() {
        assert_eq!(parse(&[b": keep-alive\n\nevent: x\nid: 3\ndata: a\n\ndata:b\n\n"]), ["a", "b"]);
    }

    #[test]
    fn data_lines_of_one_event_are_joined_and_an_unfinished_event_is_no_event() {
        assert_eq!(parse(&[b"data: a\ndata: b\n\ndata: never ended\n"]), ["a\nb"]);
    }

    proptest! {
        #[test]
        fn events_do_not_depend_on_where_the_bytes_are_cut(cuts in prop::collection::vec(0usize..60, 0..6)) {
            let text = "data: {\"ä\": 1}\r\n\r\ndata: b\r\rdata: c\n\ndata: [DONE]\n\n".as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(parse(&pieces), ["{\"ä\": 1}", "b", "c", "[DONE]"]);
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut parser = SseParser::default();
        let result = parser.push(&vec![b'x'; MAX_BYTES + 1], &mut VecDeque::new());
        assert!(matches!(result, Err(ClientError::TooLong { .. })));
    }

    #[test]
    fn only_bare_http_addresses_are_accepted() {
        for bad in ["127.0.0.1:1", "https://localhost:1", "http://localhost:1/v1", "http://"] {
            assert!(matches!(Client::new(bad, None), Err(ClientError::Address { .. })), "{bad}");
        }
        Client::new("http://127.0.0.1:8000", None).map(drop).unwrap();
    }

    async fn serve(router: axum::Router) -> Client {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Client::new(&base, Some("secret".to_owned())).unwrap()
    }

    #[tokio::test]
    async fn a_stream_ends_at_done_and_an_error_status_carries_the_servers_message() {
        let events = || async {
            let chunks =
                ["data: {\"n\":", "1}\n\ndata: {\"n\":2}\n\ndata: [DONE]\n\n", "data: {\"n\":3}\n\n"];
            let body = Body::from_stream(futures::stream::iter(chunks.map(Ok::<_, Infallible>)));
            ([("traceresponse", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")], body)
        };
        let refuse = || async { (StatusCode::NOT_FOUND, r#"{"error":{"message":"no such model"}}"#) };
        let router = axum::Router::new().route("/events", post(events)).route("/refuse", get(refuse));
        let client = serve(router).await;

        let mut stream = client.post_stream("/events", &json!({})).await.unwrap();
        assert_eq!(stream.trace_id.as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
        let mut seen = Vec::new();
        while let Some(event) = stream.next_json::<Value>().await.unwrap() {
            seen.push(event["n"].as_u64().unwrap());
        }
        assert_eq!(seen, [1, 2]);

        let error = client.get_text("/refuse").await.unwrap_err();
        assert!(
            matches!(&error, ClientError::Status { status: StatusCode::NOT_FOUND, message, .. }
            if message == "no such model"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn an_error_object_inside_a_stream_is_an_error() {
        let events = || async { "data: {\"error\":{\"message\":\"device lost\"}}\n\n" };
        let client = serve(axum::Router::new().route("/events", post(events))).await;
        let mut stream = client.post_stream("/events", &json!({})).await.unwrap();
        let error = stream.next_json::<Value>().await.unwrap_err();
        assert!(error.to_string().contains("device lost"), "{error}");
    }
}
