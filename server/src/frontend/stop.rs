//! Stop strings across token borders.
//!
//! Text comes in pieces that know nothing of the strings' borders. What could still become a stop string
//! is held back; what cannot any more is let through.
//!
//! Invariant: no byte of a stop string that ends the text is ever let through, and what is let through
//! plus what is held is what came in.

/// Looks for stop strings and holds back their possible beginnings.
#[derive(Debug)]
pub(super) struct StopStrings {
    stops: Vec<String>,
    held: String,
}

impl StopStrings {
    /// Empty strings would stop everything; the API refuses them.
    pub(super) fn new(stops: Vec<String>) -> StopStrings {
        debug_assert!(stops.iter().all(|stop| !stop.is_empty()));
        StopStrings { stops, held: String::new() }
    }

    /// Adds text and appends what may go out to `out`. With a stop string, which is returned, that is the text before
    /// it, and the rest is gone.
    pub(super) fn push(&mut self, text: &str, out: &mut String) -> Option<String> {
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        self.held.push_str(text);
        let found = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|start| (start, stop)))
            .min_by_key(|(start, _)| *start);
        if let Some((start, stop)) = found {
            out.push_str(&self.held[..start]);
            self.held.clear();
            return Some(stop.clone());
        }
        let certain = self.held.len() - self.possible_beginning();
        out.extend(self.held.drain(..certain));
        None
    }

    /// Whether anything is held back.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Lets the rest through: the text ended otherwise.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of the held text that are the beginning of a stop string.
    fn possible_beginning(&self) -> usize {
        let beginning = |stop: &String| {
            (1..stop.len().min(self.held.len() + 1))
                .rev()
                .find(|len| stop.is_char_boundary(*len) && self.held.ends_with(&stop[..*len]))
        };
        self.stops.iter().filter_map(beginning).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Pushes the pieces and returns everything that came out and the stop.
    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let mut holder = StopStrings::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut out = Vec::new();
        for piece in pieces {
            let mut text = String::new();
            let stop = holder.push(piece, &mut text);
            out.push(text);
            if stop.is_some() {
                return (out, stop);
            }
        }
        out.push(holder.finish());
        (out, None)
    }

    #[test]
    fn a_stop_string_across_three_pieces_lets_none_of_it_through() {
        let (out, stop) = run(&["END"], &["one E", "N", "D two"]);
        assert_eq!(out, ["one ", "", ""]);
        assert_eq!(stop.as_deref(), Some("END"));
    }

    #[test]
    fn a_beginning_that_comes_to_nothing_goes_out_with_the_next_piece() {
        let (out, stop) = run(&["END"], &["E", "N", "d"]);
        assert_eq!(out, ["", "", "ENd", ""]);
        assert_eq!(stop, None);
    }

    #[test]
    fn a_held_beginning_goes_out_at_the_end() {
        let (out, stop) = run(&["END"], &["the EN"]);
        assert_eq!(out, ["the ", "EN"]);
        assert_eq!(stop, None);
    }

    #[test]
    fn the_earliest_of_several_stop_strings_wins() {
        let (out, stop) = run(&["later", "so"], &["and so on, later"]);
        assert_eq!(out, ["and "]);
        assert_eq!(stop.as_deref(), Some("so"));
    }

    #[test]
    fn a_beginning_inside_a_failed_beginning_is_kept() {
        let (out, stop) = run(&["aab"], &["aa", "a", "b"]);
        assert_eq!(out.concat(), "a");
        assert_eq!(stop.as_deref(), Some("aab"));
    }

    #[test]
    fn characters_of_several_bytes_are_never_cut() {
        let (out, stop) = run(&["é😀"], &["caf", "é", "!"]);
        assert_eq!(out, ["caf", "", "é!", ""]);
        assert_eq!(stop, None);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            cuts in prop::collection::vec(0usize..25, 0..6),
        ) {
            let characters: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(characters.len())).collect();
            cuts.extend([0, characters.len()]);
            cuts.sort_unstable();
            let pieces: Vec<String> =
                cuts.windows(2).map(|pair| characters[pair[0]..pair[1]].iter().collect()).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (out, stop) = run(&stops, &pieces);
            let out = out.concat();
            if stop.is_some() {
                prop_assert!(text.starts_with(&out));
                prop_assert!(!stops.iter().any(|stop| out.contains(stop)));
                prop_assert!(text[out.len()..].starts_with(stop.as_deref().unwrap()));
            } else {
                prop_assert_eq!(&out, &text);
                prop_assert!(!stops.iter().any(|stop| text.contains(stop)));
            }
        }
    }
}
