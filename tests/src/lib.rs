//! Harness and suites that span crates.
