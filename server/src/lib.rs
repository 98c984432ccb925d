//! The server: command line, OpenAI API, and the wiring of engine and telemetry.
//!
//! It is the only crate that knows HTTP, JSON and the environment, and the only one that starts the
//! OpenTelemetry SDK.

pub mod bench;
pub mod client;
pub mod demo;
mod local;
pub mod store;
