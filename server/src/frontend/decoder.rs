//! One request's tokens to text: detokenisation, stop strings, log-probabilities in step with the text.
//!
//! It knows one request and no channel, no clock, no telemetry.
//!
//! Invariant: a log-probability goes out with or after the beginning of its token's text, and a token
//! whose text was cut off (a stop token, or a token at or behind a stop string) has none.

use std::collections::VecDeque;

use limpid_engine::detokenizer::Detokenizer;
use limpid_engine::request::{FinishReason, SampledToken, SamplingParams};

use super::stop::StopStrings;
use super::{StopCause, TextModel};

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    /// The token's bytes; they need not be whole UTF-8.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability; may be minus infinity.
    pub logprob: f32,
}

/// Log-probabilities at one position of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token that was chosen.
    pub chosen: Logprob,
    /// The most probable ones, as many as were asked for.
    pub top: Vec<Logprob>,
    /// Characters of the answer's text before this token.
    pub text_offset: usize,
}

/// What some tokens added to the answer. It is kept from one to the next, so that a token costs no memory of its own.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Decoded {
    pub(super) text: String,
    pub(super) logprobs: Vec<TokenLogprob>,
    /// A stop string was found: the answer ends here, whatever the engine says.
    pub(super) stopped: bool,
    /// What of the request's own settings ended it.
    pub(super) cause: Option<StopCause>,
}

impl Decoded {
    fn clear(&mut self) {
        self.text.clear();
        self.logprobs.clear();
        (self.stopped, self.cause) = (false, None);
    }
}

/// A log-probability that waits for its text.
struct Waiting {
    /// Bytes of text before the token.
    start: usize,
    logprob: TokenLogprob,
}

/// The state between steps.
pub(super) struct Decoder {
    detokenizer: Detokenizer,
    stops: StopStrings,
    special: bool,
    min_tokens: usize,
    stop_token_ids: Vec<u32>,
    wants_logprobs: bool,
    num_tokens: usize,
    /// Bytes of text decoded, and of text let through.
    decoded_bytes: usize,
    released_bytes: usize,
    decoded_characters: usize,
    waiting: VecDeque<Waiting>,
    /// The text of one token.
    token_text: String,
}

impl Decoder {
    pub(super) fn new(params: &SamplingParams, stop: Vec<String>, skip_special_tokens: bool) -> Decoder {
        Decoder {
            detokenizer: Detokenizer::default(),
            stops: StopStrings::new(stop),
            special: !skip_special_tokens,
            min_tokens: params.min_tokens,
            stop_token_ids: params.stop_token_ids.clone(),
            wants_logprobs: params.logprobs.is_some(),
            num_tokens: 0,
            decoded_bytes: 0,
            released_bytes: 0,
            decoded_characters: 0,
            waiting: VecDeque::new(),
            token_text: String::new(),
        }
    }

    /// Takes the tokens of one output, and its finish reason on the last; `decoded` becomes what they added.
    pub(super) fn push(
        &mut self,
        tokens: &[SampledToken],
        finish: Option<FinishReason>,
        model: &dyn TextModel,
        decoded: &mut Decoded,
    ) {
        decoded.clear();
        for (index, token) in tokens.iter().enumerate() {
            self.num_tokens += 1;
            let is_last = index + 1 == tokens.len();
            if is_last && finish == Some(FinishReason::Stop) && self.stop_token_ids.contains(&token.id) {
                // An end token of the model's own needs no explanation.
                decoded.cause =
                    (!model.end_token_ids().contains(&token.id)).then_some(StopCause::Token(token.id));
                break;
            }
            self.push_token(token, model, decoded);
            if decoded.stopped {
                return;
            }
        }
        if finish.is_some() {
            // Bytes that never became a character are dropped: the text stays valid UTF-8.
            self.detokenizer.finish();
            decoded.text.push_str(&self.stops.finish());
            self.released_bytes = self.decoded_bytes;
        }
        self.release_logprobs(decoded);
    }

    fn push_token(&mut self, token: &SampledToken, model: &dyn TextModel, decoded: &mut Decoded) {
        if self.wants_logprobs {
            self.wait_with_logprob(token, model);
        }
        let bytes = model.token_bytes(token.id, self.special).unwrap_or_default();
        self.token_text.clear();
        self.detokenizer.push(bytes, &mut self.token_text);
        self.decoded_bytes += self.token_text.len();
        self.decoded_characters += self.token_text.chars().count();
        if self.num_tokens <= self.min_tokens {
            self.released_bytes += self.token_text.len();
            decoded.text.push_str(&self.token_text);
            return;
        }
        let released = decoded.text.len();
        let stop = self.stops.push(&self.token_text, &mut decoded.text);
        self.released_bytes += decoded.text.len() - released;
        if let Some(stop) = stop {
            decoded.stopped = true;
            decoded.cause = Some(StopCause::Text(stop));
            self.waiting.retain(|waiting| waiting.start < self.released_bytes);
            decoded.logprobs.extend(self.waiting.drain(..).map(|waiting| waiting.logprob));
        }
    }

    fn wait_with_logprob(&mut self, token: &SampledToken, model: &dyn TextModel) {
        let Some(logprobs) = &token.logprobs else { return };
        let named = |id: u32, logprob: f32| Logprob {
            bytes: model.token_bytes(id, true).unwrap_or_default().to_vec(),
            logprob,
        };
        let logprob = TokenLogprob {
            chosen: named(token.id, logprobs.chosen),
            top: logprobs.top.iter().map(|(id, logprob)| named(*id, *logprob)).collect(),
            text_offset: self.decoded_characters,
        };
        self.waiting.push_back(Waiting { start: self.decoded_bytes, logprob });
    }

    fn release_logprobs(&mut self, decoded: &mut Decoded) {
        while let Some(waiting) = self.waiting.front() {
            if self.stops.is_holding() && waiting.start >= self.released_bytes {
                break;
            }
            decoded.logprobs.extend(self.waiting.pop_front().map(|waiting| waiting.logprob));
        }
    }
}

#[cfg(test)]
mod tests {
    use limpid_engine::request::TokenLogprobs;

    use super::*;
    use crate::testing::ByteModel;

    fn tokens(text: &str) -> Vec<SampledToken> {
        text.bytes()
            .map(|byte| SampledToken {
                id: u32::from(byte),
                logprobs: Some(TokenLogprobs { chosen: -0.5, top: vec![(u32::from(b'x'), -0.25)] }),
            })
            .collect()
    }

    fn push(decoder: &mut Decoder, tokens: &[SampledToken], finish: Option<FinishReason>) -> Decoded {
        let mut decoded = Decoded { text: "of another".to_owned(), stopped: true, ..Decoded::default() };
        decoder.push(tokens, finish, &ByteModel, &mut decoded);
        decoded
    }

    fn params() -> SamplingParams {
        SamplingParams {
            logprobs: Some(1),
            stop_token_ids: vec![ByteModel::END],
            ..SamplingParams::default()
        }
    }

    fn bytes(logprobs: &[TokenLogprob]) -> Vec<u8> {
        logprobs.iter().flat_map(|logprob| logprob.chosen.bytes.clone()).collect()
    }

    #[test]
    fn logprobs_wait_for_text_that_is_held_back() {
        let mut decoder = Decoder::new(&params(), vec!["END".to_owned()], true);
        let first = push(&mut decoder, &tokens("ok E"), None);
        assert_eq!((first.text.as_str(), bytes(&first.logprobs).as_slice()), ("ok ", b"ok ".as_slice()));
        let second = push(&mut decoder, &tokens("N"), None);
        assert_eq!((second.text.as_str(), second.logprobs.len()), ("", 0));
        let third = push(&mut decoder, &tokens("."), None);
        assert_eq!((third.text.as_str(), bytes(&third.logprobs).as_slice()), ("EN.", b"EN.".as_slice()));
        let offsets: Vec<usize> = third.logprobs.iter().map(|logprob| logprob.text_offset).collect();
        assert_eq!(offsets, [3, 4, 5]);
    }

    #[test]
    fn tokens_of_a_stop_string_have_no_logprobs_but_count() {
        let mut decoder = Decoder::new(&params(), vec!["END".to_owned()], true);
        let decoded = push(&mut decoder, &tokens("a END b"), None);
        assert_eq!(decoded.text, "a ");
        assert!(decoded.stopped);
        assert_eq!(decoded.cause, Some(StopCause::Text("END".to_owned())));
        assert_eq!(bytes(&decoded.logprobs), b"a ");
    }

    #[test]
    fn the_end_token_has_no_text_and_no_logprob() {
        let mut decoder = Decoder::new(&params(), Vec::new(), false);
        let mut last = tokens("a");
        last.push(SampledToken { id: ByteModel::END, logprobs: last[0].logprobs.clone() });
        let decoded = push(&mut decoder, &last, Some(FinishReason::Stop));
        assert_eq!(decoded.text, "a");
        assert_eq!(decoded.cause, None);
        assert_eq!(bytes(&decoded.logprobs), b"a");
    }

    #[test]
    fn a_stop_token_of_the_requests_own_is_named() {
        let params = SamplingParams { stop_token_ids: vec![u32::from(b'!')], ..params() };
        let mut decoder = Decoder::new(&params, Vec::new(), true);
        let decoded = push(&mut decoder, &tokens("a!"), Some(FinishReason::Stop));
        assert_eq!(decoded.text, "a");
        assert_eq!(decoded.cause, Some(StopCause::Token(u32::from(b'!'))));
    }

    #[test]
    fn a_stop_string_before_min_tokens_is_let_through() {
        let params = SamplingParams { min_tokens: 3, ..params() };
        let mut decoder = Decoder::new(&params, vec!["b".to_owned()], true);
        let decoded = push(&mut decoder, &tokens("abcab"), None);
        assert_eq!(decoded.text, "abca");
        assert!(decoded.stopped);
    }

    #[test]
    fn a_character_of_four_tokens_comes_in_one_piece() {
        let mut decoder = Decoder::new(&params(), Vec::new(), true);
        let pieces: Vec<String> = tokens("😀")
            .iter()
            .map(|token| push(&mut decoder, std::slice::from_ref(token), None).text)
            .collect();
        assert_eq!(pieces, ["", "", "", "😀"]);
    }

    #[test]
    fn an_incomplete_character_at_the_end_is_dropped() {
        let mut decoder = Decoder::new(&params(), Vec::new(), true);
        let mut cut = tokens("a😀");
        cut.truncate(3);
        let decoded = push(&mut decoder, &cut, Some(FinishReason::Length));
        assert_eq!(decoded.text, "a");
    }
}
