//! The model's chat template (Jinja, through `minijinja`): messages to the prompt's text.

/// A compiled template.
pub struct ChatTemplate {
    _private: (),
}

/// Why messages could not be rendered: the template refused them.
#[derive(Debug, thiserror::Error)]
#[error("the model's chat template refused the messages: {0}")]
pub struct TemplateError(pub String);

impl ChatTemplate {
    /// Renders OpenAI-shaped messages (`role`, `content`, …). `extra` is `chat_template_kwargs`.
    ///
    /// # Errors
    /// What the template raised, for the client to read.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        add_generation_prompt: bool,
        extra: Option<&serde_json::Map<String, serde_json::Value>>,
    ) -> Result<String, TemplateError> {
        let _ = (messages, add_generation_prompt, extra);
        Err(TemplateError(String::new()))
    }
}
