//! Several engines behind one API.

use super::*;
use crate::frontend::Engine;

/// Requests that each engine got.
fn submitted(api: &ToyApi) -> Vec<usize> {
    api.engines.iter().map(|engine| engine.submitted.lock().expect("no panic").len()).collect()
}

#[tokio::test]
async fn requests_go_to_the_engines_in_turn_and_all_choices_of_one_to_the_same() {
    let api = ToyApi::of_engines(2, &[]);
    for prompt in ["one", "two"] {
        assert_eq!(api.complete(prompt, json!({"n": 3})).await.status, StatusCode::OK);
    }
    assert_eq!(submitted(&api), [3, 3]);
}

#[tokio::test]
async fn a_known_prompt_finds_its_engine_and_a_header_chooses_another() {
    let api = ToyApi::of_engines(3, &[]);
    for _ in 0..4 {
        assert_eq!(api.complete("a prompt of some blocks", json!({})).await.status, StatusCode::OK);
    }
    assert_eq!(submitted(&api), [4, 0, 0]);
    let ranked = |rank: &'static str| {
        let request = Request::post("/v1/completions")
            .header(header::CONTENT_TYPE, "application/json")
            .header("X-data-parallel-rank", rank);
        let body = json!({"prompt": "a prompt of some blocks", "max_tokens": 4});
        api.send(request.body(Body::from(body.to_string())).expect("a request"))
    };
    assert_eq!(ranked("2").await.status, StatusCode::OK);
    assert_eq!(submitted(&api), [4, 0, 1]);
    for wrong in ["3", "-1", "first"] {
        let error = ranked(wrong).await.error(400, Value::Null);
        let expected = format!("x-data-parallel-rank is {wrong}; allowed: 0 to 2");
        assert_eq!(error["message"], expected);
    }
}

#[tokio::test]
async fn requests_that_have_not_ended_count_as_load() {
    let api = Arc::new(ToyApi::of_engines(2, &[]));
    let mut hanging = Vec::new();
    for _ in 0..4 {
        let asker = Arc::clone(&api);
        let before = api.frontend.num_open();
        hanging.push(tokio::spawn(async move { asker.complete("hang in there", json!({})).await }));
        while api.frontend.num_open() == before {
            tokio::task::yield_now().await;
        }
    }
    // One that waits more does not keep the second from home; two keep the third, and the fourth follows it.
    assert_eq!(submitted(&api), [2, 2]);
    api.frontend.abort_all();
    for answer in hanging {
        assert_eq!(answer.await.expect("no panic").status, StatusCode::OK);
    }
}

#[tokio::test]
async fn one_engine_that_failed_is_seen_in_health_and_gets_no_more_requests() {
    let api = ToyApi::of_engines(2, &[]);
    assert_eq!(api.get("/health").await.status, StatusCode::OK);
    api.complete("die", json!({})).await.error(503, json!("engine_unavailable"));
    let error = api.get("/health").await.error(503, json!("engine_unavailable"));
    assert_eq!(error["message"], "engine 0 of 2 has failed; the server has to be restarted");
    api.call(Method::POST, "/sleep").await.error(503, json!("engine_unavailable"));
    for _ in 0..3 {
        assert_eq!(api.complete("hi", json!({})).await.status, StatusCode::OK);
    }
    assert_eq!(submitted(&api), [1, 3]);
    api.engines[1].shutdown();
    while api.frontend.can_serve() {
        tokio::task::yield_now().await;
    }
    api.complete("hi", json!({})).await.error(503, json!("engine_unavailable"));
}

#[tokio::test]
async fn sleep_and_waking_up_are_for_all_engines() {
    let api = ToyApi::of_engines(2, &[]);
    let asleep = || api.engines.iter().map(|engine| engine.is_sleeping()).collect::<Vec<_>>();
    assert_eq!(api.call(Method::POST, "/sleep").await.status, StatusCode::OK);
    assert_eq!(asleep(), [true, true]);
    assert_eq!(api.get("/is_sleeping").await.json(), json!({"is_sleeping": true}));
    // One is woken up behind the server's back: it alone gets requests.
    api.engines[1].wake_up(Box::new(|_| {}));
    for _ in 0..2 {
        assert_eq!(api.complete("hi", json!({})).await.status, StatusCode::OK);
    }
    assert_eq!(submitted(&api), [0, 2]);
    assert_eq!(api.call(Method::POST, "/wake_up").await.status, StatusCode::OK);
    assert_eq!(asleep(), [false, false]);
    let error = api.call(Method::POST, "/sleep?mode=wait").await.error(500, json!("sleep_failed"));
    assert_eq!(error["message"], "engine 0: the engine is falling asleep already");
}
