//! From a request's body to the text that a model would see, much as a chat template makes it. The same conversation
//! gives the same text, however its client writes it down.

use xxhash_rust::xxh3::xxh3_64;

use super::answer::Api;
use super::tree::Node;
use crate::wire::Encoding;

/// Longest answer that a body may ask for, in tokens.
const MAX_OUTPUT_TOKENS: u64 = 65_536;
/// What stands before the model's own words.
const ANSWER_OPENS: &str = "<|assistant|>\n";
/// What stands behind every item, and behind the model's own words.
const ITEM_ENDS: &str = "<|end|>\n";
/// Fields that no template shows to the model, and that clients change between turns.
const UNSEEN: [&str; 15] = [
    "annotations",
    "cache_control",
    "call_id",
    "encrypted_content",
    "id",
    "index",
    "logprobs",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "signature",
    "status",
    "tool_call_id",
    "tool_use_id",
    "type",
];
/// Kinds of parts and items that no template shows again.
const UNSEEN_TYPES: [&str; 3] = ["reasoning", "thinking", "redacted_thinking"];
/// A text that one client puts first, with a number that changes by the request.
const BILLING: &str = "x-anthropic-billing-header:";

/// A body, as the engine needs it.
#[derive(Debug, PartialEq)]
pub(super) struct Prompt {
    /// The text to be prefilled, up to where the model's own words begin.
    pub text: String,
    /// The model that the body names.
    pub model: String,
    /// The API that the body is written for.
    pub api: Api,
    /// Whether the answer is to come in parts.
    pub stream: bool,
    /// Longest answer wanted, in tokens; at least 1.
    pub max_tokens: Option<u64>,
    /// Names of the tools that it offers.
    pub tools: Vec<String>,
    /// Results of calls since the user last said something.
    pub results: usize,
    /// The texts whose vectors are wanted.
    pub inputs: Vec<String>,
    /// Whether vectors are wanted in base64.
    pub base64: bool,
}

impl Prompt {
    /// Reads a body, which came over HTTP on this path, if any. The error says what is wrong with it.
    pub(super) fn read(payload: &[u8], encoding: Encoding, path: Option<&str>) -> Result<Self, String> {
        let body: Node = encoding.decode(payload).map_err(|e| format!("the body can't be read: {e}"))?;
        if !matches!(body, Node::Map(_)) {
            return Err("the body is no object".into());
        }
        let api = path.and_then(Api::of_path).unwrap_or_else(|| api(&body));
        let mut text = String::with_capacity(payload.len());
        for key in ["system", "instructions"] {
            if let Some(system) = body.get(key) {
                item(&mut text, "system", |out| content(out, system));
            }
        }
        if let Some(tools) = body.get("tools") {
            item(&mut text, "tools", |out| canonical(out, "", tools));
        }
        let items = body.get("messages").or_else(|| body.get("input"));
        match items.or_else(|| body.get("prompt")) {
            Some(Node::Text(input)) => item(&mut text, "user", |out| line(out, input)),
            Some(items) => items.items().iter().for_each(|node| match node {
                Node::Text(input) => item(&mut text, "user", |out| line(out, input)),
                node => message(&mut text, node),
            }),
            None => return Err("the body has neither messages nor input nor prompt".into()),
        }
        text.push_str(ANSWER_OPENS);
        Ok(Self {
            text,
            model: body.text("model").unwrap_or_default().to_owned(),
            api,
            stream: body.get("stream") == Some(&Node::Flag(true)),
            max_tokens: max_tokens(&body),
            tools: tools(&body),
            results: items.map_or(0, |items| results(items.items())),
            inputs: items.map_or_else(Vec::new, texts),
            base64: body.text("encoding_format") == Some("base64"),
        })
    }

    /// The prompt and the answer to it, as they stand at the beginning of the next turn's prompt.
    pub(super) fn with_answer(&self, answer: &str) -> String {
        [self.text.as_str(), answer, "\n", ITEM_ENDS].concat()
    }
}

/// Tells the APIs apart by what only one of them has.
fn api(body: &Node) -> Api {
    const ANTHROPIC_PARTS: [&str; 7] =
        ["tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document", "server_tool_use"];
    let Some(messages) = body.get("messages") else {
        return if body.get("prompt").is_some() { Api::Completions } else { Api::Responses };
    };
    let parts = || messages.items().iter().filter_map(|m| m.get("content")).flat_map(Node::items);
    let has_part = || parts().any(|part| part.text("type").is_some_and(|kind| ANTHROPIC_PARTS.contains(&kind)));
    let tools = body.get("tools").map_or(&[][..], Node::items);
    let has_tool = || tools.iter().any(|tool| tool.get("function").is_none() && tool.get("custom").is_none());
    if body.get("system").is_some() || has_tool() || has_part() { Api::Messages } else { Api::Chat }
}

/// Names of the tools that a body offers, in any API's shape.
fn tools(body: &Node) -> Vec<String> {
    let named = |tool: &Node| tool.get("function").unwrap_or(tool).text("name").map(str::to_owned);
    body.get("tools").map_or(&[][..], Node::items).iter().filter_map(named).collect()
}

/// How many results of calls stand behind what the user last said.
fn results(items: &[Node]) -> usize {
    items.iter().fold(0, |results, node| {
        let has_result = |node: &Node| node.items().iter().any(|part| part.text("type") == Some("tool_result"));
        let is_result = node.text("role") == Some("tool")
            || node.text("type").is_some_and(|kind| kind.ends_with("_output"))
            || node.get("content").is_some_and(has_result);
        match node.text("role") {
            _ if is_result => results + 1,
            Some("user") => 0,
            Some(_) | None => results,
        }
    })
}

/// A text, or several.
fn texts(node: &Node) -> Vec<String> {
    let one = |node: &Node| match node {
        Node::Text(text) => Some(text.clone()),
        Node::Nothing | Node::Flag(_) | Node::Number(_) | Node::List(_) | Node::Map(_) => None,
    };
    match node {
        Node::List(items) => items.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}

fn max_tokens(body: &Node) -> Option<u64> {
    let names = ["max_completion_tokens", "max_output_tokens", "max_tokens"];
    names.iter().find_map(|name| match body.get(name)? {
        Node::Number(number) => Some(super::count(*number).clamp(1, MAX_OUTPUT_TOKENS)),
        Node::Nothing | Node::Flag(_) | Node::Text(_) | Node::List(_) | Node::Map(_) => None,
    })
}

fn item(out: &mut String, role: &str, body: impl FnOnce(&mut String)) {
    out.push_str("<|");
    out.push_str(role);
    out.push_str("|>\n");
    body(out);
    out.push_str(ITEM_ENDS);
}

/// One item of `messages` or `input`.
fn message(out: &mut String, node: &Node) {
    let kind = node.text("type").unwrap_or_default();
    if UNSEEN_TYPES.contains(&kind) || !matches!(node, Node::Map(_)) {
        return;
    }
    let role = node.text("role").unwrap_or(match kind {
        kind if kind.ends_with("_call") => "assistant",
        kind if kind.ends_with("_output") => "tool",
        _ => "user",
    });
    item(out, role, |out| {
        if let Some(node) = node.get("content") {
            content(out, node);
        }
        fields(out, node, &["role", "content"]);
    });
}

/// A text, or parts of one.
fn content(out: &mut String, node: &Node) {
    match node {
        Node::Text(text) => line(out, text),
        Node::List(parts) => parts.iter().for_each(|part| content(out, part)),
        Node::Map(_) if node.text("type").is_some_and(|kind| UNSEEN_TYPES.contains(&kind)) => (),
        Node::Map(_) => match node.text("text") {
            Some(text) => line(out, text),
            None => fields(out, node, &[]),
        },
        Node::Nothing | Node::Flag(_) | Node::Number(_) => (),
    }
}

fn line(out: &mut String, text: &str) {
    if !text.is_empty() && !text.starts_with(BILLING) {
        out.push_str(text);
        out.push('\n');
    }
}

/// The fields of an object that the model sees, by name, so that their order in the body does not matter.
fn fields(out: &mut String, node: &Node, but: &[&str]) {
    let Node::Map(pairs) = node else { return };
    let seen = |key: &str| !UNSEEN.contains(&key) && !but.contains(&key) && !key.starts_with("__");
    let mut pairs: Vec<_> = pairs.iter().filter(|(key, value)| seen(key) && *value != Node::Nothing).collect();
    pairs.sort_by_key(|(key, _)| key);
    for (key, value) in pairs {
        out.push_str(key);
        out.push('=');
        canonical(out, key, value);
        out.push('\n');
    }
}

/// A structured value in one way of writing.
fn canonical(out: &mut String, key: &str, node: &Node) {
    match node {
        Node::Nothing => (),
        Node::Flag(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Node::Number(number) => out.push_str(&number.to_string()),
        Node::Text(text) if is_blob(key, text) => out.push_str(&format!("<blob {:016x}>", xxh3_64(text.as_bytes()))),
        // Clients write the same arguments down in another order or spacing when they send them again.
        Node::Text(text) if key == "arguments" => match serde_json::from_str(text) {
            Ok(arguments @ Node::Map(_)) => canonical(out, "", &arguments),
            Ok(_) | Err(_) => out.push_str(text),
        },
        Node::Text(text) => out.push_str(text),
        Node::List(items) => items.iter().for_each(|item| {
            canonical(out, key, item);
            out.push('\n');
        }),
        Node::Map(_) => {
            out.push_str("{\n");
            fields(out, node, &[]);
            out.push('}');
        }
    }
}

/// Whether a text is a file or an image rather than words.
fn is_blob(key: &str, text: &str) -> bool {
    matches!(key, "data" | "file_data") || text.starts_with("data:")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: &Value) -> Prompt {
        Prompt::read(body.to_string().as_bytes(), Encoding::Json, None).expect("valid")
    }

    #[test]
    fn one_conversation_has_one_text() {
        let plain = json!({"model": "m", "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1,\"b\":[2]}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
        ]});
        let decorated = json!({"messages": [
            {"content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}], "role": "user"},
            {"role": "assistant", "reasoning_content": "hm", "tool_calls": [
                {"type": "function", "id": "2", "function": {"arguments": "{\"b\": [2], \"a\": 1}", "name": "f"}}]},
            {"role": "tool", "tool_call_id": "2", "content": "done", "__source": {"x": "y"}},
        ], "model": "m"});
        assert_eq!(read(&plain).text, read(&decorated).text);
        let packed = Encoding::MessagePack.encode(&plain);
        assert_eq!(Prompt::read(&packed, Encoding::MessagePack, None).expect("valid"), read(&plain));
    }

    #[test]
    fn a_turn_begins_with_the_turn_before_and_its_answer() {
        let first = json!({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]});
        let second = json!({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "hello"}, {"role": "user", "content": "more"}]});
        let (first, second) = (read(&first), read(&second));
        assert_eq!(first.text, "<|system|>\ns\n<|end|>\n<|user|>\nhi\n<|end|>\n<|assistant|>\n");
        assert!(second.text.starts_with(&first.with_answer("hello")), "{}", second.text);
    }

    #[test]
    fn the_three_apis() {
        assert_eq!(read(&json!({"messages": []})).api, Api::Chat);
        assert_eq!(read(&json!({"messages": [], "tools": [{"type": "function", "function": {}}]})).api, Api::Chat);
        assert_eq!(read(&json!({"messages": [], "tools": [{"name": "f", "input_schema": {}}]})).api, Api::Messages);
        assert_eq!(read(&json!({"messages": [], "system": [{"type": "text", "text": "s"}]})).api, Api::Messages);
        let result = json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]});
        assert_eq!(read(&result).api, Api::Messages);
        assert_eq!(read(&json!({"input": "hi"})).api, Api::Responses);
        assert_eq!(read(&json!({"prompt": ["hi"]})).api, Api::Completions);
        let body = json!({"input": ["a", "b"], "encoding_format": "base64"}).to_string();
        let told = Prompt::read(body.as_bytes(), Encoding::Json, Some("/v1/embeddings")).expect("valid");
        assert_eq!((told.api, told.inputs.len(), told.base64), (Api::Embeddings, 2, true), "the path tells it");
    }

    #[test]
    fn results_are_counted_since_the_user_last_spoke() {
        let of = |items: Value| read(&json!({"messages": items})).results;
        let (user, result) = (json!({"role": "user", "content": "x"}), json!({"role": "tool", "content": "x"}));
        assert_eq!(of(json!([user, result, result])), 2);
        assert_eq!(of(json!([user, result, user])), 0);
        let parts = json!({"role": "user", "content": [{"type": "tool_result", "content": "x"}]});
        assert_eq!(of(json!([user, parts, {"role": "assistant", "content": "y"}])), 1);
        let outputs = json!({"input": [{"role": "user", "content": "x"}, {"type": "function_call", "name": "f"},
            {"type": "function_call_output", "output": "x"}], "tools": [{"type": "function", "name": "f"}]});
        assert_eq!((read(&outputs).results, read(&outputs).tools), (1, vec!["f".to_owned()]));
    }

    #[test]
    fn responses_items() {
        let prompt = read(&json!({"instructions": "be brief", "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [{"text": "hm"}]},
            {"type": "function_call", "id": "1", "call_id": "2", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "2", "output": "done"},
        ], "max_output_tokens": 7, "stream": true}));
        assert_eq!(
            prompt.text,
            "<|system|>\nbe brief\n<|end|>\n<|user|>\nhi\n<|end|>\n<|assistant|>\narguments={\n}\nname=f\n<|end|>\n\
             <|tool|>\noutput=done\n<|end|>\n<|assistant|>\n"
        );
        assert_eq!((prompt.max_tokens, prompt.stream), (Some(7), true));
    }

    #[test]
    fn what_is_no_request_is_refused_and_odd_things_are_not() {
        for bad in ["", "[]", "{", "{}", "\"x\"", "{\"messages\":[]} x"] {
            assert!(Prompt::read(bad.as_bytes(), Encoding::Json, None).is_err(), "{bad:?}");
        }
        let odd = json!({"messages": [1, "x", {"content": 7}, {"role": "user", "content": [null, 1, {"text": 2}]}],
            "max_tokens": -3, "stream": "yes"});
        assert_eq!((read(&odd).max_tokens, read(&odd).stream), (Some(1), false));
        assert_eq!(read(&json!({"messages": [], "max_tokens": 1e300})).max_tokens, Some(MAX_OUTPUT_TOKENS));
    }

    #[test]
    fn files_count_little_and_billing_not_at_all() {
        let image = |data: &str| {
            let part = json!({"type": "image", "source": {"type": "base64", "data": data}});
            read(&json!({"messages": [{"role": "user", "content": [part]}]})).text
        };
        assert!(image(&"A".repeat(100_000)).len() < 200);
        assert_ne!(image("A"), image("B"));
        let system = |n: u8| {
            let billing = format!("x-anthropic-billing-header: cch={n}");
            read(&json!({"messages": [], "system": [{"type": "text", "text": billing}, {"type": "text", "text": "s"}]}))
        };
        assert_eq!(system(1), system(2));
    }
}
