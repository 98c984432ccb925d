//! A toy text model and toy engines, so that the frontend and the API run without a model file.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use limpid_engine::chat_template::TemplateError;
use limpid_engine::device::DeviceInfo;
use limpid_engine::engine::{PauseMode, Reply, SleepLevel, SleepReply};
use limpid_engine::request::{
    EngineRequest, FinishReason, RequestEvent, RequestEventKind, RequestId, RequestOutput, SampledToken,
    StepFinished, StepOutput, StepTimes, TokenLogprobs,
};
use limpid_telemetry::{ModelIdentity, ModelTelemetry, Telemetry, TelemetryConfig, TelemetrySettings};
use serde_json::{Map, Value};
use tokio::task::JoinHandle;

use crate::api::{AppParts, router};
use crate::frontend::{AdmissionLimits, Engine, EngineParts, Frontend, StepSink, TextModel, channel};

/// A token is a byte; one more token ends the text.
pub(crate) struct ByteModel;

impl ByteModel {
    /// The end token.
    pub(crate) const END: u32 = 256;
}

const BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut index = 0;
    while index < 256 {
        bytes[index] = index as u8;
        index += 1;
    }
    bytes
};

impl TextModel for ByteModel {
    fn encode(&self, text: &str, _add_bos: bool, _parse_special: bool) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    fn token_bytes(&self, id: u32, special: bool) -> Option<&[u8]> {
        if id == Self::END {
            return special.then_some(b"<end>");
        }
        BYTES.get(id as usize).map(std::slice::from_ref)
    }

    fn vocabulary_size(&self) -> usize {
        257
    }

    fn end_token_ids(&self) -> &[u32] {
        &[Self::END]
    }

    fn render_chat(
        &self,
        messages: &Value,
        add_generation_prompt: bool,
        _extra: Option<&Map<String, Value>>,
    ) -> Option<Result<String, TemplateError>> {
        let messages = messages.as_array().expect("checked by the API");
        if messages[0]["role"] == "refused" {
            return Some(Err(TemplateError("roles must alternate".to_owned())));
        }
        let mut text: String = messages.iter().filter_map(|message| message["content"].as_str()).collect();
        if add_generation_prompt {
            text.push('>');
        }
        Some(Ok(text))
    }
}

/// Remembers what it was asked.
#[derive(Default)]
pub(crate) struct RecordingEngine {
    submitted: Mutex<Vec<EngineRequest>>,
    aborted: Mutex<Vec<RequestId>>,
    asleep: AtomicBool,
}

impl RecordingEngine {
    pub(crate) fn submitted(&self) -> Vec<EngineRequest> {
        self.submitted.lock().expect("no panic").clone()
    }

    pub(crate) fn aborted(&self) -> Vec<RequestId> {
        self.aborted.lock().expect("no panic").clone()
    }

    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(true, Ordering::Release);
    }
}

impl Engine for RecordingEngine {
    fn submit(&self, request: EngineRequest) -> bool {
        self.submitted.lock().expect("no panic").push(request);
        true
    }

    fn reset_prefix_cache(&self, preempt: bool, done: Reply) {
        done(preempt);
    }

    fn sleep(&self, level: SleepLevel, mode: PauseMode, done: SleepReply) {
        done(if mode == PauseMode::Wait {
            Err("the engine is falling asleep already".into())
        } else {
            Ok(Some(level))
        });
    }

    fn wake_up(&self, done: SleepReply) {
        self.asleep.store(false, Ordering::Release);
        done(Ok(None));
    }

    fn is_sleeping(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }

    fn abort(&self, id: RequestId) {
        self.aborted.lock().expect("no panic").push(id);
    }

    fn is_healthy(&self) -> bool {
        true
    }

    fn shutdown(&self) {}
}

/// Answers at once, by what the prompt says:
///
/// - `hang`: one token, then nothing until it is aborted;
/// - `fail`: an error before the first token; `break`: an error after it;
/// - `die`: the engine ends;
/// - anything else: the prompt again, one token a step, then the end token.
pub(crate) struct ScriptedEngine {
    steps: Mutex<Option<StepSink>>,
    /// Aborts that were asked for.
    pub(crate) aborts: tokio::sync::watch::Sender<usize>,
    /// Ids that were handed over.
    pub(crate) submitted: Mutex<Vec<RequestId>>,
    asleep: AtomicBool,
}

impl ScriptedEngine {
    pub(crate) fn new(steps: StepSink) -> ScriptedEngine {
        ScriptedEngine {
            steps: Mutex::new(Some(steps)),
            aborts: tokio::sync::watch::Sender::new(0),
            submitted: Mutex::default(),
            asleep: AtomicBool::new(false),
        }
    }

    fn step(
        &self,
        id: RequestId,
        events: Vec<RequestEvent>,
        token: Option<u32>,
        finish: Option<FinishReason>,
    ) {
        let now = Instant::now();
        let logprobs = Some(TokenLogprobs { chosen: f32::NEG_INFINITY, top: vec![(u32::from(b'?'), -0.5)] });
        let output = RequestOutput {
            id,
            events,
            tokens: token.into_iter().map(|id| SampledToken { id, logprobs: logprobs.clone() }).collect(),
            finish,
            times: StepTimes::default(),
            error: (finish == Some(FinishReason::Error)).then(|| "the device failed: scripted".into()),
        };
        let step = StepFinished {
            started: now,
            finished: now,
            scheduler: Default::default(),
            times: StepTimes::default(),
            num_prompt_tokens: 0,
            num_generation_tokens: u64::from(token.is_some()),
            work: Default::default(),
            apply: Default::default(),
        };
        if let Some(steps) = &*self.steps.lock().expect("no panic") {
            steps.step(StepOutput { step, outputs: vec![output], evicted: Vec::new(), trace: None });
        }
    }
}

impl Engine for ScriptedEngine {
    fn submit(&self, request: EngineRequest) -> bool {
        self.submitted.lock().expect("no panic").push(request.id);
        let now = Instant::now();
        let at = |kind| RequestEvent { at: now, kind };
        let mut events =
            vec![at(RequestEventKind::Queued), at(RequestEventKind::Scheduled { num_cached_tokens: 1 })];
        let prompt: Vec<u8> = request.prompt.iter().map(|id| *id as u8).collect();
        let says = |word: &[u8]| prompt.windows(word.len()).any(|window| window == word);
        if says(b"die") {
            self.steps.lock().expect("no panic").take();
        } else if says(b"fail") {
            self.step(request.id, events, None, Some(FinishReason::Error));
        } else if says(b"break") {
            self.step(request.id, events, Some(u32::from(b'a')), None);
            self.step(request.id, Vec::new(), None, Some(FinishReason::Error));
        } else if says(b"hang") {
            self.step(request.id, events, Some(u32::from(b'a')), None);
        } else {
            let answer = request.prompt.iter().copied().chain([ByteModel::END]);
            for (index, token) in answer.enumerate() {
                let finish = if request.params.stop_token_ids.contains(&token) {
                    Some(FinishReason::Stop)
                } else if index + 1 == request.params.max_tokens {
                    Some(FinishReason::Length)
                } else {
                    None
                };
                self.step(request.id, std::mem::take(&mut events), Some(token), finish);
                if finish.is_some() {
                    break;
                }
            }
        }
        true
    }

    /// Its cache is always in use.
    fn reset_prefix_cache(&self, preempt: bool, done: Reply) {
        done(preempt);
    }

    fn sleep(&self, level: SleepLevel, mode: PauseMode, done: SleepReply) {
        done(if mode == PauseMode::Wait {
            Err("the engine is falling asleep already".into())
        } else {
            self.asleep.store(true, Ordering::Release);
            Ok(Some(level))
        });
    }

    fn wake_up(&self, done: SleepReply) {
        self.asleep.store(false, Ordering::Release);
        done(Ok(None));
    }

    fn is_sleeping(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }

    fn abort(&self, id: RequestId) {
        self.step(id, Vec::new(), None, Some(FinishReason::Abort));
        self.aborts.send_modify(|aborts| *aborts += 1);
    }

    fn is_healthy(&self) -> bool {
        self.steps.lock().expect("no panic").is_some()
    }

    fn shutdown(&self) {
        self.steps.lock().expect("no panic").take();
    }
}

/// Context length of the toy model.
pub(crate) const MAX_MODEL_LEN: usize = 64;

/// Tokens in a block of the toy engines' prefix caches.
pub(crate) const BLOCK_SIZE: usize = 4;

/// How long the toy engines may make no step.
pub(crate) const ITERATION_TIMEOUT: Duration = Duration::from_millis(20);

/// Requests that the toy server lets in at once.
pub(crate) const MAX_OPEN: usize = 6;

/// The API over a scripted engine.
pub(crate) struct ToyApi {
    pub(crate) router: Router,
    pub(crate) engine: Arc<ScriptedEngine>,
    /// All of them, that one first.
    pub(crate) engines: Vec<Arc<ScriptedEngine>>,
    pub(crate) frontend: Frontend,
    pub(crate) frontend_tasks: Vec<JoinHandle<()>>,
    pub(crate) telemetry: Telemetry,
}

impl ToyApi {
    pub(crate) fn new(api_keys: &[&str]) -> ToyApi {
        ToyApi::of_engines(1, api_keys)
    }

    pub(crate) fn of_engines(num_engines: u32, api_keys: &[&str]) -> ToyApi {
        let telemetry = telemetry().0;
        let mut engines = Vec::new();
        let parts = |engine| {
            let (steps, events) = channel();
            engines.push(Arc::new(ScriptedEngine::new(steps)));
            let telemetry = telemetry.model(identity(engine));
            EngineParts { engine: Arc::clone(&engines[engine as usize]) as _, events, telemetry }
        };
        let parts = (0..num_engines).map(parts).collect();
        let limits = AdmissionLimits { max_num_queued_reqs: Some(MAX_OPEN), max_num_queued_tokens: None };
        let (frontend, frontend_tasks) =
            Frontend::start(parts, &(Arc::new(ByteModel) as _), limits, Some(BLOCK_SIZE), ITERATION_TIMEOUT);
        let router = router(AppParts {
            frontend: frontend.clone(),
            telemetry: telemetry.clone(),
            text: Arc::new(ByteModel),
            served_names: vec!["toy".to_owned(), "org/toy".to_owned()],
            max_model_len: MAX_MODEL_LEN,
            has_priorities: false,
            api_keys: api_keys.iter().map(|key| (*key).to_owned()).collect(),
            device: DeviceInfo {
                kind: "cpu",
                name: "toy".to_owned(),
                device_type: "Cpu".to_owned(),
                backend: "rust".to_owned(),
                driver: String::new(),
            },
            address: None,
        });
        ToyApi { router, engine: Arc::clone(&engines[0]), engines, frontend, frontend_tasks, telemetry }
    }
}

/// Telemetry of one engine, without exporters.
pub(crate) fn telemetry() -> (Telemetry, ModelTelemetry) {
    let settings = TelemetrySettings { service_version: "test", ..TelemetrySettings::default() };
    let config = TelemetryConfig::resolve(settings, &|_| None).expect("defaults are valid");
    let telemetry = Telemetry::start(config, Vec::new()).expect("nothing to export");
    let model = telemetry.model(identity(0));
    (telemetry, model)
}

fn identity(engine: u32) -> ModelIdentity {
    ModelIdentity {
        model_name: "toy".to_owned(),
        engine,
        max_model_len: MAX_MODEL_LEN,
        ..ModelIdentity::default()
    }
}
