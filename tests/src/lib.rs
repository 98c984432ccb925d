//! The harness of the suites that span crates.
//!
//! Each module is one thing a suite needs: a server to talk to ([`server`]), a client to talk
//! with ([`client`]), a place where telemetry arrives ([`otlp_receiver`]), readers for what arrived
//! ([`spans`], [`otlp_metrics`], [`exposition`]), and the real programs at the far end ([`programs`]). Checks that belong to one suite live in that suite.
//!
//! Invariants: nothing here sleeps where an event can be awaited, nothing listens on anything but 127.0.0.1,
//! and a failure shows everything that is wrong at once ([`gaps`]).

pub mod client;
pub mod compliance;
pub mod environment;
pub mod exposition;
pub mod gaps;
pub mod otlp_metrics;
pub mod otlp_receiver;
pub mod programs;
pub mod server;
pub mod simulation;
pub mod spans;
