use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::*;

#[test]
fn lengths_are_a_number_or_a_rising_range() {
    assert_eq!("7".parse(), Ok(Lengths { least: 7, most: 7 }));
    assert_eq!("7-9".parse(), Ok(Lengths { least: 7, most: 9 }));
    for bad in ["", "0", "9-7", "-7", "7-", "1-2-3", "x", "99999999999999999999", "1-2000000"] {
        assert!(bad.parse::<Lengths>().is_err(), "{bad}");
    }
}

fn load() -> Load {
    Load {
        concurrency: 3,
        requests: 10,
        prompt_tokens: Lengths { least: 4, most: 9 },
        output_tokens: Lengths { least: 2, most: 5 },
        seed: 1,
        stream: true,
    }
}

#[test]
fn a_request_depends_on_seed_and_number_and_keeps_the_lengths() {
    let pool: Vec<u64> = (100..200).collect();
    let of = |seed, number| request(&Load { seed, ..load() }, "m", &pool, number);
    assert_eq!(of(1, 5), of(1, 5));
    let different: HashSet<Vec<u64>> = (0..50).map(|number| of(1, number).prompt).collect();
    assert_eq!(different.len(), 50);
    assert_ne!(of(1, 5).prompt, of(2, 5).prompt);
    for number in 0..50 {
        let request = of(1, number);
        let prompt = request.prompt;
        assert!((4..=9).contains(&prompt.len()) && prompt.iter().all(|id| pool.contains(id)));
        assert!((2..=5).contains(&request.max_tokens));
        assert_eq!(request.min_tokens, request.max_tokens);
    }
}

/// Answers as asked for; refuses every request after the first `limit`.
fn fake_server(limit: usize, seen: Arc<Mutex<Vec<Value>>>) -> axum::Router {
    let complete = async move |Json(request): Json<Value>| -> Response {
        let count = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len()
        };
        if count > limit {
            return (StatusCode::SERVICE_UNAVAILABLE, r#"{"error":{"message":"full"}}"#).into_response();
        }
        let tokens = request["max_tokens"].as_u64().unwrap();
        let prompt = request["prompt"].as_array().unwrap().len();
        let usage = json!({ "prompt_tokens": prompt, "completion_tokens": tokens });
        if request["stream"] == false {
            return Json(json!({ "choices": [{ "text": "xx" }], "usage": usage })).into_response();
        }
        let piece = json!({ "choices": [{ "text": "x" }], "usage": null });
        let mut events = format!("data: {piece}\n\n").repeat(tokens as usize);
        events += &format!("data: {}\n\ndata: [DONE]\n\n", json!({ "choices": [], "usage": usage }));
        events.into_response()
    };
    axum::Router::new()
        .route("/v1/models", get(|| async { Json(json!({ "data": [{ "id": "m" }] })) }))
        .route("/tokenize", post(|| async { Json(json!({ "tokens": [5, 6, 7, 8] })) }))
        .route("/v1/completions", post(complete))
}

async fn run(load: &Load, limit: usize) -> (anyhow::Result<LoadResult>, Vec<Value>) {
    let seen = Arc::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let router = fake_server(limit, Arc::clone(&seen));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let client = Client::new(&base, None).unwrap();
    let result = run_load(&client, load, &ProgressBar::hidden()).await;
    let seen = seen.lock().unwrap().clone();
    (result, seen)
}

#[tokio::test]
async fn a_load_sends_every_request_once_and_counts_its_tokens() {
    let (result, seen) = run(&load(), usize::MAX).await;
    let result = result.unwrap();
    // One more than asked for: the one before the clock starts.
    assert_eq!((result.completed, result.failed, seen.len()), (10, 0, 11));
    let different: HashSet<String> = seen.iter().map(Value::to_string).collect();
    assert_eq!(different.len(), 11);
    let sum = |key: &dyn Fn(&Value) -> u64| seen[1..].iter().map(key).sum::<u64>();
    assert_eq!(result.output_tokens, sum(&|request| request["max_tokens"].as_u64().unwrap()));
    assert_eq!(result.prompt_tokens, sum(&|request| request["prompt"].as_array().unwrap().len() as u64));
    let gaps = result.output_tokens as usize - 10;
    assert_eq!(result.inter_token_latency.unwrap().count, gaps);
    let (first, all) = (result.time_to_first_token.unwrap(), result.end_to_end.unwrap());
    assert_eq!((first.count, all.count), (10, 10));
    assert!(first.max <= all.max && all.max <= result.seconds);
}

#[tokio::test]
async fn without_streaming_only_the_whole_answer_has_a_time() {
    let (result, seen) = run(&Load { stream: false, ..load() }, usize::MAX).await;
    let result = result.unwrap();
    assert!(seen.iter().all(|request| request["stream"] == false));
    assert_eq!((result.time_to_first_token, result.inter_token_latency), (None, None));
    assert_eq!((result.completed, result.end_to_end.unwrap().count), (10, 10));
    assert!(result.output_tokens >= 20);
}

#[tokio::test]
async fn failures_are_counted_and_a_load_without_success_is_an_error() {
    let (result, _) = run(&load(), 4).await;
    let result = result.unwrap();
    assert_eq!((result.completed, result.failed), (3, 7));
    assert!(result.first_error.unwrap().contains("full"));

    let error = run(&load(), 1).await.0.unwrap_err().to_string();
    assert!(error.contains("all 10 requests failed") && error.contains("full"), "{error}");
    let error = format!("{:#}", run(&load(), 0).await.0.unwrap_err());
    assert!(error.contains("the first request") && error.contains("full"), "{error}");
}

#[tokio::test]
async fn no_more_requests_are_in_flight_than_clients() {
    let too_many = Arc::new(AtomicBool::new(false));
    let in_flight = Arc::new(AtomicUsize::new(0));
    let (flag, counter) = (Arc::clone(&too_many), Arc::clone(&in_flight));
    let complete = async move || {
        if counter.fetch_add(1, Ordering::SeqCst) >= 3 {
            flag.store(true, Ordering::SeqCst);
        }
        tokio::task::yield_now().await;
        counter.fetch_sub(1, Ordering::SeqCst);
        Json(json!({ "usage": {} }))
    };
    let router = axum::Router::new()
        .route("/v1/models", get(|| async { Json(json!({ "data": [{ "id": "m" }] })) }))
        .route("/tokenize", post(|| async { Json(json!({ "tokens": [5] })) }))
        .route("/v1/completions", post(complete));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let client = Client::new(&base, None).unwrap();
    let load = Load { requests: 60, stream: false, ..load() };
    run_load(&client, &load, &ProgressBar::hidden()).await.unwrap();
    assert!(!too_many.load(Ordering::SeqCst));
}
