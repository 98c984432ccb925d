//! The table of what is accepted and what is refused.

use serde_json::{Value, json};

use super::*;

const LIMITS: Limits<'static> = Limits { vocabulary_size: 300, end_token_ids: &[256], has_priorities: false };

fn parse(body: Value) -> Result<Params, ApiError> {
    let Value::Object(map) = body else { panic!("an object") };
    let mut fields = Fields::from(map);
    refuse_unsupported(&fields, &[])?;
    Params::parse(&mut fields, None, &LIMITS)
}

#[test]
fn the_defaults_are_those_of_the_api() {
    let params = parse(json!({})).expect("nothing is required");
    assert_eq!(params.sampling, SamplingParams { stop_token_ids: vec![256], ..SamplingParams::default() });
    assert_eq!(params.max_tokens, None);
    assert!(params.skip_special_tokens && !params.stream && !params.include_usage);
    assert_eq!(params.recorded, RequestParams::default());
}

#[test]
fn null_means_absent_for_every_parameter() {
    let names = [
        "stream",
        "stream_options",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "min_tokens",
        "logit_bias",
        "skip_special_tokens",
        "priority",
        "cache_salt",
        "best_of",
        "echo",
        "response_format",
        "guided_json",
        "user",
        "unknown",
    ];
    for name in names {
        let params = parse(json!({ name: null })).unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(params.recorded, RequestParams::default(), "{name}");
    }
}

#[test]
fn wrong_values_are_refused_by_name() {
    let table = [
        ("temperature", json!(-0.1)),
        ("temperature", json!("hot")),
        ("temperature", json!(1e300)),
        ("top_p", json!(0)),
        ("top_p", json!(1.1)),
        ("top_k", json!(-2)),
        ("top_k", json!(1.5)),
        ("min_p", json!(1.5)),
        ("frequency_penalty", json!(2.5)),
        ("presence_penalty", json!(-3)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(1e-300)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!("5")),
        ("max_completion_tokens", json!(-1)),
        ("min_tokens", json!(-1)),
        ("seed", json!(1.5)),
        ("seed", json!(18446744073709551615u64)),
        ("stop", json!("")),
        ("stop", json!(["a", ""])),
        ("stop", json!(["a", 1])),
        ("stop", json!(vec!["a"; 17])),
        ("stop", json!("x".repeat(513))),
        ("stop_token_ids", json!([300])),
        ("stop_token_ids", json!([-1])),
        ("stop_token_ids", json!(vec![1; 257])),
        ("logit_bias", json!({"300": 1})),
        ("logit_bias", json!({"a": 1})),
        ("logit_bias", json!({"1": 101})),
        ("logit_bias", json!([1])),
        ("priority", json!(1)),
        ("cache_salt", json!("")),
        ("cache_salt", json!("x".repeat(513))),
        ("stream", json!("yes")),
        ("stream_options", json!({"include_usage": true})),
        ("ignore_eos", json!(1)),
        ("n", json!(129)),
        ("n", json!(0)),
        ("n", json!("1")),
        ("echo", json!(true)),
        ("response_format", json!({"type": "json_object"})),
        ("response_format", json!("text")),
        ("guided_regex", json!("a+")),
        ("prompt_logprobs", json!(0)),
        ("use_beam_search", json!(true)),
    ];
    for (name, value) in table {
        let error = parse(json!({ name: value })).expect_err(&format!("{name}: {value}"));
        assert_eq!(error.param.as_deref(), Some(name), "{value}: {}", error.message);
        assert!(error.message.contains("; allowed: "), "{}", error.message);
    }
}

#[test]
fn values_that_ask_for_nothing_are_accepted() {
    let body = json!({
        "n": 1, "echo": false, "response_format": {"type": "text"}, "bad_words": [],
        "use_beam_search": false, "length_penalty": 1.0, "priority": 0, "vllm_xargs": {},
    });
    assert_eq!(parse(body).expect("accepted").recorded.n, Some(1));
}

#[test]
fn the_new_name_of_the_token_limit_wins() {
    let params = parse(json!({"max_completion_tokens": 5, "max_tokens": 9})).expect("accepted");
    assert_eq!((params.max_tokens, params.recorded.max_tokens), (Some(5), Some(5)));
}

#[test]
fn parameters_reach_the_engine_and_the_trace() {
    let params = parse(json!({
        "temperature": 0, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "seed": -7, "max_tokens": 5.0,
        "repetition_penalty": 1.1, "logit_bias": {"7": -100, "8": 1.5}, "stop": "END", "stop_token_ids": [9],
        "ignore_eos": true, "min_tokens": 2, "stream": true, "stream_options": {"include_usage": true},
        "cache_salt": "mine",
    }))
    .expect("accepted");
    let sampling = &params.sampling;
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k), (0.0, 0.9, None));
    assert_eq!(sampling.seed, Some(-7i64 as u64));
    assert_eq!(sampling.logit_bias, [(7, -100.0), (8, 1.5)]);
    assert_eq!((sampling.stop_token_ids.as_slice(), sampling.min_tokens), ([9].as_slice(), 2));
    assert_eq!(
        (params.stop.as_slice(), params.cache_salt.as_deref()),
        (["END".to_owned()].as_slice(), Some("mine"))
    );
    assert!(params.stream && params.include_usage);
    let recorded = &params.recorded;
    assert_eq!((recorded.temperature, recorded.top_p, recorded.top_k), (Some(0.0), Some(0.9), Some(-1)));
    assert_eq!((recorded.max_tokens, recorded.seed), (Some(5), Some(-7)));
}

#[test]
fn the_answer_is_fitted_into_the_context() {
    let fit = |body: Value, prompt: usize, default: usize| {
        let mut params = parse(body).expect("accepted");
        params.fit(prompt, 100, default).map(|()| params.sampling.max_tokens)
    };
    assert_eq!(fit(json!({}), 10, 16).expect("fits"), 16);
    assert_eq!(fit(json!({}), 95, 16).expect("fits"), 5);
    assert_eq!(fit(json!({}), 99, usize::MAX).expect("fits"), 1);
    assert_eq!(fit(json!({"max_tokens": 90}), 10, 16).expect("fits"), 90);
    for (body, prompt, numbers) in [
        (json!({}), 100, ["100 tokens", "at most 99"]),
        (json!({"max_tokens": 91}), 10, ["is 91", "at most 90"]),
    ] {
        let error = fit(body, prompt, 16).expect_err("too long");
        assert_eq!(error.kind, ErrorKind::ContextLength);
        assert!(numbers.iter().all(|number| error.message.contains(number)), "{}", error.message);
    }
    assert_eq!(
        fit(json!({"min_tokens": 17}), 10, 16).expect_err("too many").param.as_deref(),
        Some("min_tokens")
    );
}
