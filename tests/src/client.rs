//! A plain HTTP/1.1 client: one connection per request, no redirects, no retries, no cookies.
//!
//! It leaves nothing out of sight: status, headers and bytes come back as they were sent, and dropping a
//! [`EventStream`] closes the connection at once, which is how a client walks away.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Talks to one server.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    address: SocketAddr,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Status code.
    pub status: StatusCode,
    /// Headers as sent.
    pub headers: HeaderMap,
    /// Body as sent, not decompressed.
    pub body: Bytes,
}

impl Reply {
    /// The body as text.
    ///
    /// # Panics
    /// If it is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body should be UTF-8")
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// With the body if it is not JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("{} answer is not JSON ({error}): {}", self.status, self.text()),
        }
    }

    /// A header's value, empty if absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("headers should be ASCII"))
    }
}

/// Closes the connection when dropped.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Client {
    /// A client of the server at `address`.
    pub fn new(address: SocketAddr) -> Client {
        Client { address }
    }

    /// `GET path`.
    pub async fn get(&self, path: &str) -> Reply {
        self.request(Method::GET, path, &[], Bytes::new()).await
    }

    /// `GET path` of a server that may not listen yet; `None` unless a whole answer comes.
    pub async fn try_get(&self, path: &str) -> Option<Reply> {
        let (response, _connection) = self.try_send(Method::GET, path, &[], Bytes::new()).await.ok()?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        Some(Reply { status: parts.status, headers: parts.headers, body })
    }

    /// `POST path` with a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, &[], body).await
    }

    /// `POST path` with a JSON body and more headers.
    pub async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let headers = [&[("content-type", "application/json")], headers].concat();
        self.request(Method::POST, path, &headers, body.to_string().into()).await
    }

    /// Any request.
    pub async fn request(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Reply {
        let (response, _connection) = self.send(method, path, headers, body).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("the body should arrive whole").to_bytes();
        Reply { status: parts.status, headers: parts.headers, body }
    }

    /// `POST path` with a JSON body whose answer is read event by event.
    pub async fn stream(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> EventStream {
        let headers = [&[("content-type", "application/json")], headers].concat();
        let (response, connection) = self.send(Method::POST, path, &headers, body.to_string().into()).await;
        let (parts, body) = response.into_parts();
        EventStream {
            status: parts.status,
            headers: parts.headers,
            body,
            buffer: Vec::new(),
            _connection: connection,
        }
    }

    /// Sends a request and drops the connection without waiting for an answer once `until` resolves.
    pub async fn post_and_leave(&self, path: &str, body: &Value, until: impl Future<Output = ()>) {
        let headers = [("content-type", "application/json")];
        tokio::select! {
            _ = self.request(Method::POST, path, &headers, body.to_string().into()) => {
                panic!("the answer came before the client left");
            }
            () = until => {}
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> (hyper::Response<Incoming>, Connection) {
        self.try_send(method, path, headers, body).await.expect("the server should answer")
    }

    async fn try_send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> anyhow::Result<(hyper::Response<Incoming>, Connection)> {
        let stream = TcpStream::connect(self.address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = Connection(tokio::spawn(async move {
            // An error here is the server closing the connection, which the reader of the body sees too.
            let _ = connection.await;
        }));
        let mut request =
            Request::builder().method(method).uri(path).header("host", self.address.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).expect("a valid request");
        Ok((sender.send_request(request).await?, connection))
    }
}

/// An answer read as server-sent events. Dropping it closes the connection.
pub struct EventStream {
    /// Status code.
    pub status: StatusCode,
    /// Headers as sent.
    pub headers: HeaderMap,
    body: Incoming,
    buffer: Vec<u8>,
    _connection: Connection,
}

impl EventStream {
    /// The next event's data, or `None` at the end of the body.
    ///
    /// # Panics
    /// If anything but `data:` lines (and comments) between blank lines arrives.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8(event).expect("each event should be UTF-8 by itself");
                let mut data = None;
                for line in event.trim_end_matches('\n').split('\n').filter(|line| !line.starts_with(':')) {
                    let value = line.strip_prefix("data: ");
                    let value = value.unwrap_or_else(|| panic!("not a data line: {line:?}"));
                    assert!(data.replace(value.to_owned()).is_none(), "two data lines in {event:?}");
                }
                match data {
                    Some(data) => return Some(data),
                    None => continue,
                }
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => panic!("the stream broke: {error}"),
                None => {
                    assert!(self.buffer.is_empty(), "half an event at the end: {:?}", self.buffer);
                    return None;
                }
            }
        }
    }

    /// Reads to the end. The `[DONE]` that closes a good stream is checked and taken off.
    ///
    /// # Panics
    /// If `[DONE]` is missing or not last.
    pub async fn chunks(mut self) -> Chunks {
        let (mut times, mut events) = (Vec::new(), Vec::new());
        while let Some(data) = self.next().await {
            times.push(Instant::now());
            events.push(data);
        }
        times.pop();
        let last = events.pop().expect("a stream should not be empty");
        assert_eq!(last, "[DONE]", "a stream should end with [DONE]");
        let chunks = events.iter().map(|data| serde_json::from_str(data).expect("each chunk should be JSON"));
        Chunks { times, chunks: chunks.collect() }
    }
}

/// The chunks of a whole stream, `[DONE]` excluded.
#[derive(Clone, Debug)]
pub struct Chunks {
    /// When each arrived.
    pub times: Vec<Instant>,
    /// The chunks.
    pub chunks: Vec<Value>,
}

impl Chunks {
    /// The text, joined: `delta.content` of chat chunks, `text` of completion chunks.
    pub fn text(&self) -> String {
        let choices = self.chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
        let pieces =
            choices.filter_map(|choice| choice["delta"]["content"].as_str().or(choice["text"].as_str()));
        pieces.collect()
    }

    /// The finish reasons that are not null, in order.
    pub fn finish_reasons(&self) -> Vec<String> {
        let choices = self.chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
        choices.filter_map(|choice| choice["finish_reason"].as_str().map(str::to_owned)).collect()
    }

    /// The usage object of the last chunk that has one.
    pub fn usage(&self) -> Option<&Value> {
        self.chunks.iter().rev().map(|chunk| &chunk["usage"]).find(|usage| usage.is_object())
    }
}
