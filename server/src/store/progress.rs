//! Progress of a fetch on stderr: a bar on a terminal, one plain line elsewhere.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

/// Tells the user something that is no progress.
pub(super) fn say(text: &str) {
    // A failed write to stderr has nobody left to be told.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The progress of one file.
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Announces a fetch of `total` bytes, if that is known.
    pub(super) fn start(name: &str, from: &str, total: Option<u64>) -> Progress {
        if !std::io::stderr().is_terminal() {
            say(&format!("fetching {name} from {from}"));
            return Progress { bar: ProgressBar::hidden() };
        }
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        set_style(&bar, total.is_some());
        bar.set_message(format!("fetching {name}"));
        Progress { bar }
    }

    /// Bytes there so far.
    pub(super) fn set(&self, bytes: u64) {
        self.bar.set_position(bytes.min(self.bar.length().unwrap_or(u64::MAX)));
    }

    /// Leaves the terminal clean.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl hf_hub::api::Progress for &Progress {
    fn init(&mut self, size: usize, _file: &str) {
        self.bar.set_length(size as u64);
        self.bar.set_position(0);
        set_style(&self.bar, true);
    }

    fn update(&mut self, size: usize) {
        self.bar.inc(size as u64);
    }

    fn finish(&mut self) {}
}

fn set_style(bar: &ProgressBar, has_length: bool) {
    let template = match has_length {
        true => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        false => "{spinner} {msg} {bytes}",
    };
    bar.set_style(ProgressStyle::with_template(template).expect("the templates above are valid"));
}
