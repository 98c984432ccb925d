//! The scrape: what is in it, in which form, and that it waits for nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::join_all;
use http::Method;
use limpid_tests::environment::python_with;
use limpid_tests::exposition::{Format, Labels, Scrape};
use limpid_tests::gaps::Gaps;
use limpid_tests::otlp_receiver::{OtlpReceiver, Transport};
use limpid_tests::server::{CONTEXT_LENGTH, MODEL, Options, slow_model, tiny_model};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::catalogue::{PROMISED, REASONS, SUCCESS};
use crate::{
    CHAT, COMPLETIONS, chat, completion, scrape, scrape_open_metrics, scrape_until, sending_to, with,
};

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn the_first_scrape_has_every_promised_family_at_zero() {
    let server = Options::new(&tiny_model()).start().await;
    let scrape = scrape(server.client()).await;
    let base = labels(&[("model_name", MODEL), ("engine", "0")]);
    let mut gaps = Gaps::default();
    for promised in &PROMISED {
        let name = promised.name;
        let Some(family) = gaps.some(name, scrape.families.get(name)) else { continue };
        gaps.equal(format_args!("{name}'s type"), family.kind.as_str(), promised.kind);
        gaps.expect(
            family.samples.iter().all(|sample| sample.value == 0.0),
            format_args!("{name} is not at 0"),
        );
        if let Some(buckets) = promised.buckets {
            let series = scrape.histograms(name);
            gaps.equal(format_args!("{name}'s series"), series.keys().cloned().collect(), vec![base.clone()]);
            for histogram in series.values() {
                let found: Vec<String> = histogram.buckets.iter().map(|(le, _)| le.clone()).collect();
                gaps.equal(format_args!("{name}'s buckets"), found, buckets.spelled(CONTEXT_LENGTH));
            }
            continue;
        }
        let found: BTreeSet<Labels> = family.samples.iter().map(|sample| sample.labels.clone()).collect();
        let wanted: BTreeSet<Labels> = if name == SUCCESS {
            REASONS
                .iter()
                .map(|reason| {
                    let mut labels = base.clone();
                    labels.insert("finished_reason".to_owned(), (*reason).to_owned());
                    labels
                })
                .collect()
        } else {
            BTreeSet::from([base.clone()])
        };
        gaps.equal(format_args!("{name}'s label sets"), found, wanted);
    }
    for (name, family) in &scrape.families {
        let vllm = name.strip_prefix("vllm:");
        let plain = vllm.unwrap_or(name);
        let valid = plain.starts_with(|c: char| c.is_ascii_lowercase())
            && plain.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        gaps.expect(valid, format_args!("{name} is no vllm: or plain lower-case name"));
        gaps.expect(!name.ends_with("_created"), format_args!("{name} would be taken for a metric"));
        gaps.expect(!family.help.is_empty(), format_args!("{name} has no help"));
        for sample in &family.samples {
            gaps.expect(sample.value.is_finite(), format_args!("{name} is {}", sample.value));
            for (label, value) in &sample.labels {
                gaps.expect(value.len() <= 512, format_args!("{name}: {label} is {} bytes", value.len()));
                gaps.expect(
                    !label.starts_with("otel_scope") && label != "pid",
                    format_args!("{name} has the label {label}"),
                );
            }
        }
    }
    let adapters: Vec<Labels> =
        scrape.family("vllm:lora_requests_info").samples.iter().map(|sample| sample.labels.clone()).collect();
    let none = labels(&[("max_lora", "0"), ("waiting_lora_adapters", ""), ("running_lora_adapters", "")]);
    gaps.equal("adapters", adapters, vec![none]);
    gaps.assert_none("GET /metrics before any request");
}

#[tokio::test]
async fn both_paths_answer_directly_and_in_the_format_that_their_header_names() {
    let server = Options::new(&tiny_model()).start().await;
    let mut gaps = Gaps::default();
    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
    for path in ["/metrics", "/metrics/"] {
        for (accept, open) in [
            (None, false),
            (Some("*/*"), false),
            (Some("text/plain"), false),
            (Some("text/plain;version=0.0.4;q=0.5,*/*;q=0.1"), false),
            (Some("application/openmetrics-text; version=1.0.0; charset=utf-8"), true),
            (
                Some(
                    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                     application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
                     text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                ),
                true,
            ),
            (Some("text/html"), false),
        ] {
            let headers: Vec<(&str, &str)> = accept.map(|accept| ("accept", accept)).into_iter().collect();
            let reply = server.client().request(Method::GET, path, &headers, Bytes::new()).await;
            let what = format!("{path} with {accept:?}");
            gaps.equal(format_args!("{what}: status"), reply.status.as_u16(), 200);
            gaps.expect(reply.headers.get("location").is_none(), format_args!("{what}: a redirect"));
            let content_type = reply.header("content-type");
            if open {
                let named = content_type.starts_with("application/openmetrics-text; version=1.0.0");
                gaps.expect(named, format_args!("{what}: {content_type}"));
                gaps.expect(reply.text().ends_with("# EOF\n"), format_args!("{what}: no # EOF"));
            } else {
                gaps.equal(format_args!("{what}: content-type"), content_type, TEXT);
                gaps.expect(!reply.text().contains("# EOF"), format_args!("{what}: # EOF in text"));
            }
            gaps.expect(reply.text().starts_with('#'), format_args!("{what}: no text format"));
            let format = if open { Format::OpenMetrics } else { Format::Text004 };
            if let Err(broken) = Scrape::parse(reply.text(), format) {
                gaps.note(format_args!("{what}: {broken}"));
            }
        }
    }
    gaps.assert_none("FR-B01 to B03");
}

#[tokio::test]
async fn the_official_python_parser_reads_both_formats() {
    let Some(python) = python_with("prometheus_client") else { return };
    let server = crate::parity::everything().start().await;
    server.client().post(CHAT, &chat(4)).await;
    for (module, accept) in [
        ("prometheus_client.parser", "text/plain"),
        ("prometheus_client.openmetrics.parser", "application/openmetrics-text;version=1.0.0"),
    ] {
        let reply =
            server.client().request(Method::GET, "/metrics", &[("accept", accept)], Bytes::new()).await;
        let program = format!(
            "import sys; from {module} import text_string_to_metric_families as parse\n\
             families = list(parse(sys.stdin.read()))\n\
             print(len(families), sum(len(family.samples) for family in families))"
        );
        let mut child = tokio::process::Command::new(&python)
            .arg("-c")
            .arg(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&reply.body).await.unwrap();
        let output = child.wait_with_output().await.unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{module}: {error}");
        let format = if accept == "text/plain" { Format::Text004 } else { Format::OpenMetrics };
        let ours = Scrape::parse(reply.text(), format).unwrap();
        let samples: usize = ours.families.values().map(|family| family.samples.len()).sum();
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert_eq!(found, format!("{} {samples}", ours.families.len()), "{module}");
    }
}

#[tokio::test]
async fn time_to_first_token_is_what_clients_measure() {
    let server = Options::new(&slow_model()).start().await;
    let client = server.client();
    let mut measured = 0.0;
    for index in 0..20 {
        let prompt = format!("request {index} {}", "and the ".repeat(20));
        let request = with(completion(4), json!({"stream": true, "prompt": prompt}));
        let asked = Instant::now();
        let mut stream = client.stream(COMPLETIONS, &[], &request).await;
        stream.next().await.expect("a first chunk");
        measured += asked.elapsed().as_secs_f64();
        while stream.next().await.is_some() {}
    }
    let first = scrape(client).await.histogram("vllm:time_to_first_token_seconds");
    assert_eq!(first.count, 20.0);
    assert!(first.sum >= 0.5 * measured, "{} s, clients measured {measured} s", first.sum);
    assert!(first.sum <= measured + 20.0 * 0.05, "{} s, clients measured {measured} s", first.sum);
}

#[tokio::test]
async fn exemplars_lead_to_traces_that_were_sent() {
    let receiver = OtlpReceiver::start().await;
    let server = sending_to(&receiver, Transport::Grpc).start().await;
    server.client().post(CHAT, &chat(4)).await;
    let sent = crate::trace(&receiver, "the trace", |trace| trace.model().is_some()).await;
    let traces = BTreeSet::from([sent.id()]);
    let scrape = scrape_open_metrics(server.client()).await;
    let family = scrape.family("vllm:time_to_first_token_seconds");
    let exemplars: Vec<_> = family.samples.iter().filter_map(|sample| sample.exemplar.as_ref()).collect();
    assert_eq!(exemplars.len(), 1, "one request, one bucket");
    assert!(traces.contains(&exemplars[0].labels["trace_id"]), "{exemplars:?} among {traces:?}");
    assert!(exemplars[0].value > 0.0);
    // The 0.0.4 format has none: the strict parser refuses them.
    crate::scrape(server.client()).await;
}

#[tokio::test]
async fn counters_never_fall_and_no_series_comes_or_goes_under_load() {
    let server = Options::new(&tiny_model()).start().await;
    let client = server.client();
    client.post(CHAT, &chat(2)).await;
    let series = scrape(client).await.series();
    let scrapes = async {
        let mut before: BTreeMap<(String, Labels), f64> = BTreeMap::new();
        for _ in 0..100 {
            let scrape = scrape(client).await;
            assert!(scrape.series().is_superset(&series), "a series went");
            let counters = scrape.families.values().filter(|family| family.kind != "gauge");
            for sample in counters.flat_map(|family| &family.samples) {
                let key = (sample.name.clone(), sample.labels.clone());
                let last = before.insert(key, sample.value).unwrap_or(0.0);
                assert!(sample.value >= last, "{} fell from {last} to {}", sample.name, sample.value);
            }
        }
    };
    let load = join_all((0..40u64).map(|index| async move {
        let headers = [("user-agent", "agent"), ("x-request-id", "an-id")];
        let request = with(chat(1 + index % 20), json!({"user": format!("user-{index}")}));
        client.post_with(CHAT, &headers, &request).await;
    }));
    tokio::join!(scrapes, load);
    for index in 0..10 {
        client.post(&format!("/v1/unknown-{index}"), &json!({})).await;
        client.post(CHAT, &with(chat(1), json!({"model": format!("m-{index}\"\n")}))).await;
    }
    let after = scrape(client).await.series();
    let new: Vec<_> = after.difference(&series).filter(|(name, _)| name.starts_with("vllm:")).collect();
    assert!(new.is_empty(), "requests made new series: {new:?}");
    let others = after.difference(&series).count();
    assert!(others < 200, "{others} new series from 60 requests of three kinds");
}

#[tokio::test]
async fn scrapes_do_not_wait_for_the_engine() {
    // One step of this budget on this model takes long, and most scrapes fall into one.
    let server = Options::new(&slow_model()).arg("--max-num-batched-tokens", "4096").start().await;
    let client = server.client();
    let prompt: Vec<u32> = (0..2000).map(|index| 20 + index % 200).collect();
    let request = json!({"model": MODEL, "prompt": prompt, "max_tokens": 1});
    let mut interval = tokio::time::interval(Duration::from_millis(5));
    let asked = Instant::now();
    let mut answer = std::pin::pin!(client.post(COMPLETIONS, &request));
    let mut scrapes = Vec::new();
    loop {
        tokio::select! {
            reply = &mut answer => {
                assert_eq!(reply.status, 200);
                break;
            }
            took = async {
                interval.tick().await;
                let asked = Instant::now();
                assert_eq!(client.get("/metrics").await.status, 200);
                asked.elapsed()
            } => scrapes.push(took),
        }
    }
    let step = asked.elapsed();
    scrapes.sort();
    assert!(scrapes.len() >= 5, "{} scrapes within {step:?}", scrapes.len());
    // A scrape that waited for the engine would last as long as what is left of the step. A busy test machine
    // may hold up a single scrape, but not most of them, and not for half of the step.
    let (median, slowest) = (scrapes[scrapes.len() / 2], scrapes[scrapes.len() - 1]);
    assert!(median < Duration::from_millis(250), "the median of {} scrapes took {median:?}", scrapes.len());
    assert!(
        slowest < step / 2,
        "the slowest of {} scrapes took {slowest:?}, the step {step:?}",
        scrapes.len()
    );
}

#[tokio::test]
async fn a_compressed_scrape_is_the_same_text() {
    use std::io::Read;
    let server = Options::new(&tiny_model()).start().await;
    let gzip = [("accept-encoding", "gzip")];
    let reply = server.client().request(Method::GET, "/metrics", &gzip, Bytes::new()).await;
    assert_eq!(reply.header("content-encoding"), "gzip");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&reply.body[..]).read_to_string(&mut text).unwrap();
    let inflated = Scrape::parse(&text, Format::Text004).unwrap();
    assert_eq!(inflated.series(), scrape(server.client()).await.series());
}

#[tokio::test]
async fn one_call_of_each_route_and_alias_is_counted_once_after_routing() {
    let server = Options::new(&tiny_model()).start().await;
    let client = server.client();
    let model = format!("/v1/models/{MODEL}");
    let tokens = json!({"model": MODEL, "tokens": [50, 51]});
    let text = json!({"model": MODEL, "prompt": "ab"});
    for (method, path, body) in [
        ("POST", CHAT, chat(2)),
        ("POST", COMPLETIONS, completion(2)),
        ("GET", "/v1/models", json!(null)),
        ("GET", model.as_str(), json!(null)),
        ("POST", "/tokenize", text),
        ("POST", "/detokenize", tokens),
        ("POST", "/reset_prefix_cache", json!(null)),
    ] {
        let before = scrape(client).await;
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let headers = [("content-type", "application/json")];
        let reply = client.request(method, path, &headers, body.to_string().into()).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        // The books are closed with the last byte, which the client has a moment earlier.
        let counted = |scrape: &Scrape| scrape.value("http_requests_total", &[]);
        let after = scrape_until(client, path, |after| counted(after) > counted(&before)).await;
        assert_eq!(counted(&after) - counted(&before), 1.0, "{path}");
        let durations = |scrape: &Scrape| -> f64 {
            let series = scrape.histograms("http_server_request_duration_seconds");
            series.values().map(|histogram| histogram.count).sum()
        };
        assert_eq!(durations(&after) - durations(&before), 1.0, "{path}");
        let generates = f64::from(u8::from(path == CHAT || path == COMPLETIONS));
        let ended = after.value(SUCCESS, &[]) - before.value(SUCCESS, &[]);
        assert_eq!(ended, generates, "{path}");
    }
}
