//! Rules that a golden value or a property doesn't show by itself.

use rankpin::core::error::RouteError;
use rankpin::core::session::configured::{BodyField, BodyFields};
use rankpin::core::session::derived::Part;
use rankpin::wire::Encoding;
use rankpin::wire::body::{
    BodyError, MAX_ARGUMENTS_LEVELS, Reading, TracedPlace, Verdict, Wanted, Why, read, read_traced,
};

use super::{EVERYTHING, json, keys, packed, prefixes};

fn twice(field: &'static str, at: usize) -> Result<Reading, BodyError> {
    Err(BodyError::Twice { field, at })
}

#[test]
fn fields_that_routing_depends_on_stand_once() {
    assert_eq!(json(r#"{"model":"a","model":"a"}"#), twice("model", 13));
    assert_eq!(json(r#"{"system":null,"s\u0079stem":null}"#), twice("system", 15));
    assert_eq!(json(r#"{"messages":[],"input":[],"messages":[]}"#), twice("messages", 26));
    assert_eq!(packed(b"\x82\xa5input\xc0\xa5input\xc0"), twice("input", 8));
    for wanted in [
        Wanted { model: true, elements: false, fields: BodyFields::NONE },
        Wanted { model: false, elements: false, fields: BodyFields::NONE },
    ] {
        assert_eq!(read(br#"{"input":1,"input":1}"#, Encoding::Json, wanted), twice("input", 11));
    }
    // Below the top, and other fields, don't matter.
    assert!(json(r#"{"a":{"model":1,"model":2},"b":[{"input":1,"input":2}],"a":1}"#).is_ok());
    assert!(packed(b"\x82\xa1a\x82\xa5model\xc0\xa5model\xc0\xa1a\xc0").is_ok());
}

#[test]
fn the_model_is_the_string_at_the_top_wherever_it_stands() {
    let model = |body: &str| json(body).expect("valid").model().map(|model| model.to_string());
    assert_eq!(
        model(r#"{"messages":[{"model":"no"}],"metadata":{"model":"no"},"mode\u006c":"a\n\u00e9"}"#),
        Ok("a\né".into())
    );
    assert_eq!(model(r#"{"model":null}"#), Err(BodyError::NoModel));
    assert_eq!(model(r#"{"model":["m"]}"#), Err(BodyError::NoModel));
    assert_eq!(model(r#"["model","m"]"#), Err(BodyError::NoModel));
    assert_eq!(model(r#""model""#), Err(BodyError::NoModel));
    let error = model(&format!(r#"{{"model":"{}"}}"#, "m".repeat(257))).expect_err("too long");
    assert_eq!(RouteError::from(error.clone()).code(), "invalid_request");
    assert_eq!(error.to_string(), "the body's model is 257 bytes long, the limit is 256");
}

#[test]
fn a_response_that_goes_on_is_read_whatever_is_wanted() {
    let wanted = Wanted { model: false, elements: false, fields: BodyFields::NONE };
    let read = |body: &str| read(body.as_bytes(), Encoding::Json, wanted).expect("valid").previous_response_id;
    assert_eq!(read(r#"{"input":"hi","previous_response_id":"resp_1"}"#).as_deref(), Some("resp_1"));
    assert_eq!(read(r#"{"previous_response_id":null,"metadata":{"previous_response_id":"no"}}"#), None);
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    for (body, message) in [
        ("", "the body is not valid JSON: the end where a value should be at byte 0"),
        ("\u{feff}{}", "the body starts with a byte order mark"),
        ("{\"a\":01}", "the body is not valid JSON: neither comma nor } at byte 6"),
        ("{\"a\":-}", "the body is not valid JSON: no digit in a number at byte 6"),
        ("{\"a\":1.}", "the body is not valid JSON: no digit in a number at byte 7"),
        ("{\"a\" 1}", "the body is not valid JSON: no colon after a name at byte 5"),
        ("{\"a\":1,}", "the body is not valid JSON: no name in quotes at byte 7"),
        ("[1,]", "the body is not valid JSON: no value at byte 3"),
        ("[1}", "the body is not valid JSON: neither comma nor ] at byte 2"),
        ("{\"a\":nul}", "the body is not valid JSON: no value at byte 5"),
        ("[\"a\tb\"]", "the body is not valid JSON: a control character in a string at byte 3"),
        ("[\"\\ud8\"]", "the body is not valid JSON: \\u without four hex digits at byte 2"),
        ("[\"\\q\"]", "the body is not valid JSON: an escape that JSON does not have at byte 2"),
        ("[\"abc", "the body is not valid JSON: the end inside a string at byte 5"),
        ("[] []", "the body is not valid JSON: bytes after the value at byte 3"),
        ("[{}", "the body is not valid JSON: the end inside an array or object at byte 3"),
    ] {
        assert_eq!(json(body).expect_err(body).to_string(), message);
    }
    for (body, message) in [
        (&b""[..], "the body is not valid MessagePack: the end inside a value at byte 0"),
        (b"\x81\xa1a\xc1", "the body is not valid MessagePack: a byte that MessagePack does not use at byte 3"),
        (b"\x81\xa1\xff\x01", "the body is not valid MessagePack: text that is not UTF-8 at byte 2"),
        (b"\x91\xd9\x03ab", "the body is not valid MessagePack: the end inside a value at byte 5"),
        (b"\x80\x80", "the body is not valid MessagePack: bytes after the value at byte 1"),
    ] {
        assert_eq!(packed(body).expect_err(message).to_string(), message);
    }
}

#[test]
fn text_is_utf8_in_names_and_in_what_does_not_count() {
    for bytes in
        [&b"{\"\xff\":1}"[..], b"{\"a\":\"\xc3\"}", b"{\"tools\":[\"\\n \xed\xa0\x80\"]}", b"{\"model\":\"\xf5\"}"]
    {
        let error = json(bytes).expect_err("not UTF-8").to_string();
        assert!(error.contains("text that is not UTF-8"), "{error}");
    }
    assert!(json("{\"é\":\"日本\"}").is_ok());
}

#[test]
fn shapes_that_are_no_conversation() {
    for body in [
        r#"[{"role":"user","content":"hi"}]"#,
        r#"{"messages":"hi"}"#,
        r#"{"messages":5,"input":"hi"}"#,
        r#"{"messages":{},"input":"hi"}"#,
        r#"{"messages":[],"input":"hi"}"#,
        r#"{"input":{"role":"user"}}"#,
        r#"{"input":true}"#,
        r#"{"system":5,"input":"hi"}"#,
        r#"{"input":"hi","system":{"text":"s"}}"#,
        r#"{"input":null}"#,
        "5",
    ] {
        assert_eq!(prefixes(body), None, "{body}");
    }
    // `input` is not looked at where there are messages.
    assert!(prefixes(r#"{"input":5,"messages":[{"role":"user"}]}"#).is_some());
    assert!(prefixes(r#"{"system":[],"input":""}"#).is_some());
}

#[test]
fn null_is_as_if_missing_for_roles_and_types() {
    let second = |first_item: &str| {
        let body = format!(r#"{{"input":[{first_item},{{"role":"user","content":"z"}}]}}"#);
        prefixes(body).expect("a session").last_assistant().is_some()
    };
    assert!(second(r#"{"role":null,"type":"f_call","name":"f"}"#));
    assert!(second(r#"{"type":"f_call","type":null,"name":"f"}"#));
    assert!(second(r#"{"role":"assistant","role":null}"#));
    assert!(!second(r#"{"role":5,"type":"f_call","name":"f"}"#));
    assert!(!second(r#"{"role":["assistant"],"type":"f_call","name":"f"}"#));
    assert!(!second(r#"{"type":"f_call","type":{},"name":"f"}"#));
    assert!(!second(r#"{"type":"f_call","type":"message","name":"f"}"#));
    assert!(!second(r#"{"content":[{"role":"assistant","content":"x"}]}"#));
    assert!(!second(r#"{"name":"f","arguments":"{\"role\":\"assistant\",\"type\":\"f_call\",\"x\":\"y\"}"}"#));
}

#[test]
fn texts_between_arguments_that_fail_and_succeed_count_once() {
    let item = |arguments: &str, rest: &str| {
        keys(format!(r#"{{"messages":[{{"role":"user","c":{{"a":"b","arguments":{arguments},{rest}}}}}]}}"#))
    };
    let text = serde_json::to_string(r#"{"x":"y","d":{"id":{"q":[1"#).expect("a string");
    // What fails deep inside leaves nothing behind: it counts as the text it is, and so does what follows.
    assert_eq!(item(&text, r#""e":"f""#), item("1", &format!(r#""text":{text},"e":"f""#)));
    assert_eq!(item(&text, r#""id":"f","type":"text""#), item("1", &format!(r#""text":{text}"#)));
}

#[test]
fn arguments_are_looked_into_so_deep_and_no_deeper() {
    let nested = |levels: usize| {
        (0..levels).fold(r#"{"k":"v"}"#.to_owned(), |inside, _| {
            // A backslash as \u005c is one byte longer each level, not twice as long.
            let quoted = inside.replace('\\', r"\u005c").replace('"', r"\u0022");
            format!(r#"{{"arguments":"{quoted}"}}"#)
        })
    };
    let of = |levels| keys(format!(r#"{{"messages":[{{"role":"user","content":{}}}]}}"#, nested(levels)));
    let bare = keys(r#"{"messages":[{"role":"user","content":"v"}]}"#);
    assert_eq!(of(1), bare);
    assert_eq!(of(MAX_ARGUMENTS_LEVELS), bare);
    assert_ne!(of(MAX_ARGUMENTS_LEVELS + 1), bare);
}

#[test]
fn messagepack_names_that_are_containers_hide_what_is_in_them() {
    // {"messages": [{["role"]: "user", {"a": "b"}: "hi", 5: "yo", "role": "user"}], [{"model": 1}]: 2}
    let mut body =
        b"\x82\xa8messages\x91\x84\x91\xa4role\xa4user\x81\xa1a\xa1b\xa2hi\x05\xa2yo\xa4role\xa4user".to_vec();
    body.extend(b"\x91\x81\xa5model\x01\x02");
    let reading = read(&body, Encoding::MessagePack, EVERYTHING).expect("valid");
    let same = json(r#"{"messages":[{"role":"user","a":["user","hi","yo"]}]}"#).expect("valid");
    assert_eq!(reading.elements, same.elements);
}

/// What the fields that may name a session say, in JSON and in MessagePack.
fn session(body: &str, order: &[BodyField]) -> Option<(BodyField, String)> {
    let wanted = Wanted { model: false, elements: true, fields: order.iter().copied().collect() };
    let found = |body: &[u8], encoding| {
        let reading = read(body, encoding, wanted).expect("valid");
        reading.fields.first(order).map(|(field, id)| (field, id.to_owned()))
    };
    let of_json = found(body.as_bytes(), Encoding::Json);
    // A name that stands twice has no counterpart in a map that was parsed.
    if body.matches("\"conversation\"").count() < 2 && body.matches("\"metadata\"").count() < 2 {
        let value: serde_json::Value = serde_json::from_str(body).expect("valid");
        let packed = rmp_serde::to_vec_named(&value).expect("plain data");
        assert_eq!(found(&packed, Encoding::MessagePack), of_json, "{body}");
    }
    of_json
}

#[test]
fn fields_name_sessions_where_they_are_wanted() {
    use BodyField::{Conversation, MetadataUserId, PromptCacheKey, SessionId};
    let user = r#"{"x":"y","user_id":"{\"session_id\":\"s-1\"}","z":[{"user_id":"no"}]}"#;
    for (body, order, expected) in [
        (r#"{"session_id":" a ","messages":[]}"#, &[SessionId][..], Some((SessionId, "a"))),
        (r#"{"messages":[{"session_id":"no"}],"x":{"session_id":"no"}}"#, &[SessionId], None),
        (r#"{"session_id":"a"}"#, &[PromptCacheKey], None),
        (r#"{"session_id":7}"#, &[SessionId], None),
        (r#"{"session_id":{"id":"no"}}"#, &[SessionId], None),
        (r#"{"session_id":"  ","prompt_cache_key":"k"}"#, &[SessionId, PromptCacheKey], Some((PromptCacheKey, "k"))),
        (r#"{"session_id":"a","prompt_cache_key":"k"}"#, &[PromptCacheKey, SessionId], Some((PromptCacheKey, "k"))),
        (r#"{"conversation":"c"}"#, &[Conversation], Some((Conversation, "c"))),
        (r#"{"conversation":{"x":{"id":"no"},"id":"c"}}"#, &[Conversation], Some((Conversation, "c"))),
        (r#"{"conversation":{"id":null,"name":"no"}}"#, &[Conversation], None),
        (r#"{"conversation":["no"]}"#, &[Conversation], None),
        (r#"{"conversation":"a","conversation":null}"#, &[Conversation], None),
        (r#"{"conversation":"a","conversation":{"id":"b","id":"c"}}"#, &[Conversation], Some((Conversation, "c"))),
        (&format!(r#"{{"metadata":{user}}}"#), &[MetadataUserId], Some((MetadataUserId, "s-1"))),
        (&format!(r#"{{"metadata":{user},"metadata":{{}}}}"#), &[MetadataUserId], None),
        (r#"{"metadata":{"user_id":"alice"}}"#, &[MetadataUserId], None),
        (r#"{"metadata":"{\"session_id\":\"no\"}"}"#, &[MetadataUserId], None),
    ] {
        assert_eq!(session(body, order), expected.map(|(field, id)| (field, id.to_owned())), "{body}");
    }
}

#[test]
fn fields_beside_a_conversation_change_none_of_its_keys() {
    let plain = json(r#"{"messages":[{"role":"user","content":"a"}]}"#).expect("valid");
    let body = r#"{"conversation":{"id":"c"},"messages":[{"role":"user","content":"a"}],"metadata":{"user_id":"u"}}"#;
    let wanted = Wanted { fields: BodyField::NAMED.map(|(_, field)| field).into_iter().collect(), ..EVERYTHING };
    let with_fields = read(body.as_bytes(), Encoding::Json, wanted).expect("valid");
    assert_eq!(with_fields.elements, plain.elements);
    let deep =
        format!(r#"{{"conversation":{{"id":"c","x":{}{}}},"session_id":"s"}}"#, "[".repeat(130), "]".repeat(130));
    let reading = read(deep.as_bytes(), Encoding::Json, wanted).expect("valid");
    assert_eq!(
        reading.fields.first(&[BodyField::SessionId]),
        Some((BodyField::SessionId, "s")),
        "however deep others are"
    );
}

#[test]
fn what_is_left_out_is_told_with_the_reason() {
    let body = r#"{"input":[{"role":"x","content":"not looked at"}],
        "messages":["no item",null,
            {"role":"assistant","content":[
                {"type":"thinking","thinking":"hm","extra":"inside"},
                {"text":"said","annotations":[{"url":"u"}]},
                {"content":"before its type","type":"reasoning"}
            ],"id":"m1"},
            [],
            {"role":"tool","content":"x-anthropic-billing-header: 7","arguments":"{\"a\":\"deep\",\"id\":\"i\"}"},
            {"type":"reasoning","summary":"nothing counts"}],
        "system":"be brief"}"#;
    let (_, seen) = read_traced(body.as_bytes(), Encoding::Json, EVERYTHING).expect("valid");
    let told: Vec<_> = seen
        .iter()
        .map(|traced| {
            let texts = traced.texts.iter().map(|text| match &text.verdict {
                Verdict::Counts => format!("+{}={}", text.name, text.text),
                Verdict::LeftOut(Why::Under(name)) => format!("-{}={} under {name}", text.name, text.text),
                Verdict::LeftOut(Why::Reasoning(kind)) => format!("-{}={} in {kind}", text.name, text.text),
                Verdict::LeftOut(Why::Billing) => format!("-{}=billing", text.name),
            });
            (traced.place, traced.element.map(|element| element.part), texts.collect::<Vec<_>>().join(" "))
        })
        .collect();
    let expected = [
        (TracedPlace::System, Some(Part::System), "+system=be brief"),
        (
            TracedPlace::Message(2),
            Some(Part::AssistantItem),
            "+role=assistant -type=thinking under type -thinking=hm in thinking -extra=inside in thinking +text=said \
             -annotations=u under annotations -content=before its type in reasoning -type=reasoning under type \
             -id=m1 under id",
        ),
        (TracedPlace::Message(4), Some(Part::Item), "+role=tool -content=billing +a=deep -id=i under id"),
        (TracedPlace::Message(5), None, "-type=reasoning under type -summary=nothing counts in reasoning"),
    ];
    assert_eq!(told, expected.map(|(place, part, texts)| (place, part, texts.to_owned())));
    let (_, seen) = read_traced(br#"{"input":"hi"}"#, Encoding::Json, EVERYTHING).expect("valid");
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].place, seen[0].texts.len()), (TracedPlace::Input(0), 2));
}
