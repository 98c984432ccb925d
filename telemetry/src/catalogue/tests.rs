//! The catalogue against vLLM's, and against itself.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Buckets, Kind, Row, Status, Values, rows};

/// What operators read about what is not there.
const PAGE: &str = include_str!("../../../docs/reference/vllm-compatibility.md");

/// vLLM's metrics of groups 2.1 to 2.7, 2.9 and `other` whose cause limpid does not have: diffusion models,
/// speculative decoding, a KV connector, watermarks, Python, web sockets, tools, weight updates.
const NOT_SERVED: &[&str] = &[
    "python_gc_collections_total",
    "python_gc_objects_collected_total",
    "python_gc_objects_uncollectable_total",
    "python_info",
    "vllm:diffusion_num_canvas_positions",
    "vllm:diffusion_num_committed_tokens",
    "vllm:diffusion_num_denoising_steps",
    "vllm:num_requests_kv_fetch_by_stage",
    "vllm:rl_weight_update_operation_duration_seconds",
    "vllm:rl_weight_update_operations_in_flight",
    "vllm:spec_decode_num_accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_drafts",
    "vllm:tool_call_parser_invocations_total",
    "vllm:watermark_requests",
    "vllm:websocket_connection_duration_seconds",
    "vllm:websocket_connections_active",
    "vllm:websocket_connections_total",
];

fn golden() -> Value {
    serde_json::from_str(include_str!("vllm-0.33.json")).expect("the golden file")
}

fn golden_sglang() -> Value {
    serde_json::from_str(include_str!("sglang-0.5.23.json")).expect("the golden file")
}

fn kind(row: &Row) -> &'static str {
    match row.kind {
        Kind::Counter => "counter",
        Kind::Gauge | Kind::UpDownCounter => "gauge",
        Kind::Histogram(_) => "histogram",
        Kind::Summary => "summary",
    }
}

fn their_bounds(golden: &Value, index: &Value) -> Vec<f64> {
    let bounds = golden["buckets"][index.as_u64().unwrap() as usize].as_array().unwrap();
    bounds.iter().map(|bound| bound.as_f64().unwrap()).collect()
}

fn exposed(metric: &Value) -> &str {
    metric.get("exposed").unwrap_or(&metric["name"]).as_str().expect("a name")
}

fn vllm_rows() -> impl Iterator<Item = &'static Row> {
    rows().filter(|row| row.dialect == "vllm")
}

#[test]
fn every_vllm_row_equals_vllms_own_declaration() {
    let golden = golden();
    let mut gaps = Vec::new();
    for row in vllm_rows() {
        let name = row.exposed_name();
        let metrics = golden["metrics"].as_array().unwrap();
        let Some(theirs) = metrics.iter().find(|metric| exposed(metric) == name) else {
            gaps.push(format!("{name}: vLLM has no such metric"));
            continue;
        };
        let mut compare = |what: &str, ours: String, theirs: String| {
            if ours != theirs {
                gaps.push(format!("{name}: {what} {ours} instead of {theirs}"));
            }
        };
        compare("type", kind(row).to_owned(), theirs["type"].as_str().unwrap().to_owned());
        compare("group", row.group.to_owned(), theirs["group"].as_str().unwrap().to_owned());
        let labels: Vec<&str> = row.labels.iter().map(|label| label.name).collect();
        compare("labels", serde_json::to_string(&labels).unwrap(), theirs["labels"].to_string());
        for label in row.labels {
            if let Values::Closed(values) = label.values {
                let values = serde_json::to_string(values).unwrap();
                compare("values", values, theirs["label_values"][label.name].to_string());
            }
        }
        let status = if theirs["status"] == "current" { Status::Current } else { Status::Revived };
        compare("status", format!("{:?}", row.status), format!("{status:?}"));
        match (row.kind, theirs.get("buckets")) {
            (Kind::Histogram(Buckets::OneTwoFive), Some(index)) => {
                let theirs = golden["buckets"][index.as_u64().unwrap() as usize].as_str().unwrap_or_default();
                compare("buckets", "1-2-5 series".to_owned(), theirs.chars().take(12).collect());
            }
            (Kind::Histogram(Buckets::Fixed(ours)), Some(index)) => {
                let theirs = their_bounds(&golden, index);
                compare("buckets", format!("{ours:?}"), format!("{theirs:?}"));
            }
            // vLLM 0.33 no longer declares the buckets of a metric it removed.
            (Kind::Histogram(_), None) => {
                compare("status", format!("{:?}", row.status), "Revived".to_owned())
            }
            (Kind::Counter | Kind::Gauge | Kind::UpDownCounter | Kind::Summary, _) => {}
        }
    }
    assert!(gaps.is_empty(), "{}", gaps.join("\n"));
}

#[test]
fn what_vllm_has_and_limpid_has_not_is_listed() {
    let ours: BTreeSet<String> = vllm_rows().map(Row::exposed_name).collect();
    let golden = golden();
    let missing: BTreeSet<&str> = golden["metrics"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|metric| metric["status"] == "current" && !ours.contains(exposed(metric)))
        .filter(|metric| {
            let group = metric["group"].as_str().unwrap();
            ("2.1".."2.8").contains(&group) || group == "2.9" || group == "other"
        })
        .map(|metric| metric["name"].as_str().unwrap())
        .collect();
    assert_eq!(missing, NOT_SERVED.iter().copied().collect());
    for name in missing.iter().filter(|name| !name.starts_with("python_")) {
        assert!(PAGE.contains(&format!("`{name}`")), "{name} and its reason are not on the page");
    }
}

#[test]
fn what_sglang_has_and_limpid_has_not_is_on_the_page_with_its_reason() {
    let ours: BTreeSet<String> =
        rows().filter(|row| row.dialect == "sglang").map(Row::exposed_name).collect();
    let golden = golden_sglang();
    let metrics = golden["metrics"].as_array().unwrap();
    let missing: BTreeSet<&str> = metrics.iter().map(exposed).filter(|name| !ours.contains(*name)).collect();
    let section = PAGE.split("## SGLang's names").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let table = section.split("| not there | because |").nth(1).expect("the table");
    let mut listed = BTreeSet::new();
    for row in table.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [names, reason] = cells[..] else { panic!("{row}") };
        assert!(!reason.is_empty(), "{row}");
        for name in names.split(',').map(|name| name.trim().trim_matches('`')) {
            assert!(listed.insert(name), "{name} is listed twice");
        }
    }
    assert_eq!(listed, missing);
}

#[test]
fn names_are_unique_and_legal_in_both_forms() {
    let mut instruments = BTreeSet::new();
    let mut families = BTreeSet::new();
    for row in rows() {
        assert!(instruments.insert(row.instrument), "{}", row.instrument);
        assert!(families.insert(row.exposed_name()), "{}", row.exposed_name());
        let exposed = row.exposed_name();
        let (prefix, rest) = exposed.split_once(':').unwrap_or(("", exposed.as_str()));
        assert!(["", "vllm", "sglang"].contains(&prefix), "{exposed}: a colon is for the names that have it");
        // SGLang shouts in one name.
        let rest = rest.strip_suffix("_SLO").unwrap_or(rest);
        assert!(rest.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{exposed}");
        assert!(!exposed.ends_with("_created"), "{exposed}");
        if let Some(renamed) = row.renamed {
            assert_eq!(row.exposed_name(), renamed, "a final name stays as it is");
            assert_eq!(row.wire_unit(), "");
        }
    }
}

#[test]
fn descriptions_are_sentences_and_no_histogram_has_the_sdks_default_bounds() {
    for row in rows() {
        assert!(row.description.ends_with('.') && row.description.len() < 120, "{}", row.instrument);
        if let Kind::Histogram(buckets) = row.kind {
            let bounds = buckets.bounds(2048);
            let default = bounds.starts_with(&[0.0, 5.0]);
            assert!(!default && bounds.is_sorted_by(|one, next| one < next), "{}", row.instrument);
        }
    }
}

#[test]
fn the_longest_latencies_have_finite_buckets() {
    let row = rows().find(|row| row.instrument == "vllm.e2e_request_latency_seconds").unwrap();
    let Kind::Histogram(buckets) = row.kind else { panic!() };
    for bound in [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0] {
        assert!(buckets.bounds(1).contains(&bound));
    }
}

#[test]
fn every_sglang_row_equals_sglangs_own_declaration() {
    let golden = golden_sglang();
    let mut gaps = Vec::new();
    for row in rows().filter(|row| row.dialect == "sglang") {
        let name = row.exposed_name();
        let metrics = golden["metrics"].as_array().unwrap();
        let Some(theirs) = metrics.iter().find(|metric| exposed(metric) == name) else {
            gaps.push(format!("{name}: SGLang has no such metric"));
            continue;
        };
        // SGLang adds the rank only where there are several, which its declarations do not show.
        let declared = row.labels.iter().filter(|label| label.values != Values::Rank);
        let labels: Vec<&str> = declared.map(|label| label.name).collect();
        // SGLang's pid is an accident of several processes.
        let their_labels: Vec<&str> = theirs["labels"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .filter(|name| *name != "pid")
            .collect();
        for (what, ours, theirs) in [
            ("type", kind(row), &theirs["type"]),
            ("group", row.group, &theirs["group"]),
            ("status", if row.status == Status::Current { "current" } else { "" }, &theirs["status"]),
        ] {
            if !ours.is_empty() && theirs != ours {
                gaps.push(format!("{name}: {what} {ours} instead of {theirs}"));
            }
        }
        if labels != their_labels {
            gaps.push(format!("{name}: labels {labels:?} instead of {their_labels:?}"));
        }
        for label in row.labels {
            // Those of its values that have a cause here.
            if let Values::Closed(values) = label.values {
                let theirs: Vec<&str> = theirs["label_values"][label.name]
                    .as_array()
                    .map(|values| values.iter().filter_map(Value::as_str).collect())
                    .unwrap_or_default();
                if let Some(value) = values.iter().find(|value| !theirs.contains(value)) {
                    gaps.push(format!("{name}: {} {value} is none of {theirs:?}", label.name));
                }
            }
        }
        if let (Kind::Histogram(buckets), Some(index)) = (row.kind, theirs.get("buckets")) {
            let (ours, theirs) = (buckets.bounds(100), their_bounds(&golden, index));
            if ours != theirs {
                gaps.push(format!("{name}: buckets {ours:?} instead of {theirs:?}"));
            }
        }
    }
    assert!(gaps.is_empty(), "{}", gaps.join("\n"));
}
