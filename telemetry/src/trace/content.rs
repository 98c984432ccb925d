//! Prompt and answer text on model spans: only if an operator asked for it by the one documented variable.
//!
//! The JSON is the GenAI conventions': a list of messages, each a role and a list of parts.

use serde_json::{Value, json};

use crate::observation::FinishReason;

/// Most text of one side, in bytes. Collectors refuse payloads of a few megabytes.
const MAX_TEXT: usize = 256 << 10;

/// A message of the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` …
    pub role: String,
    /// Its text.
    pub text: String,
}

/// `gen_ai.input.messages`.
pub(super) fn input(messages: &[Message]) -> String {
    let mut left = MAX_TEXT;
    let messages = messages.iter().map(|message| {
        let text = cut(&message.text, left);
        left -= text.len();
        json!({ "role": message.role, "parts": parts(text) })
    });
    Value::Array(messages.collect()).to_string()
}

/// `gen_ai.output.messages` of the one choice that a model span stands for.
pub(super) fn output(text: &str, reason: FinishReason) -> String {
    let text = cut(text, MAX_TEXT);
    json!([{ "role": "assistant", "parts": parts(text), "finish_reason": reason.as_str() }]).to_string()
}

/// Adds to an answer what still fits.
pub(super) fn append(answer: &mut String, text: &str) {
    answer.push_str(cut(text, MAX_TEXT - answer.len()));
}

fn parts(text: &str) -> Value {
    json!([{ "type": "text", "content": text }])
}

fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, text: &str) -> Message {
        Message { role: role.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn messages_have_the_conventions_shape() {
        let found = input(&[message("system", "be \"brief\""), message("user", "hi\n")]);
        let found: Value = serde_json::from_str(&found).unwrap();
        let expected = json!([
            {"role": "system", "parts": [{"type": "text", "content": "be \"brief\""}]},
            {"role": "user", "parts": [{"type": "text", "content": "hi\n"}]},
        ]);
        assert_eq!(found, expected);
        let found: Value = serde_json::from_str(&output("yes", FinishReason::Stop)).unwrap();
        let expected = json!([
            {"role": "assistant", "parts": [{"type": "text", "content": "yes"}], "finish_reason": "stop"}
        ]);
        assert_eq!(found, expected);
    }

    #[test]
    fn text_is_bounded_and_the_json_stays_whole() {
        let long = "ü".repeat(MAX_TEXT);
        let found: Value =
            serde_json::from_str(&input(&[message("user", &long), message("user", "more")])).unwrap();
        assert_eq!(found[0]["parts"][0]["content"].as_str().unwrap().len(), MAX_TEXT);
        assert_eq!(found[1]["parts"][0]["content"], "");
        let mut answer = String::new();
        for _ in 0..3 {
            append(&mut answer, &long);
        }
        assert!(answer.len() <= MAX_TEXT);
    }
}
