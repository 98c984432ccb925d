//! Log lines on stderr: what the program itself has to say, as text or as JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text an event.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Without `RUST_LOG`: our own events from info on, of the crates below us only what went wrong.
const DEFAULT_FILTER: &str = "warn,limpid=info,limpid_engine=info,limpid_telemetry=info,naga=error,\
                              wgpu_core=error,wgpu_hal=error,h2=error,hyper=error,reqwest=error,tonic=error,\
                              tower=error";

/// Starts logging. Does nothing if this process logs already, as in tests.
pub fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let _already_logging = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_filter_has_no_bad_directive() {
        EnvFilter::builder().parse(DEFAULT_FILTER).expect("valid directives");
    }
}
