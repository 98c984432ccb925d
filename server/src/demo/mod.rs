//! `limpid demo`: the first minute of a newcomer.
//!
//! Starts the server in this process, asks it a few questions over real HTTP, streams the answers, draws each
//! request's trace and the main metrics in the terminal, and goes on serving and drawing. The spans are the
//! ones that OTLP exports; they come through a span processor of the demo's own.

mod collector;
mod conversation;
#[cfg(test)]
mod fixtures;
mod metrics;
mod session;
mod waterfall;

use std::io::IsTerminal;

use waterfall::Canvas;

/// Arguments of `limpid demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    /// The model: a path, a name or a source; the default model if absent
    #[arg(long)]
    pub model: Option<String>,
    /// Exit after the first round of questions instead of serving on
    #[arg(long, visible_alias = "no-serve")]
    pub once: bool,
}

/// How to draw on this process's stdout: with its width and colours on a terminal, 100 plain columns
/// elsewhere. `NO_COLOR` is honoured.
fn stdout_canvas(no_color: Option<std::ffi::OsString>) -> Canvas {
    let is_terminal = std::io::stdout().is_terminal();
    let width = match console::Term::stdout().size_checked() {
        Some((_, columns)) if is_terminal => usize::from(columns),
        _ => 100,
    };
    Canvas { width, color: is_terminal && no_color.is_none_or(|value| value.is_empty()) }
}
