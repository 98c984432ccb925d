//! Queries that dashboards ask, in the form that works on what is exposed: counters with `_total`, buckets summed
//! by `le`. `$__rate_interval` is Grafana's; elsewhere write a range such as `5m`.

/// A query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// What it answers.
    pub goal: &'static str,
    /// The dialect whose names it uses.
    pub dialect: &'static str,
    /// PromQL.
    pub expression: &'static str,
}

/// The queries, by what they answer.
pub const QUERIES: &[Query] = &[
    Query {
        goal: "generated tokens per second",
        dialect: "vllm",
        expression: "sum(rate(vllm:generation_tokens_total[$__rate_interval])) by (model_name)",
    },
    Query {
        goal: "generated tokens per second",
        dialect: "sglang",
        expression: r#"sum(rate(sglang:realtime_tokens_total{mode="decode"}[$__rate_interval])) by (model_name)"#,
    },
    Query {
        goal: "prompt tokens per second",
        dialect: "vllm",
        expression: "sum(rate(vllm:prompt_tokens_total[$__rate_interval])) by (model_name)",
    },
    Query {
        goal: "prompt tokens per second",
        dialect: "sglang",
        expression: "sum(rate(sglang:prompt_tokens_total[$__rate_interval])) by (model_name)",
    },
    Query {
        goal: "prompt plus generated tokens per second",
        dialect: "vllm",
        expression: "sum(rate(vllm:prompt_tokens_total[$__rate_interval]) + rate(vllm:generation_tokens_total[$__rate_interval])) by (model_name)",
    },
    Query {
        goal: "prompt plus generated tokens per second",
        dialect: "sglang",
        expression: "sum(rate(sglang:prompt_tokens_total[$__rate_interval]) + rate(sglang:generation_tokens_total[$__rate_interval])) by (model_name)",
    },
    Query {
        goal: "finished requests per second",
        dialect: "vllm",
        expression: "sum(rate(vllm:request_success_total[$__rate_interval])) by (model_name)",
    },
    Query {
        goal: "finished requests per second",
        dialect: "sglang",
        expression: "sum(rate(sglang:num_requests_total[$__rate_interval])) by (model_name)",
    },
    Query {
        goal: "TTFT quantile",
        dialect: "vllm",
        expression: "histogram_quantile(0.95, sum(rate(vllm:time_to_first_token_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "TTFT quantile",
        dialect: "sglang",
        expression: "histogram_quantile(0.95, sum(rate(sglang:time_to_first_token_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "inter-token latency p95",
        dialect: "vllm",
        expression: "histogram_quantile(0.95, sum(rate(vllm:inter_token_latency_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "inter-token latency p95",
        dialect: "sglang",
        expression: "histogram_quantile(0.95, sum(rate(sglang:inter_token_latency_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "end-to-end latency p95",
        dialect: "vllm",
        expression: "histogram_quantile(0.95, sum(rate(vllm:e2e_request_latency_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "end-to-end latency p95",
        dialect: "sglang",
        expression: "histogram_quantile(0.95, sum(rate(sglang:e2e_request_latency_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "queue wait p95",
        dialect: "vllm",
        expression: "histogram_quantile(0.95, sum(rate(vllm:request_queue_time_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "queue wait p95",
        dialect: "sglang",
        expression: "histogram_quantile(0.95, sum(rate(sglang:queue_time_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "decode phase p95",
        dialect: "vllm",
        expression: "histogram_quantile(0.95, sum(rate(vllm:request_decode_time_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "decode phase p95",
        dialect: "sglang",
        expression: "histogram_quantile(0.95, sum(rate(sglang:request_time_per_output_token_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "prefill phase p95",
        dialect: "vllm",
        expression: "histogram_quantile(0.95, sum(rate(vllm:request_prefill_time_seconds_bucket[$__rate_interval])) by (le, model_name))",
    },
    Query {
        goal: "prefill phase p95",
        dialect: "sglang",
        expression: r#"histogram_quantile(0.95, sum(rate(sglang:per_stage_req_latency_seconds_bucket{stage="prefill_forward"}[$__rate_interval])) by (le, model_name))"#,
    },
    Query {
        goal: "prefix cache hit rate (tokens)",
        dialect: "vllm",
        expression: "sum(rate(vllm:prefix_cache_hits_total[$__rate_interval])) / sum(rate(vllm:prefix_cache_queries_total[$__rate_interval]))",
    },
    Query {
        goal: "prefix cache hit rate",
        dialect: "sglang",
        expression: r#"sum(rate(sglang:prefill_effective_tokens_total{mode=~".*_hit"}[$__rate_interval])) / sum(rate(sglang:prefill_effective_tokens_total[$__rate_interval]))"#,
    },
    Query {
        goal: "external (connector) hit rate",
        dialect: "vllm",
        expression: "sum(rate(vllm:external_prefix_cache_hits_total[$__rate_interval])) / sum(rate(vllm:external_prefix_cache_queries_total[$__rate_interval]))",
    },
    Query {
        goal: "external hit rate",
        dialect: "sglang",
        expression: r#"sum(rate(sglang:prefill_effective_tokens_total{mode="storage_hit"}[$__rate_interval])) / sum(rate(sglang:prefill_effective_tokens_total[$__rate_interval]))"#,
    },
    Query {
        goal: "share of prompt tokens from cache",
        dialect: "vllm",
        expression: "sum(rate(vllm:prompt_tokens_cached_total[$__rate_interval])) / sum(rate(vllm:prompt_tokens_total[$__rate_interval]))",
    },
    Query {
        goal: "share of prompt tokens from cache",
        dialect: "sglang",
        expression: "sum(rate(sglang:cached_tokens_total[$__rate_interval])) / sum(rate(sglang:prompt_tokens_total[$__rate_interval]))",
    },
    Query {
        goal: "multimodal processor cache hit rate",
        dialect: "vllm",
        expression: "sum(rate(vllm:mm_cache_hits_total[$__rate_interval])) / sum(rate(vllm:mm_cache_queries_total[$__rate_interval]))",
    },
    Query {
        goal: "running requests",
        dialect: "vllm",
        expression: "sum(vllm:num_requests_running) by (model_name)",
    },
    Query {
        goal: "running requests",
        dialect: "sglang",
        expression: "sum(sglang:num_running_reqs) by (model_name)",
    },
    Query {
        goal: "waiting requests",
        dialect: "vllm",
        expression: "sum(vllm:num_requests_waiting) by (model_name)",
    },
    Query {
        goal: "waiting requests",
        dialect: "sglang",
        expression: "sum(sglang:num_queue_reqs) by (model_name)",
    },
    Query {
        goal: "waiting requests by reason",
        dialect: "vllm",
        expression: "sum(vllm:num_requests_waiting_by_reason) by (model_name, reason)",
    },
    Query { goal: "KV usage", dialect: "vllm", expression: "avg(vllm:kv_cache_usage_perc) by (model_name)" },
    Query {
        goal: "KV/token usage",
        dialect: "sglang",
        expression: "avg(sglang:token_usage) by (model_name)",
    },
    Query {
        goal: "preemption rate",
        dialect: "vllm",
        expression: "sum(rate(vllm:num_preemptions_total[$__rate_interval])) by (model_name)",
    },
    Query {
        goal: "retraction rate",
        dialect: "sglang",
        expression: "sum(rate(sglang:num_retracted_requests_total[$__rate_interval])) by (model_name)",
    },
    Query {
        goal: "abort and error rate",
        dialect: "vllm",
        expression: r#"sum(rate(vllm:request_success_total{finished_reason=~"abort|error"}[$__rate_interval])) by (model_name, finished_reason)"#,
    },
    Query {
        goal: "abort rate",
        dialect: "sglang",
        expression: "sum(rate(sglang:num_aborted_requests_total[$__rate_interval])) by (model_name)",
    },
    Query {
        goal: "estimated TFLOP/s per GPU",
        dialect: "vllm",
        expression: "sum(rate(vllm:estimated_flops_per_gpu_total[$__rate_interval])) by (model_name, engine) / 1e12",
    },
    Query {
        goal: "estimated memory bandwidth GB/s per GPU",
        dialect: "vllm",
        expression: "(sum(rate(vllm:estimated_read_bytes_per_gpu_total[$__rate_interval])) by (model_name, engine) + sum(rate(vllm:estimated_write_bytes_per_gpu_total[$__rate_interval])) by (model_name, engine)) / 1e9",
    },
    Query {
        goal: "model FLOPs utilisation",
        dialect: "vllm",
        expression: "rate(vllm:estimated_flops_per_gpu_total[$__rate_interval]) / 9.89e14",
    },
];

#[cfg(test)]
mod tests {
    use super::QUERIES;
    use crate::catalogue;

    #[test]
    fn every_name_in_a_query_is_one_that_is_exposed() {
        let exposed: Vec<String> = catalogue::rows().map(|row| row.exposed_name()).collect();
        let mut found = 0;
        for query in QUERIES {
            let words =
                query.expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
            for word in words.filter(|word| word.contains(':')) {
                let series = ["_bucket", "_sum", "_count"];
                let family = series.iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(word);
                assert!(
                    exposed.iter().any(|name| name == family || name == word),
                    "{word} in {}",
                    query.expression
                );
                found += 1;
            }
        }
        assert!(found > 40, "{found} names");
    }
}
