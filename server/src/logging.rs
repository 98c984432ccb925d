//! Log lines on stderr: what the program itself has to say, as text or as JSON. The same events go to OTLP if
//! that was asked for; see `limpid_telemetry::OtlpLogLayer`.

use std::io::IsTerminal;

use limpid_telemetry::OtlpLogLayer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

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

/// Added to it where each request is drawn anyway, as in the demo.
const NO_ACCESS_LINES: &str = ",limpid::access=off";

/// Starts logging, by default with a line for each request if `access_lines`. Does nothing if this process logs
/// already, as in tests.
pub fn init(format: LogFormat, access_lines: bool) {
    let default = format!("{DEFAULT_FILTER}{}", if access_lines { "" } else { NO_ACCESS_LINES });
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let _already_logging =
        tracing_subscriber::registry().with(filter).with(lines).with(OtlpLogLayer).try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_filters_have_no_bad_directive() {
        for more in ["", NO_ACCESS_LINES] {
            EnvFilter::builder().parse(format!("{DEFAULT_FILTER}{more}")).expect("valid directives");
        }
    }
}
