//! The demo's own requests: several chats at once, whose answers appear line by line as they come.

use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::client::{Client, ClientError};

/// One chat request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    /// What the user says.
    pub(super) text: &'static str,
    /// Most tokens of the answer.
    pub(super) max_tokens: u32,
    /// Go away after this many pieces of the answer.
    pub(super) leave_after: Option<usize>,
}

/// What the demo asks, all at once. The last one is abandoned, to show what an abort looks like.
pub(super) const QUESTIONS: [Question; 4] = [
    Question { text: "Why is the sky blue? Answer in two sentences.", max_tokens: 64, leave_after: None },
    Question { text: "Write a haiku about a lighthouse.", max_tokens: 48, leave_after: None },
    Question { text: "What is a trace, and what is a span?", max_tokens: 64, leave_after: None },
    Question {
        text: "Write a long story about a lighthouse keeper.",
        max_tokens: 512,
        leave_after: Some(16),
    },
];

/// Something to print for the question with this number.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Index of the question.
    pub(super) number: usize,
    /// One line, no longer than asked for, without control characters.
    pub(super) text: String,
}

/// Asks a question and sends the answer's lines, at most `width` columns each. Returns the question's number
/// and the trace that the server recorded it in.
pub(super) async fn ask(
    client: Client,
    model: String,
    number: usize,
    question: Question,
    width: usize,
    lines: mpsc::Sender<Line>,
) -> Result<(usize, Option<String>), ClientError> {
    let body = json!({
        "model": model,
        "messages": [{ "role": "user", "content": question.text }],
        "max_tokens": question.max_tokens,
        "temperature": 0,
        "stream": true,
    });
    // Nobody listening means the demo is being stopped; then the lines have no use.
    let say = async |text| drop(lines.send(Line { number, text }).await);
    let mut wrap = Wrap::new(width);
    let mut stream = client.post_stream("/v1/chat/completions", &body).await?;
    let trace_id = stream.trace_id.clone();
    let mut pieces = 0;
    while let Some(chunk) = stream.next_json::<Value>().await? {
        let Some(piece) = chunk["choices"][0]["delta"]["content"].as_str().filter(|piece| !piece.is_empty())
        else {
            continue;
        };
        for line in wrap.push(piece) {
            say(line).await;
        }
        pieces += 1;
        if question.leave_after.is_some_and(|limit| pieces >= limit) {
            drop(stream);
            if let Some(line) = wrap.finish() {
                say(line).await;
            }
            say("(the client closes the connection)".to_owned()).await;
            return Ok((number, trace_id));
        }
    }
    if let Some(line) = wrap.finish() {
        say(line).await;
    }
    Ok((number, trace_id))
}

/// Breaks text that comes in pieces into lines, at spaces where there are any.
struct Wrap {
    width: usize,
    line: String,
}

impl Wrap {
    fn new(width: usize) -> Wrap {
        Wrap { width: width.max(1), line: String::new() }
    }

    /// Takes a piece in and returns the lines that it completes; empty lines are left out.
    fn push(&mut self, piece: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for char in piece.chars() {
            if char == '\n' {
                lines.extend(self.finish());
                continue;
            }
            self.line.push(if char.is_control() { ' ' } else { char });
            if console::measure_text_width(&self.line) > self.width {
                let at = self.line.rfind(' ').filter(|at| !self.line[..*at].trim().is_empty());
                let rest = match at {
                    Some(at) => self.line.split_off(at),
                    None => self.line.pop().map(String::from).unwrap_or_default(),
                };
                lines.extend(self.finish());
                self.line = rest.trim_start().to_owned();
            }
        }
        lines
    }

    fn finish(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        let line = line.trim_end();
        (!line.is_empty()).then(|| line.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wrapped(pieces: &[&str], width: usize) -> Vec<String> {
        let mut wrap = Wrap::new(width);
        let mut lines: Vec<String> = pieces.iter().flat_map(|piece| wrap.push(piece)).collect();
        lines.extend(wrap.finish());
        lines
    }

    #[test]
    fn lines_break_at_spaces_and_newlines_and_in_long_words() {
        let lines = wrapped(&["The li", "ght is on.\n\nAnd of", "f. Incomprehensible"], 10);
        assert_eq!(lines, ["The light", "is on.", "And off.", "Incomprehe", "nsible"]);
    }

    #[test]
    fn control_characters_become_spaces() {
        assert_eq!(wrapped(&["a\u{1b}[31mb"], 20), ["a [31mb"]);
    }

    proptest! {
        #[test]
        fn no_line_is_too_wide_and_no_letter_is_lost(text in "[a-zäß語 \n]{0,200}", width in 2usize..30) {
            let lines = wrapped(&[&text], width);
            prop_assert!(lines.iter().all(|line| console::measure_text_width(line) <= width));
            let letters = |text: &str| text.chars().filter(|char| !char.is_whitespace()).collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }
    }
}
