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

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, TcpListener};

use limpid_telemetry::DetailedTraces;

use crate::local::TargetArgs;
use crate::logging::{self, LogFormat};
use crate::runtime;
use crate::serve::{ServeOptions, Server};
use collector::collector;
use session::Session;
use waterfall::Canvas;

/// The port that `limpid serve` has by default.
const USUAL_PORT: u16 = 8000;

/// Arguments of `limpid demo`.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Port to serve on [default: 8000 if it is free, else any]
    #[arg(long)]
    port: Option<u16>,
    /// Exit after the first round of questions instead of serving on
    #[arg(long, visible_alias = "no-serve")]
    once: bool,
}

/// `limpid demo`: runs until Ctrl-C, or with `--once` to the end of its first round.
///
/// # Errors
/// The model cannot be fetched, the server does not start, or a question gets no answer or no trace.
pub fn run(args: DemoArgs) -> anyhow::Result<()> {
    logging::init(LogFormat::default(), false);
    let port = args.port.unwrap_or_else(|| if args.once { 0 } else { free_port(USUAL_PORT) });
    let options = args.target.serve_options(args.target.model_path()?, port, vec![DetailedTraces::All]);
    runtime::run(demonstrate(options, args.once))
}

async fn demonstrate(options: ServeOptions, once: bool) -> anyhow::Result<()> {
    let (processor, traces) = collector();
    let server = Server::start(options, vec![Box::new(processor)]).await?;
    let base = format!("http://{}", server.addr);
    let canvas = stdout_canvas(std::env::var_os("NO_COLOR"));
    let mut session = Session { base: &base, traces, out: std::io::stdout(), canvas };
    let show = async {
        session.first_round().await?;
        let program = std::env::args().next().unwrap_or_else(|| "limpid".to_owned());
        session.hints(&program, once)?;
        match once {
            true => Ok(()),
            false => session.keep_drawing().await,
        }
    };
    let result = tokio::select! {
        result = show => result,
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    server.shutdown().await;
    result
}

/// `wanted` if nobody listens on it, else 0, which stands for any.
fn free_port(wanted: u16) -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).map_or(0, |_| wanted)
}

/// How to draw on this process's stdout: with its width and colours on a terminal, 100 plain columns
/// elsewhere.
fn stdout_canvas(no_color: Option<OsString>) -> Canvas {
    let terminal = console::Term::stdout();
    let is_terminal = std::io::stdout().is_terminal();
    let width = terminal.size_checked().filter(|_| is_terminal).map_or(100, |(_, columns)| columns.into());
    let is_colorless = no_color.is_some_and(|value| !value.is_empty());
    Canvas { width, color: is_terminal && !is_colorless && terminal.features().colors_supported() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_gives_way_to_any() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert_eq!(free_port(port), 0);
        drop(taken);
        assert_eq!(free_port(port), port);
    }
}
