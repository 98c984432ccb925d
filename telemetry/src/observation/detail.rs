//! What is measured only where somebody asked for it: the inside of a sampled step, and the phases of a start.

use std::time::{Duration, Instant};

/// Part of a step, in the order they follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPart {
    /// The scheduler chose the batch.
    Plan,
    /// The batch was laid out and handed to the device.
    Upload,
    /// The ops ran, by the device's own clock.
    Forward,
    /// The logits came back, or the best candidates that the device picked of them.
    ReadBack,
    /// Tokens were chosen.
    Sample,
}

impl StepPart {
    /// Name of the part's span.
    pub fn as_str(self) -> &'static str {
        match self {
            StepPart::Plan => "plan",
            StepPart::Upload => "upload",
            StepPart::Forward => "forward",
            StepPart::ReadBack => "read_back",
            StepPart::Sample => "sample",
        }
    }
}

/// One op of the forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct OpDetail {
    /// Place in the program: `layer.3.attention`.
    pub name: String,
    /// When it began.
    pub started: Instant,
    /// How long it took.
    pub duration: Duration,
    /// Floating-point operations it stands for.
    pub flops: u64,
    /// Bytes it has to read.
    pub bytes_read: u64,
    /// Bytes it has to write.
    pub bytes_written: u64,
}

/// The inside of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepDetail {
    /// The parts that were measured, with begin and end. All on one clock, so they may be compared.
    pub parts: Vec<(StepPart, Instant, Instant)>,
    /// The ops of the forward pass; empty if the device cannot time them.
    pub ops: Vec<OpDetail>,
    /// Requests in the batch.
    pub num_requests: u64,
    /// Tokens in the batch, which is rows of the forward pass.
    pub num_tokens: u64,
    /// Tokens that came out.
    pub num_generation_tokens: u64,
}

/// A phase of the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// `open_model`, `upload_weights` …
    pub name: &'static str,
    /// When it began.
    pub from: Instant,
    /// When it ended.
    pub to: Instant,
}

impl Phase {
    /// A phase that ends now.
    pub fn since(name: &'static str, from: Instant) -> Phase {
        Phase { name, from, to: Instant::now() }
    }
}
