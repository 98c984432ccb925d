//! The declared spans as a page for people.

use std::fmt::Write as _;

use super::SPANS;

const INTRODUCTION: &str = "\
# Spans

Every span that limpid writes, with its attributes and events. This page is generated from the declarations in
`telemetry/src/semconv`; `cargo xtask docs-spans` writes it and a test compares it.

Names follow the OpenTelemetry semantic conventions (HTTP, and GenAI v0.1.0) where they have one, then vLLM
(`gen_ai.latency.*`, seconds as doubles), then `limpid.*`. An attribute whose condition does not hold is
absent, never zero. [The intervals](../concepts/intervals.md) are defined on a page of their own.

```
POST /v1/chat/completions     SERVER, parent from the caller's traceparent
└─ chat <model>               one for each choice
   ├─ queue
   ├─ prefill
   ├─ decode
   └─ preempted               one for each preemption

engine.step                   a trace of its own; linked to the requests of its batch
├─ plan
├─ upload
├─ forward
│  └─ <op>                    one for each op of the program, such as layer.3.attention; layer.3.query+key is two in one
├─ read_back
└─ sample

startup                       a trace of its own
└─ <phase>                    open_model, load_tokenizer, upload_weights, build_pipelines, warm_up …
```
";

/// `docs/reference/spans.md`.
pub fn reference_markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    for spec in SPANS {
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## `{}`\n\n{}. Kind {}.\n", spec.name, capitalized(spec.covers), spec.kind);
        if !spec.attributes.is_empty() {
            page.push_str("\n| attribute | present |\n|---|---|\n");
            for (key, when) in spec.attributes {
                let _ = writeln!(page, "| `{key}` | {} |", when.replace('|', "\\|"));
            }
        }
        if !spec.events.is_empty() {
            page.push_str("\n| event | attributes |\n|---|---|\n");
            for (name, keys) in spec.events {
                let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
                let _ = writeln!(page, "| `{name}` | {} |", keys.join(", "));
            }
        }
    }
    page
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

#[cfg(test)]
mod tests {
    use super::{SPANS, reference_markdown};

    #[test]
    fn every_declared_span_attribute_and_event_is_on_the_page_once_declared() {
        let page = reference_markdown();
        for spec in SPANS {
            assert_eq!(page.matches(&format!("## `{}`\n", spec.name)).count(), 1, "{}", spec.name);
            for (index, (key, _)) in spec.attributes.iter().enumerate() {
                assert!(page.contains(&format!("| `{key}` |")), "{key}");
                let twice = spec.attributes[..index].iter().any(|(other, _)| other == key);
                assert!(!twice, "{}: {key} is declared twice", spec.name);
            }
            for (name, _) in spec.events {
                assert!(page.contains(&format!("| `{name}` |")), "{name}");
            }
        }
    }

    #[test]
    fn table_cells_hold_no_bare_bars() {
        for line in reference_markdown().lines().filter(|line| line.starts_with("| ")) {
            assert_eq!(line.replace("\\|", "").matches('|').count(), 3, "{line}");
        }
    }
}
