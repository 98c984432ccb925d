//! Documents that point somewhere point at something.

use limpid_tests::gaps::Gaps;

/// Targets of Markdown links and images in a text, code blocks left out.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for part in line.split("](").skip(1) {
            if let Some((target, _)) = part.split_once(')') {
                links.push(target.to_owned());
            }
        }
    }
    links
}

/// The anchor GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_')
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut gaps = Gaps::default();
    let documents = super::files(".", &[".md"]);
    assert!(documents.len() > 5, "found only {documents:?}");
    for document in documents {
        let text = super::read(&document);
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target =
                if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
            if !target.exists() {
                gaps.note(format_args!("{}: {link}", document.display()));
            } else if !fragment.is_empty() && target.extension().is_some_and(|extension| extension == "md") {
                let headings = super::read(&target);
                let found = headings
                    .lines()
                    .filter(|line| line.starts_with('#'))
                    .any(|line| anchor(line.trim_start_matches('#')) == fragment);
                gaps.expect(found, format_args!("{}: no heading for {link}", document.display()));
            }
        }
    }
    gaps.assert_none("every relative link should lead to a file and heading of the repository");
}

#[test]
fn readme_and_ci_name_the_same_commands() {
    let readme = super::read("README.md");
    let ci = super::read(".ci/run");
    for command in ["cargo run --release -- demo", "cargo test --workspace"] {
        assert!(readme.contains(command), "README.md should name {command}");
        assert!(ci.contains(command), ".ci/run should run {command}");
    }
}

#[test]
fn every_example_has_a_readme() {
    for entry in std::fs::read_dir(super::root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        assert!(!path.is_dir() || path.join("README.md").is_file(), "{path:?} has no README.md");
    }
}

#[test]
fn decisions_are_numbered_without_gaps() {
    let records = super::files("docs/adr", &[".md"]);
    for (index, record) in records.iter().enumerate() {
        let name = record.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with(&format!("{index:04}-")), "{name} should be number {index:04}");
        let text = super::read(record);
        for heading in ["## Context", "## Decision", "## Consequences"] {
            assert!(text.contains(heading), "{name} lacks {heading}");
        }
    }
}

#[test]
fn sources_hold_no_leftovers() {
    let mut gaps = Gaps::default();
    // Spelled in halves, so that this file does not accuse itself.
    let banned =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!("), concat!("unimplemented", "!(")];
    for folder in ["engine", "telemetry", "server", "tests", "xtask", "docs", "examples", "otel-collector"] {
        for path in super::files(folder, &[".rs", ".wgsl", ".md", ".yaml", ".toml", ".py", ".sh"]) {
            for (number, line) in super::read(&path).lines().enumerate() {
                for word in banned {
                    gaps.expect(
                        !line.contains(word),
                        format_args!("{}:{}: {word}", path.display(), number + 1),
                    );
                }
            }
        }
    }
    gaps.assert_none("what is left to do belongs into the tracker");
}

#[test]
fn the_page_of_all_spans_is_what_the_declarations_make() {
    let page = super::read("docs/reference/spans.md");
    assert!(
        page == limpid_telemetry::semconv::reference_markdown(),
        "docs/reference/spans.md is out of date; run cargo xtask docs-spans"
    );
}
