//! The `limpid` binary.

use std::process::ExitCode;

use clap::Parser;
use limpid::cli::Cli;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[allow(clippy::print_stderr, reason = "the last word of a program that ends")]
            {
                eprintln!("limpid: {}", on_one_line(&error));
            }
            ExitCode::FAILURE
        }
    }
}

/// The chain of causes, without those that a text before them has told already, and never a backtrace:
/// these are errors of use.
fn on_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if line.is_empty() {
            line = cause;
        } else if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::on_one_line;

    #[test]
    fn a_cause_is_told_once() {
        let error =
            anyhow!("no such file").context("cannot open x: no such file").context("limpid cannot start");
        assert_eq!(on_one_line(&error), "limpid cannot start: cannot open x: no such file");
    }
}
