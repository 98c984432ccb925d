use serde_json::json;

use super::*;
use crate::gguf::fixture::CHAT_TEMPLATE;

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Some("<s>"), Some("</s>")).expect("a valid template")
}

fn render(source: &str) -> Result<String, String> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    compile(source).render(&messages, true, None).map_err(|error| error.0)
}

#[test]
fn messages_are_rendered_in_order_with_the_generation_prompt_last() {
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<b>\"1 & 2\"</b>"},
    ]);
    let prompt = compile(CHAT_TEMPLATE).render(&messages, true, None).unwrap();
    assert_eq!(
        prompt,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<b>\"1 & 2\"</b><|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let without = compile(CHAT_TEMPLATE).render(&messages, false, None).unwrap();
    assert_eq!(without, prompt.strip_suffix("<|im_start|>assistant\n").unwrap());
}

#[test]
fn gemmas_turns_fold_the_system_message_into_the_first_and_alternate() {
    let source = r#"{{ bos_token }}
        {%- if messages[0]['role'] == 'system' -%}
            {%- if messages[0]['content'] is string -%}
                {%- set prefix = messages[0]['content'] + '\n\n' -%}
            {%- else -%}
                {%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
            {%- endif -%}
            {%- set turns = messages[1:] -%}
        {%- else -%}
            {%- set prefix = "" -%}
            {%- set turns = messages -%}
        {%- endif -%}
        {%- for message in turns -%}
            {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
                {{ raise_exception("user and assistant take turns") }}
            {%- endif -%}
            {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
            {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else "") }}
            {%- if message['content'] is string -%}
                {{ message['content'] | trim }}
            {%- elif message['content'] is iterable -%}
                {%- for item in message['content'] if item['type'] == 'text' -%}
                    {{ item['text'] | trim }}
                {%- endfor -%}
            {%- endif -%}
            {{ '<end_of_turn>\n' }}
        {%- endfor -%}
        {%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"#;
    let template = ChatTemplate::new(source, Some("<bos>"), Some("<eos>")).unwrap();
    let mut messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " hi "},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "bye"},
    ]);
    assert_eq!(
        template.render(&messages, true, None).unwrap(),
        "<bos><start_of_turn>user\nBe brief.\n\nhi<end_of_turn>\n<start_of_turn>model\nhello<end_of_turn>\n\
         <start_of_turn>user\nbye<end_of_turn>\n<start_of_turn>model\n"
    );
    messages[2]["role"] = "user".into();
    assert_eq!(template.render(&messages, true, None).unwrap_err().0, "user and assistant take turns");
}

#[test]
fn blocks_take_their_line_with_them_as_in_python() {
    let source =
        "{%- if true %}\n  {% for m in messages %}\n{{ m.role }}\n  {% endfor %}\n{% endif %}\nend\n";
    assert_eq!(render(source).unwrap(), "user\nend");
}

#[test]
fn python_methods_slices_and_loop_controls_work() {
    let source = "{% for m in messages[0:] %}{{ m['content'].upper().strip() }}|{{ 'a b'.split(' ')[-1] }}|\
                  {{ m.get('name', 'none') }}{% break %}{% endfor %}";
    assert_eq!(render(source).unwrap(), "HI|b|none");
}

#[test]
fn special_tokens_and_absent_tools_are_variables() {
    assert_eq!(render("{{ bos_token }}{{ tools is none }}{{ eos_token }}").unwrap(), "<s>True</s>");
}

#[test]
fn extra_variables_reach_the_template_but_cannot_replace_what_is_ours() {
    let template = compile("{{ enable_thinking }} {{ messages[0].content }} {{ bos_token }}");
    let extra =
        json!({"enable_thinking": "on", "messages": [], "bos_token": "x", "add_generation_prompt": 3});
    let messages = json!([{"role": "user", "content": "hi"}]);
    assert_eq!(template.render(&messages, true, extra.as_object()).unwrap(), "on hi <s>");
}

#[test]
fn json_is_spelled_as_python_does_without_html_escapes() {
    let source = r#"{{ {"a": [1, "<&'>"], "b": "\\u003c\n"} | tojson }}"#;
    assert_eq!(render(source).unwrap(), r#"{"a": [1, "<&'>"], "b": "\\u003c\n"}"#);
    let indented = render("{{ messages[0] | tojson(indent=4) }}").unwrap();
    assert_eq!(indented, "{\n    \"role\": \"user\",\n    \"content\": \"hi\"\n}");
    assert_eq!(render("{{ 'é' | tojson(ensure_ascii=False) }}").unwrap(), "\"é\"");
}

#[test]
fn the_date_can_be_asked_for_and_a_wrong_format_is_an_error() {
    let year = render("{{ strftime_now('%Y-%m-%d') }}").unwrap();
    assert_eq!(year.len(), 10, "{year}");
    assert!(year.starts_with("20"), "{year}");
    assert!(render("{{ strftime_now('%!') }}").is_err());
}

#[test]
fn what_a_template_raises_is_the_message_word_for_word() {
    let source = "{% macro check(m) %}{{ raise_exception('Roles must alternate') }}{% endmacro %}\
                  {% for m in messages %}{{ check(m) }}{% endfor %}";
    assert_eq!(render(source).unwrap_err(), "Roles must alternate");
    let error = compile(source).render(&json!([{}]), true, None).unwrap_err();
    assert_eq!(error.to_string(), "the model's chat template refused the messages: Roles must alternate");
}

#[test]
fn content_parts_of_text_become_lines_and_others_are_refused() {
    let template = compile("{{ messages[0].content }}");
    let render = |content: Json| template.render(&json!([{"role": "user", "content": content}]), true, None);
    let text = json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
    assert_eq!(render(text).unwrap(), "one\ntwo");
    let image = render(json!([{"type": "image_url", "image_url": {"url": "x"}}])).unwrap_err();
    assert!(image.0.contains("message 0") && image.0.contains("image_url"), "{image}");
    assert!(render(json!([{"type": "text"}])).is_err());
    assert!(render(json!([17])).is_err());
}

#[test]
fn messages_of_the_wrong_shape_are_refused() {
    let template = compile(CHAT_TEMPLATE);
    for messages in
        [json!("hi"), json!(["hi"]), json!([{"role": "user"}]), json!([{"role": 1, "content": 2}])]
    {
        assert!(template.render(&messages, true, None).is_err(), "{messages}");
    }
}

#[test]
fn hostile_templates_end_soon_and_small() {
    let endless = [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for a in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ range(10000000000) | list | length }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 'x'.replace('', 'y' * 100000).replace('', 'z' * 100000) }}",
    ];
    let started = std::time::Instant::now();
    for source in endless {
        assert!(render(source).is_err(), "{source}");
    }
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
    for source in ["{% for %}", "{{", "{% endfor %}", &"{{ ((".repeat(10_000), &"[".repeat(100_000)] {
        let _ = ChatTemplate::new(source, None, None);
    }
    assert!(ChatTemplate::new(&format!("{{{{ {}", "(".repeat(100_000)), None, None).is_err());
}
