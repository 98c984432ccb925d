//! The model's chat template (Jinja, through `minijinja`): messages to the prompt's text.
//!
//! Templates are written for Python's Jinja as Hugging Face's `apply_chat_template` sets it up; this module
//! gives them the same surroundings: block trimming, `raise_exception`, `strftime_now`, a `tojson` that does
//! not escape HTML, Python's string methods, `bos_token` and `eos_token`.
//!
//! Both the template (from the model file) and the messages (from the client) are hostile. Rendering runs on
//! fuel, which bounds its time and its memory.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

/// What a rendering may cost, an instruction or 64 bytes being one. Long conversations take some ten
/// thousand; this is about a second, and 128 MB, at most.
const FUEL: u64 = 2_000_000;

const NAME: &str = "chat_template";

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
}

/// Why messages could not be rendered: the template refused them.
#[derive(Debug, thiserror::Error)]
#[error("the model's chat template refused the messages: {0}")]
pub struct TemplateError(pub String);

/// Why a template could not be compiled.
#[derive(Debug, thiserror::Error)]
#[error("`tokenizer.chat_template` cannot be compiled: {0}")]
pub struct TemplateSyntaxError(pub String);

/// What a template said with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles a template. `bos_token` and `eos_token` are what it sees under these names.
    ///
    /// # Errors
    /// The source is no valid template.
    pub fn new(
        source: &str,
        bos_token: Option<&str>,
        eos_token: Option<&str>,
    ) -> Result<ChatTemplate, TemplateSyntaxError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| TemplateSyntaxError(error.to_string()))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment.add_global("bos_token", bos_token.unwrap_or_default());
        environment.add_global("eos_token", eos_token.unwrap_or_default());
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| TemplateSyntaxError(error.to_string()))?;
        Ok(ChatTemplate { environment })
    }

    /// Renders OpenAI-shaped messages (`role`, `content`, …). Content given as parts is joined to one text,
    /// a line per part, which is what templates of text models expect. `extra` is `chat_template_kwargs`; it
    /// adds variables and cannot replace the messages or the special tokens.
    ///
    /// # Errors
    /// What the template raised, for the client to read; also messages that are no list of objects, and
    /// content parts that are not text.
    pub fn render(
        &self,
        messages: &Json,
        add_generation_prompt: bool,
        extra: Option<&Map<String, Json>>,
    ) -> Result<String, TemplateError> {
        let mut variables = extra.cloned().unwrap_or_default();
        for reserved in ["bos_token", "eos_token"] {
            variables.remove(reserved);
        }
        variables.entry("tools").or_insert(Json::Null);
        variables.insert("messages".to_owned(), flatten_contents(messages)?);
        variables.insert("add_generation_prompt".to_owned(), Json::Bool(add_generation_prompt));
        let template = self.environment.get_template(NAME).map_err(|error| describe(&error))?;
        template.render(Value::from(Serde(&variables))).map_err(|error| describe(&error))
    }
}

/// The messages with every content that is a list of text parts made one text.
fn flatten_contents(messages: &Json) -> Result<Json, TemplateError> {
    let refuse = |message: String| Err(TemplateError(message));
    let Json::Array(messages) = messages else { return refuse("messages must be a list".to_owned()) };
    let mut flattened = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let Json::Object(message) = message else {
            return refuse(format!("message {index} must be an object"));
        };
        let mut message = message.clone();
        if let Some(Json::Array(parts)) = message.get("content") {
            let mut texts = Vec::with_capacity(parts.len());
            for part in parts {
                match (part, part.get("type").and_then(Json::as_str), part.get("text")) {
                    (Json::String(text), ..) | (_, Some("text"), Some(Json::String(text))) => {
                        texts.push(&**text)
                    }
                    (_, Some("text") | None, _) => {
                        return refuse(format!("a content part of message {index} has no text"));
                    }
                    (_, Some(other), _) => {
                        return refuse(format!(
                            "a content part of message {index} is of type {other:?}; this model reads only text"
                        ));
                    }
                }
            }
            let text = texts.join("\n");
            message.insert("content".to_owned(), Json::String(text));
        }
        flattened.push(Json::Object(message));
    }
    Ok(Json::Array(flattened))
}

/// What went wrong: the template's own words if it raised something, else the engine's, with the line.
fn describe(error: &Error) -> TemplateError {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(Raised(message)) = error.downcast_ref() {
            return TemplateError(message.clone());
        }
        source = error.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError("it takes too long to render".to_owned()),
        _ => TemplateError(error.to_string()),
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// The current date and time in UTC, by `strftime`'s directives.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// Python's `json.dumps`: minijinja's own filter, without its escapes for HTML.
fn tojson(value: &Value, indent: Option<Value>, arguments: Kwargs) -> Result<String, Error> {
    // Python's options that say what is the case here anyway.
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        let _: Option<Value> = arguments.get(ignored)?;
    }
    let json = minijinja::filters::tojson(value, indent, arguments)?;
    Ok(without_html_escapes(json.as_str().unwrap_or_default()))
}

fn without_html_escapes(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (literal, taken) = match rest.get(..6) {
            Some("\\u003c") => ("<", 6),
            Some("\\u003e") => (">", 6),
            Some("\\u0026") => ("&", 6),
            Some("\\u0027") => ("'", 6),
            // Any other escape is a backslash and a character, and stays.
            _ => rest.split_at_checked(2).map_or((rest, rest.len()), |(escape, _)| (escape, 2)),
        };
        out.push_str(literal);
        rest = &rest[taken..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests;
