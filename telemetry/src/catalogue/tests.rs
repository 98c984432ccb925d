//! The catalogue against vLLM's, and against itself.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Buckets, Kind, Row, Status, Values, rows};

/// vLLM's metrics of groups 2.1 to 2.7 that limpid does not serve yet.
const NOT_YET: &[&str] = &[
    "vllm:admission_rejections",
    "vllm:corrupted_requests",
    "vllm:diffusion_num_canvas_positions",
    "vllm:diffusion_num_committed_tokens",
    "vllm:diffusion_num_denoising_steps",
    "vllm:engine_sleep_state",
    "vllm:estimated_flops_per_gpu_total",
    "vllm:estimated_read_bytes_per_gpu_total",
    "vllm:estimated_write_bytes_per_gpu_total",
    "vllm:external_prefix_cache_hits",
    "vllm:external_prefix_cache_queries",
    "vllm:kv_block_idle_before_evict_seconds",
    "vllm:kv_block_lifetime_seconds",
    "vllm:kv_block_reuse_gap_seconds",
    "vllm:lora_requests_info",
    "vllm:mm_cache_hits",
    "vllm:mm_cache_queries",
    "vllm:num_requests_kv_fetch_by_stage",
    "vllm:prompt_tokens_cached_by_source",
    "vllm:spec_decode_num_accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "vllm:spec_decode_num_draft_tokens",
    "vllm:spec_decode_num_drafts",
    "vllm:watermark_requests",
];

fn golden() -> Value {
    serde_json::from_str(include_str!("vllm-0.33.json")).expect("the golden file")
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
        let kind = match row.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        compare("type", kind.to_owned(), theirs["type"].as_str().unwrap().to_owned());
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
                let theirs: Vec<f64> =
                    golden["buckets"][index.as_u64().unwrap() as usize]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|bound| bound.as_f64().unwrap())
                        .collect();
                compare("buckets", format!("{ours:?}"), format!("{theirs:?}"));
            }
            // vLLM 0.33 no longer declares the buckets of a metric it removed.
            (Kind::Histogram(_), None) => compare("status", format!("{:?}", row.status), "Revived".to_owned()),
            (Kind::Counter | Kind::Gauge, _) => {}
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
            ("2.1".."2.8").contains(&group)
        })
        .map(|metric| metric["name"].as_str().unwrap())
        .collect();
    assert_eq!(missing, NOT_YET.iter().copied().collect());
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
        assert!(prefix.is_empty() || prefix == "vllm", "{exposed}: a colon is vLLM's alone");
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
            assert!(bounds[0] > 0.0 && bounds.is_sorted(), "{}", row.instrument);
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
