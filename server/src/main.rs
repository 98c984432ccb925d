//! The `limpid` binary.

use std::process::ExitCode;

use clap::Parser;
use limpid::cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The whole chain of causes on one line, and never a backtrace: these are errors of use.
            #[allow(clippy::print_stderr, reason = "the last word of a program that ends")]
            {
                eprintln!("limpid: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}
