//! Harness and suites that span crates.

pub mod simulation;
