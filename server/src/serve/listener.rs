//! The port and its connections: HTTP/1.1 over TCP.
//!
//! Each connection is a task. A client that goes away ends its task, and with it whatever the task was
//! waiting for: dropping a response aborts its request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tower::ServiceExt;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// How long a client may take for a request's head, and how long it may idle between requests.
const HEADER_READ_TIMEOUT: Duration = Duration::from_secs(75);
/// Pause after the system has run out of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// A port that is taken but not open: nobody can connect to it yet.
pub(super) struct Port {
    socket: TcpSocket,
    asked_for: String,
}

impl Port {
    /// Takes the port.
    ///
    /// # Errors
    /// The host has no address, or the port is in use.
    pub(super) async fn bind(host: &str, port: u16) -> anyhow::Result<Port> {
        let address =
            lookup_host((host, port)).await.ok().and_then(|mut addresses| addresses.next()).with_context(
                || format!("--host is {host}; allowed: an address or a name of this machine"),
            )?;
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket.context("no TCP socket can be made")?;
        // As every server does: a port whose last connections have just ended is free.
        #[cfg(unix)]
        socket.set_reuseaddr(true).context("a socket option cannot be set")?;
        let port = Port { asked_for: address.to_string(), socket };
        port.socket.bind(address).with_context(|| port.in_use())?;
        Ok(port)
    }

    /// The address with the port that was really taken.
    pub(super) fn address(&self) -> anyhow::Result<SocketAddr> {
        self.socket.local_addr().context("the socket has no address")
    }

    /// Opens the port and serves its connections.
    ///
    /// # Errors
    /// Another program opened the port meanwhile.
    pub(super) fn listen(self, router: Router) -> anyhow::Result<Connections> {
        let in_use = self.in_use();
        let listener = self.socket.listen(BACKLOG).context(in_use)?;
        let (phase, phases) = watch::channel(Phase::Open);
        let task = tokio::spawn(accept(listener, router, phases));
        Ok(Connections { phase, task: Some(task) })
    }

    fn in_use(&self) -> String {
        format!("--host and --port are {}; allowed: a free port of this machine, or port 0", self.asked_for)
    }
}

/// What connections may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Everything.
    Open,
    /// Finish the response they are at.
    Draining,
    /// Nothing.
    Closed,
}

/// The open connections, and the task that accepts more of them.
pub(super) struct Connections {
    phase: watch::Sender<Phase>,
    task: Option<JoinHandle<()>>,
}

impl Connections {
    /// Closes the port and every idle connection; busy ones end after their response.
    pub(super) fn stop_accepting(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Returns once every connection has ended. Can be cancelled and called again.
    pub(super) async fn finished(&mut self) {
        if let Some(task) = &mut self.task {
            // A panic inside is no reason to go on waiting.
            let _ended = task.await;
            self.task = None;
        }
    }

    /// Cuts off whatever is still open, and returns once it is gone.
    pub(super) async fn close(&mut self) {
        self.phase.send_replace(Phase::Closed);
        self.finished().await;
    }
}

/// Returns once `phase` is reached. If nobody is left to say so, it is.
async fn reached(phases: &mut watch::Receiver<Phase>, phase: Phase) {
    let _ = phases.wait_for(|current| *current >= phase).await;
}

async fn accept(listener: TcpListener, router: Router, mut phases: watch::Receiver<Phase>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Ended tasks are reaped as they end, so that a long life does not pile them up.
            Some(_ended) = connections.join_next() => continue,
            () = reached(&mut phases, Phase::Draining) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                connections.spawn(serve(stream, peer, router.clone(), phases.clone()));
            }
            Err(error) if is_about_one_connection(&error) => {}
            Err(error) => {
                tracing::error!("no connection can be accepted: {error}");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
    drop(listener);
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        () = reached(&mut phases, Phase::Closed) => {}
    }
    connections.shutdown().await;
}

/// Errors of a connection that was gone before it was accepted.
fn is_about_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
    )
}

async fn serve(stream: TcpStream, peer: SocketAddr, router: Router, mut phases: watch::Receiver<Phase>) {
    // Streamed tokens are small and must not wait for each other. Without the option they only come later.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        let router = router.clone();
        async move {
            let response: Result<Response, Infallible> = router.oneshot(request).await;
            response
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = reached(&mut phases, Phase::Draining) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%peer, "connection ended: {error}");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_refused_with_its_number() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = taken.local_addr().expect("bound").port();
        let error = Port::bind("127.0.0.1", port).await.err().expect("it is in use");
        let text = format!("{error:#}");
        assert!(text.contains(&format!("--port are 127.0.0.1:{port}; allowed: ")), "{text}");
    }

    #[tokio::test]
    async fn a_host_without_address_is_refused() {
        let error = Port::bind("not a host", 0).await.err().expect("it has no address");
        assert!(format!("{error:#}").starts_with("--host is not a host; allowed: "), "{error:#}");
    }

    #[tokio::test]
    async fn nobody_connects_before_the_port_is_open() {
        let port = Port::bind("127.0.0.1", 0).await.expect("a free port");
        let address = port.address().expect("bound");
        TcpStream::connect(address).await.expect_err("it is not open yet");
        let mut connections = port.listen(Router::new()).expect("still free");
        TcpStream::connect(address).await.expect("it is open");
        connections.stop_accepting();
        connections.finished().await;
        TcpStream::connect(address).await.expect_err("it is closed");
    }

    #[tokio::test]
    async fn close_cuts_off_a_connection_that_never_ends() {
        let router = Router::new().fallback(std::future::pending::<()>);
        let port = Port::bind("127.0.0.1", 0).await.expect("a free port");
        let address = port.address().expect("bound");
        let mut connections = port.listen(router).expect("still free");
        let mut client = TcpStream::connect(address).await.expect("it is open");
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("written");
        connections.stop_accepting();
        connections.close().await;
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest).await;
        assert!(rest.is_empty());
    }
}
