//! Every span name, attribute key and event that limpid writes, declared once.
//!
//! The keys are those of the OpenTelemetry semantic conventions (HTTP, and GenAI v0.1.0) where they have one,
//! else vLLM's (`gen_ai.latency.*`), else ours (`limpid.*`). The conventions' own crate marks the GenAI keys
//! as moved, so they stand here. Tests compare emitted spans with [`SPANS`]; the reference page is made of it.

mod reference;

pub use reference::reference_markdown;

/// `gen_ai.provider.name`: who serves the model.
pub const PROVIDER: &str = "limpid";

/// `error.type` where nothing better is known.
pub const ERROR_OTHER: &str = "_OTHER";

/// Attribute keys.
#[allow(missing_docs)]
pub mod key {
    pub const HTTP_REQUEST_METHOD: &str = "http.request.method";
    pub const HTTP_ROUTE: &str = "http.route";
    pub const HTTP_RESPONSE_STATUS_CODE: &str = "http.response.status_code";
    pub const URL_PATH: &str = "url.path";
    pub const URL_SCHEME: &str = "url.scheme";
    pub const PROTOCOL_VERSION: &str = "network.protocol.version";
    pub const SERVER_ADDRESS: &str = "server.address";
    pub const SERVER_PORT: &str = "server.port";
    pub const CLIENT_ADDRESS: &str = "client.address";
    pub const USER_AGENT: &str = "user_agent.original";
    pub const ERROR_TYPE: &str = "error.type";

    pub const OPERATION_NAME: &str = "gen_ai.operation.name";
    pub const PROVIDER_NAME: &str = "gen_ai.provider.name";
    pub const REQUEST_MODEL: &str = "gen_ai.request.model";
    pub const REQUEST_STREAM: &str = "gen_ai.request.stream";
    pub const REQUEST_SEED: &str = "gen_ai.request.seed";
    pub const REQUEST_TOP_K: &str = "gen_ai.request.top_k";
    pub const REQUEST_CHOICE_COUNT: &str = "gen_ai.request.choice.count";
    pub const REQUEST_MAX_TOKENS: &str = "gen_ai.request.max_tokens";
    pub const REQUEST_TEMPERATURE: &str = "gen_ai.request.temperature";
    pub const REQUEST_TOP_P: &str = "gen_ai.request.top_p";
    pub const REQUEST_FREQUENCY_PENALTY: &str = "gen_ai.request.frequency_penalty";
    pub const REQUEST_PRESENCE_PENALTY: &str = "gen_ai.request.presence_penalty";
    pub const REQUEST_STOP_SEQUENCES: &str = "gen_ai.request.stop_sequences";
    pub const RESPONSE_ID: &str = "gen_ai.response.id";
    pub const RESPONSE_MODEL: &str = "gen_ai.response.model";
    pub const RESPONSE_FINISH_REASONS: &str = "gen_ai.response.finish_reasons";
    pub const RESPONSE_TIME_TO_FIRST_CHUNK: &str = "gen_ai.response.time_to_first_chunk";
    pub const USAGE_INPUT_TOKENS: &str = "gen_ai.usage.input_tokens";
    pub const USAGE_OUTPUT_TOKENS: &str = "gen_ai.usage.output_tokens";
    pub const USAGE_CACHE_READ: &str = "gen_ai.usage.cache_read.input_tokens";

    pub const INPUT_MESSAGES: &str = "gen_ai.input.messages";
    pub const OUTPUT_MESSAGES: &str = "gen_ai.output.messages";

    pub const REQUEST_ID: &str = "gen_ai.request.id";
    pub const LATENCY_QUEUE: &str = "gen_ai.latency.time_in_queue";
    pub const LATENCY_FIRST_TOKEN: &str = "gen_ai.latency.time_to_first_token";
    pub const LATENCY_E2E: &str = "gen_ai.latency.e2e";
    pub const LATENCY_PREFILL: &str = "gen_ai.latency.time_in_model_prefill";
    pub const LATENCY_DECODE: &str = "gen_ai.latency.time_in_model_decode";
    pub const LATENCY_INFERENCE: &str = "gen_ai.latency.time_in_model_inference";
    pub const LATENCY_SCHEDULER: &str = "gen_ai.latency.time_in_scheduler";
    pub const LATENCY_FORWARD: &str = "gen_ai.latency.time_in_model_forward";
    pub const LATENCY_EXECUTE: &str = "gen_ai.latency.time_in_model_execute";

    pub const VLLM_PROMPT_TOKENS: &str = "gen_ai.usage.prompt_tokens";
    pub const VLLM_COMPLETION_TOKENS: &str = "gen_ai.usage.completion_tokens";
    pub const VLLM_SYSTEM: &str = "gen_ai.system";
    pub const VLLM_REQUEST_N: &str = "gen_ai.request.n";

    pub const REQUEST_MIN_P: &str = "limpid.request.min_p";
    pub const REQUEST_REPETITION_PENALTY: &str = "limpid.request.repetition_penalty";
    pub const NUM_PREEMPTIONS: &str = "limpid.request.num_preemptions";
    pub const CACHED_TOKENS: &str = "limpid.prefill.cached_tokens";
    pub const CHUNK_TOKENS: &str = "limpid.prefill.chunk_tokens";
    pub const ENGINE_INDEX: &str = "limpid.engine.index";
    pub const STEP_REQUESTS: &str = "limpid.step.num_requests";
    pub const STEP_TOKENS: &str = "limpid.step.num_tokens";
    pub const STEP_GENERATION_TOKENS: &str = "limpid.step.num_generation_tokens";
    pub const FLOPS: &str = "limpid.flops";
    pub const BYTES_READ: &str = "limpid.bytes_read";
    pub const BYTES_WRITTEN: &str = "limpid.bytes_written";
    pub const FLOPS_PER_SECOND: &str = "limpid.flops_per_second";
    pub const BYTES_PER_SECOND: &str = "limpid.bytes_per_second";
    pub const RESULT: &str = "result";
    pub const MODEL_NAME: &str = "model_name";
    pub const ENGINE: &str = "engine";
    pub const PART: &str = "part";
    pub const SIGNAL: &str = "signal";
}

/// Names of spans.
#[allow(missing_docs)]
pub mod span {
    pub const QUEUE: &str = "queue";
    pub const PREFILL: &str = "prefill";
    pub const DECODE: &str = "decode";
    pub const PREEMPTED: &str = "preempted";
    pub const STEP: &str = "engine.step";
    pub const STARTUP: &str = "startup";
}

/// Names of span events.
#[allow(missing_docs)]
pub mod event {
    pub const CHUNK: &str = "chunk";
    pub const PREEMPTED: &str = "preempted";
    pub const RESUMED: &str = "resumed";
}

/// A declared span.
#[derive(Clone, Copy, Debug)]
pub struct SpanSpec {
    /// Its name, with `{…}` for the parts that vary.
    pub name: &'static str,
    /// `SERVER` or `INTERNAL`.
    pub kind: &'static str,
    /// What it covers.
    pub covers: &'static str,
    /// Keys it may carry, with when each is there.
    pub attributes: &'static [(&'static str, &'static str)],
    /// Events it may carry, with the keys of each.
    pub events: &'static [(&'static str, &'static [&'static str])],
}

impl SpanSpec {
    /// The declaration of a span with this name, kind (`SERVER` …) and these attribute keys. Names that vary
    /// are told apart by what they carry.
    pub fn of(name: &str, kind: &str, keys: &[&str]) -> Option<&'static SpanSpec> {
        let declared = |name: &str| SPANS.iter().find(|spec| spec.name == name);
        if kind == "SERVER" {
            declared("{method} {route}")
        } else if keys.contains(&key::OPERATION_NAME) {
            declared("{operation} {model}")
        } else if let Some(spec) = declared(name) {
            Some(spec)
        } else if keys.contains(&key::FLOPS) {
            declared("{op}")
        } else {
            None
        }
    }
}

/// An integer attribute; what does not fit is as good as endless.
pub(crate) fn integer(key: &'static str, value: u64) -> opentelemetry::KeyValue {
    opentelemetry::KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}

const WORK: &[(&str, &str)] = &[
    (key::FLOPS, "always"),
    (key::BYTES_READ, "always"),
    (key::BYTES_WRITTEN, "always"),
    (key::FLOPS_PER_SECOND, "the device's clock saw time pass"),
    (key::BYTES_PER_SECOND, "the device's clock saw time pass; read and written together"),
];

const WORK_IF_TIMED: &[(&str, &str)] = &[
    (key::FLOPS, "the device can time ops; sum over them"),
    (key::BYTES_READ, "the device can time ops; sum over them"),
    (key::BYTES_WRITTEN, "the device can time ops; sum over them"),
    (key::FLOPS_PER_SECOND, "the device can time ops"),
    (key::BYTES_PER_SECOND, "the device can time ops; read and written together"),
];

const fn part(name: &'static str, covers: &'static str, attributes: &'static [(&str, &str)]) -> SpanSpec {
    SpanSpec { name, kind: "INTERNAL", covers, attributes, events: &[] }
}

const TIMELINE_EVENTS: &[(&str, &[&str])] =
    &[(event::CHUNK, &[key::CHUNK_TOKENS]), (event::PREEMPTED, &[]), (event::RESUMED, &[])];

/// All spans.
pub const SPANS: &[SpanSpec] = &[
    SpanSpec {
        name: "{method} {route}",
        kind: "SERVER",
        covers: "one HTTP request, from its head to the response's last byte",
        attributes: &[
            (key::HTTP_REQUEST_METHOD, "always; _OTHER for a method HTTP does not define"),
            (key::URL_PATH, "always, cut at 512 bytes"),
            (key::URL_SCHEME, "always"),
            (key::PROTOCOL_VERSION, "always"),
            (key::HTTP_ROUTE, "a route matched"),
            (key::HTTP_RESPONSE_STATUS_CODE, "a response was sent"),
            (key::SERVER_ADDRESS, "known"),
            (key::SERVER_PORT, "known"),
            (key::CLIENT_ADDRESS, "known"),
            (key::USER_AGENT, "sent, cut at 512 bytes"),
            (key::ERROR_TYPE, "status 5xx, or the engine failed after the answer had begun"),
        ],
        events: &[],
    },
    SpanSpec {
        name: "{operation} {model}",
        kind: "INTERNAL",
        covers: "one generation request, from its arrival to its last token or its end",
        attributes: &[
            (key::OPERATION_NAME, "always"),
            (key::PROVIDER_NAME, "always"),
            (key::REQUEST_MODEL, "always"),
            (key::RESPONSE_MODEL, "always"),
            (key::RESPONSE_ID, "always"),
            (key::REQUEST_ID, "always"),
            (
                key::RESPONSE_FINISH_REASONS,
                "always; abort if the client went away, error if the engine failed",
            ),
            (key::USAGE_INPUT_TOKENS, "always, cached ones included"),
            (key::USAGE_OUTPUT_TOKENS, "always"),
            (key::USAGE_CACHE_READ, "once scheduled"),
            (key::REQUEST_STREAM, "streaming"),
            (key::RESPONSE_TIME_TO_FIRST_CHUNK, "streaming, once the first token came"),
            (key::REQUEST_MAX_TOKENS, "given"),
            (key::REQUEST_TEMPERATURE, "given, 0 included"),
            (key::REQUEST_TOP_P, "given"),
            (key::REQUEST_TOP_K, "given"),
            (key::REQUEST_MIN_P, "given"),
            (key::REQUEST_SEED, "given"),
            (key::REQUEST_FREQUENCY_PENALTY, "given"),
            (key::REQUEST_PRESENCE_PENALTY, "given"),
            (key::REQUEST_REPETITION_PENALTY, "given"),
            (key::REQUEST_STOP_SEQUENCES, "given"),
            (key::REQUEST_CHOICE_COUNT, "n given and not 1"),
            (key::ENGINE_INDEX, "always"),
            (key::NUM_PREEMPTIONS, "once scheduled"),
            (key::LATENCY_E2E, "always"),
            (key::LATENCY_QUEUE, "once scheduled"),
            (key::LATENCY_SCHEDULER, "once scheduled"),
            (key::LATENCY_FIRST_TOKEN, "once the first token came"),
            (key::LATENCY_PREFILL, "once the first token came"),
            (key::LATENCY_DECODE, "once the first token came"),
            (key::LATENCY_INFERENCE, "once the first token came"),
            (key::LATENCY_FORWARD, "--collect-detailed-traces model|all, once scheduled, device can measure"),
            (key::LATENCY_EXECUTE, "--collect-detailed-traces worker|all, once scheduled"),
            (key::ERROR_TYPE, "the engine failed"),
            (
                key::INPUT_MESSAGES,
                "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT on; JSON, cut at 256 KiB of text; token ids as \
                 their text, control tokens included",
            ),
            (
                key::OUTPUT_MESSAGES,
                "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT on; JSON, cut at 256 KiB of text",
            ),
            (key::VLLM_PROMPT_TOKENS, "--vllm-compatible-attributes"),
            (key::VLLM_COMPLETION_TOKENS, "--vllm-compatible-attributes"),
            (key::VLLM_SYSTEM, "--vllm-compatible-attributes"),
            (key::VLLM_REQUEST_N, "--vllm-compatible-attributes"),
        ],
        events: &[],
    },
    SpanSpec {
        name: span::QUEUE,
        kind: "INTERNAL",
        covers: "QUEUED to first SCHEDULED, or to the end of a request that never was",
        attributes: &[],
        events: &[],
    },
    SpanSpec {
        name: span::PREFILL,
        kind: "INTERNAL",
        covers: "first SCHEDULED to first NEW_TOKENS, or to the end of a request that got none",
        attributes: &[(key::CACHED_TOKENS, "always")],
        events: TIMELINE_EVENTS,
    },
    SpanSpec {
        name: span::DECODE,
        kind: "INTERNAL",
        covers: "first to last NEW_TOKENS, and to a later preemption of a request that ended in one",
        attributes: &[],
        events: TIMELINE_EVENTS,
    },
    SpanSpec {
        name: span::PREEMPTED,
        kind: "INTERNAL",
        covers: "PREEMPTED to the SCHEDULED after it, or to the request's end",
        attributes: &[],
        events: &[],
    },
    part(
        span::STEP,
        "one sampled engine step, linked to the model spans of its batch; --collect-detailed-traces all and \
         --detailed-trace-step-ratio",
        &[
            (key::ENGINE_INDEX, "always"),
            (key::STEP_REQUESTS, "always"),
            (key::STEP_TOKENS, "always; rows of the forward pass"),
            (key::STEP_GENERATION_TOKENS, "always"),
        ],
    ),
    part("plan", "the scheduler choosing the batch", &[]),
    part("upload", "laying the batch out and handing it to the device", &[]),
    part(
        "forward",
        "the forward pass by the device's own clock; on a GPU it is placed so that it ends when the host saw its end",
        WORK_IF_TIMED,
    ),
    part("{op}", "one op of the program, named by its place in it", WORK),
    part(
        "read_back",
        "from the forward pass to its logits on the host, or to the best candidates that the device picked of them",
        &[],
    ),
    part("sample", "choosing the tokens", &[]),
    part(span::STARTUP, "the start of the process, from reading the model to an engine that is ready", &[]),
    part("open_model", "mapping the model file and checking its tensors", &[]),
    part("load_tokenizer", "building the tokenizer from the file", &[]),
    part("build_program", "turning the file into the forward pass, and compiling the chat template", &[]),
    part("find_device", "looking for adapters", &[]),
    part("upload_weights", "allocating memory and putting the weights into the device's layout", &[]),
    part("build_pipelines", "compiling shaders; a GPU's only", &[]),
    part("warm_up", "running everything once; a GPU's only", &[]),
];
