//! Disconnects and shutdown over real sockets, with a scripted engine.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::*;
use crate::testing::ToyApi;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

async fn start(shutdown_timeout: Duration) -> (RunningServer, watch::Receiver<usize>) {
    let api = ToyApi::new(&[]);
    let port = Port::bind("127.0.0.1", 0).await.expect("a free port");
    let addr = port.address().expect("bound");
    let server = RunningServer {
        addr,
        frontend: api.frontend,
        frontend_tasks: api.frontend_tasks,
        connections: port.listen(api.router).expect("still free"),
        telemetry: api.telemetry,
        stats_tasks: Vec::new(),
        shutdown_timeout,
    };
    (server, api.engine.aborts.subscribe())
}

/// Sends a completion request and leaves the answer to be read.
async fn ask(server: &RunningServer, body: &str) -> TcpStream {
    let mut client = TcpStream::connect(server.addr).await.expect("it is open");
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    client.write_all(request.as_bytes()).await.expect("written");
    client
}

/// Returns once `count` requests are open.
async fn open(server: &RunningServer, count: usize) {
    while server.frontend.num_open() != count {
        tokio::task::yield_now().await;
    }
}

async fn within_patience<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_aborts_its_request_in_both_modes() {
    let (server, mut aborts) = start(PATIENCE).await;
    for (count, body) in [r#"{"prompt": "hang"}"#, r#"{"prompt": "hang", "stream": true}"#].iter().enumerate()
    {
        let client = ask(&server, body).await;
        within_patience(open(&server, 1)).await;
        drop(client);
        within_patience(aborts.wait_for(|aborts| *aborts == count + 1)).await.expect("the engine lives");
        within_patience(server.frontend.drained()).await;
    }
    within_patience(server.shutdown()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_aborts_what_does_not_end_and_answers_it() {
    let (server, aborts) = start(Duration::ZERO).await;
    let mut client = ask(&server, r#"{"prompt": "hang"}"#).await;
    within_patience(open(&server, 1)).await;
    let idle = TcpStream::connect(server.addr).await.expect("it is open");
    let addr = server.addr;
    within_patience(server.shutdown()).await;
    let mut answer = String::new();
    within_patience(client.read_to_string(&mut answer)).await.expect("text");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains(r#""finish_reason":"abort""#), "{answer}");
    assert_eq!(*aborts.borrow(), 1);
    TcpStream::connect(addr).await.expect_err("it is closed");
    drop(idle);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_waits_for_a_request_that_ends_in_time() {
    let (server, aborts) = start(PATIENCE).await;
    let client = ask(&server, r#"{"prompt": "hang", "stream": true}"#).await;
    within_patience(open(&server, 1)).await;
    let shutdown = tokio::spawn(server.shutdown());
    // It ends because its client does; until then the shutdown has to wait.
    tokio::task::yield_now().await;
    assert!(!shutdown.is_finished());
    drop(client);
    within_patience(shutdown).await.expect("no panic");
    assert_eq!(*aborts.borrow(), 1);
}
