//! Bodies by chance, and ways to write one body differently.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

/// Names that rules are about, and some that none is about.
const NAMES: [&str; 22] = [
    "type",
    "role",
    "content",
    "arguments",
    "id",
    "text",
    "reasoning",
    "thinking",
    "cache_control",
    "__own",
    "_own",
    "é",
    "",
    "a\"b\\c\n",
    "messages",
    "input",
    "system",
    "logprobs",
    "call_id",
    "annotations",
    "status",
    "name",
];

const TEXTS: [&str; 20] = [
    "",
    "a",
    "hi there",
    "user",
    "assistant",
    "thinking",
    "redacted_thinking",
    "function_call",
    "x-anthropic-billing-header: cch=1",
    "日本語",
    "😀",
    "\u{0}\n\t\"\\/",
    "{}",
    "[1]",
    " {\"a\":\"b\",\"id\":\"c\"} ",
    "{\"type\":\"thinking\",\"a\":\"b\"}",
    "{\"arguments\":\"{\\\"k\\\":\\\"v\\\"}\",\"b\":[\"c\",{\"d\":1.5e3}]}",
    "{\"a\":\"b\"} x",
    "{\"a\":",
    "{\"a\":\"b\",\"c\":nul}",
];

pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => select(&TEXTS[..]).prop_map(str::to_owned),
        1 => ".{0,80}",
        1 => "[ -~é\n]{0,80}",
    ]
}

/// Any value of moderate size.
pub fn value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        4 => text().prop_map(Value::String),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::Bool),
        1 => any::<i64>().prop_map(Value::from),
        1 => (-1e9..1e9).prop_map(Value::from),
    ];
    scalar.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((select(&NAMES[..]), inner), 0..5).prop_map(object),
        ]
    })
}

fn object(fields: Vec<(&str, Value)>) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// A body that may or may not give a session.
pub fn body() -> impl Strategy<Value = Value> {
    let item = || {
        let role = select(&["user", "assistant", "tool"][..]);
        prop_oneof![
            3 => (role, value()).prop_map(|(role, content)| json!({"role": role, "content": content})),
            2 => prop::collection::vec((select(&NAMES[..]), value()), 0..5).prop_map(object),
            1 => value(),
        ]
    };
    let items = || prop_oneof![6 => prop::collection::vec(item(), 0..6).prop_map(Value::Array), 1 => value()];
    let field = prop_oneof![
        4 => items().prop_map(|items| ("messages", items)),
        3 => items().prop_map(|items| ("input", items)),
        2 => value().prop_map(|system| ("system", system)),
        1 => value().prop_map(|other| ("tools", other)),
        1 => text().prop_map(|model| ("model", Value::String(model))),
    ];
    prop::collection::vec(field, 0..5).prop_map(object)
}

/// Small deterministic choices, so that a failing case is replayed by its seed alone.
pub struct Choices(u64);

impl Choices {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }
}

/// Writes a value as JSON with fields in any order, any white space, and characters escaped or not.
pub fn render(value: &Value, choices: &mut Choices) -> String {
    let mut json = space(choices);
    match value {
        Value::String(text) => json.push_str(&render_text(text, choices)),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(|value| render(value, choices)).collect();
            json.push_str(&format!("[{}{}]", space(choices), values.join(",")));
        }
        Value::Object(object) => {
            let mut fields: Vec<_> = object.iter().collect();
            for end in (2..=fields.len()).rev() {
                fields.swap(end - 1, choices.below(end));
            }
            let fields: Vec<_> = fields.into_iter().map(|(name, value)| field(name, value, choices)).collect();
            json.push_str(&format!("{{{}{}}}", space(choices), fields.join(",")));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => json.push_str(&value.to_string()),
    }
    json + &space(choices)
}

fn field(name: &str, value: &Value, choices: &mut Choices) -> String {
    let name = space(choices) + &render_text(name, choices) + &space(choices);
    name + ":" + &render(value, choices)
}

fn space(choices: &mut Choices) -> String {
    ["", "", "", " ", "\n\t", "\r\n  "][choices.below(6)].to_owned()
}

fn render_text(text: &str, choices: &mut Choices) -> String {
    let mut json = String::from("\"");
    for char in text.chars() {
        if choices.below(8) == 0 {
            for unit in char.encode_utf16(&mut [0; 2]) {
                json.push_str(&format!("\\u{unit:04x}"));
            }
        } else if char == '/' && choices.below(2) == 0 {
            json.push_str("\\/");
        } else {
            let quoted = serde_json::to_string(&char).expect("a string");
            json.push_str(&quoted[1..quoted.len() - 1]);
        }
    }
    json + "\""
}

/// One message of a conversation between a client and a model.
#[derive(Debug, Clone)]
pub struct Turn {
    pub assistant: bool,
    pub text: String,
    /// Arguments of a tool call, for an assistant.
    pub call: Option<Map<String, Value>>,
}

pub fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let arguments = prop::collection::btree_map("[a-z]{5,8}", "[a-zA-Z \"\\\\/é]{0,20}", 0..4);
    let turn = (any::<bool>(), ".{1,60}", prop::option::of(arguments)).prop_map(|(assistant, text, call)| Turn {
        assistant,
        text,
        call: call.filter(|_| assistant).map(|call| call.into_iter().map(|(k, v)| (k, Value::String(v))).collect()),
    });
    prop::collection::vec(turn, 1..8)
}

/// The conversation as one client sends it in one turn; every other choice is another way that must not matter.
pub fn conversation(turns: &[Turn], choices: &mut Choices) -> Value {
    let messages: Vec<_> = turns.iter().map(|turn| message(turn, choices)).collect();
    json!({"messages": messages, "temperature": choices.below(2)})
}

fn message(turn: &Turn, choices: &mut Choices) -> Value {
    let mut content = match choices.below(2) {
        0 => Value::String(turn.text.clone()),
        _ => json!([{"type": "text", "text": turn.text}]),
    };
    if let (Some(parts), 0) = (content.as_array_mut(), choices.below(2)) {
        parts[0]["cache_control"] = json!({"type": "ephemeral", "ttl": "1h"});
    }
    if let (Some(parts), true, 0) = (content.as_array_mut(), turn.assistant, choices.below(2)) {
        parts.insert(0, json!({"signature": "s", "thinking": "let me see", "more": "m", "type": "thinking"}));
    }
    let mut message = json!({"role": if turn.assistant { "assistant" } else { "user" }, "content": content});
    if turn.assistant && choices.below(2) == 0 {
        message["reasoning_content"] = json!("let me see");
        message["reasoning_details"] = json!([{"text": "let me see"}]);
    }
    if let Some(call) = &turn.call {
        let arguments = Value::Object(call.clone());
        let arguments = match choices.below(2) {
            0 => arguments,
            _ => Value::String(render(&arguments, choices)),
        };
        let id = format!("call_{}", choices.below(1000));
        message["tool_calls"] =
            json!([{"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}]);
    }
    if choices.below(2) == 0 {
        message["id"] = json!(format!("msg_{}", choices.below(1000)));
        message["__source"] = json!({"kind": "resume"});
    }
    message
}
