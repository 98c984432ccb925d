//! The server: command line, OpenAI API, and the wiring of engine and telemetry.
//!
//! It is the only crate that knows HTTP, JSON and the environment, and the only one that starts the
//! OpenTelemetry SDK.

pub mod api;
pub mod bench;
pub mod cli;
pub mod client;
pub mod demo;
pub mod frontend;
pub mod inspect;
mod local;
pub mod logging;
mod runtime;
pub mod serve;
pub mod store;
#[cfg(test)]
mod testing;
