//! The inference engine: a model file becomes a program of ops, a scheduler decides what each step
//! computes, a device computes it.
//!
//! The crate knows no HTTP, no JSON API, no environment variables and no OpenTelemetry SDK. It reports
//! through the plain types of `limpid_telemetry::observation`. Inside, [`scheduler`] and [`kv_cache`]
//! know no device, and [`device`] knows no request.

pub mod cache_layout;
pub mod chat_template;
pub mod config;
pub mod detokenizer;
pub mod device;
pub mod engine;
pub mod gguf;
pub mod hugging_face;
pub mod kernels;
pub mod kv_cache;
pub mod model;
pub mod program;
pub mod request;
pub mod sampler;
pub mod scheduler;
pub mod tensor_type;
pub mod test_support;
pub mod tokenizer;
