//! Two turns: whether a router takes the second for a continuation of the first, and where they part if not.

use serde::Serialize;

use super::show;
use super::turn::{Class, Turn, item};
use crate::wire::body::{Traced, TracedPlace, TracedText, Verdict};

/// What becomes of two turns.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// Whether the second goes where the first went.
    pub continues: bool,
    /// Why, in a sentence.
    pub because: String,
    /// Items that both begin with; `None` where their texts are not what decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_items: Option<usize>,
    /// Where their texts first differ, if they do within the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
}

/// The first place where two turns differ.
#[derive(Debug, Serialize)]
pub struct Difference {
    /// The element of the first turn, where it has one there.
    pub first_item: Option<String>,
    /// The element of the second.
    pub second_item: Option<String>,
    /// The text of the first that the second doesn't have in that element.
    pub first: Option<Side>,
    /// The text of the second that the first doesn't have.
    pub second: Option<Side>,
}

/// One of two texts that differ.
#[derive(Debug, Serialize)]
pub struct Side {
    /// The nearest name before it.
    pub name: String,
    /// The text around the first character that differs.
    pub text: String,
    /// Its length.
    pub bytes: usize,
}

/// Compares two turns by what a router would look up for the second after it has pinned the first.
pub fn compare(first: &Turn, second: &Turn) -> Comparison {
    let told = |continues, because: String| Comparison { continues, because, common_items: None, difference: None };
    if (&first.model, &first.tenant) != (&second.model, &second.tenant) {
        return told(
            false,
            "they are of two models or tenants: each has its own sessions, and keys begin with the model".into(),
        );
    }
    match (first.class, second.class) {
        (Class::Named, Class::Named) if first.session == second.session => {
            told(true, format!("both name the session {}", shown(first)))
        }
        (Class::Named, Class::Named) => {
            let places = if first.source == second.source { String::new() } else { format!(" ({}; {})", first.source, second.source) };
            told(false, format!("they name two sessions, {} and {}{places}", shown(first), shown(second)))
        }
        (Class::Named, _) | (_, Class::Named) => {
            let which = if first.class == Class::Named { "first" } else { "second" };
            told(false, format!("only the {which} names its session; a named session and a derived one are never the same"))
        }
        (_, Class::Chained) if first.session == second.session => {
            told(true, "both go on from the same response".into())
        }
        (_, Class::Chained) => told(
            false,
            "the second goes on from a response: it follows the worker that named that response when it ended, whatever its \
             text says; compare its previous_response_id with the id in the answer to the first"
                .into(),
        ),
        (Class::Chained, _) => {
            told(false, "the first goes on from a response, so its text was not pinned; the second is looked up by its text".into())
        }
        (Class::Sessionless, _) | (_, Class::Sessionless) => told(false, "one of them has no session".into()),
        (Class::Opening | Class::LaterTurn, Class::Opening | Class::LaterTurn) => by_text(first, second),
    }
}

fn shown(turn: &Turn) -> String {
    show::session(turn.session.as_deref().unwrap_or_default())
}

fn by_text(first: &Turn, second: &Turn) -> Comparison {
    let prefixes = |turn: &'_ Turn| turn.identity.prefixes.clone().expect("these classes are those that have prefixes");
    let (a, b) = (prefixes(first), prefixes(second));
    let common = a.keys().iter().zip(b.keys()).take_while(|(a, b)| a == b).count();
    let difference = if common == a.keys().len() { None } else { Some(difference(&first.seen, &second.seen)) };
    let told = |continues, because: String| Comparison { continues, because, common_items: Some(common), difference };
    if b.strict().contains(&a.full()) {
        return told(true, "the second begins with the whole input of the first".into());
    }
    if a.full() == b.full() {
        let because = "both have the same input: a router never looks up a request's full input, so that equal first turns \
                       spread; where the model has spoken in them, both follow the pin of that prefix";
        return told(a.last_assistant().is_some(), because.into());
    }
    match a.last_assistant() {
        Some(key) if b.strict().contains(&key) => told(
            true,
            "the second begins with the first up to its last item of the assistant, which is pinned too; behind that they differ"
                .into(),
        ),
        Some(_) | None if common > 0 => told(
            false,
            format!(
                "they have the first {common} item(s) in common, and part before anything that the first pins; only a pin of an \
                 earlier turn may hold them together"
            ),
        ),
        Some(_) | None => told(false, "they part before the end of the first item".into()),
    }
}

/// Where two conversations part: the first element that does not count the same.
fn difference(first: &[Traced], second: &[Traced]) -> Difference {
    let counted = |seen: &[Traced]| seen.iter().filter(|traced| traced.element.is_some()).cloned().collect::<Vec<_>>();
    let (first, second) = (counted(first), counted(second));
    let hash = |traced: &Traced| traced.element.map(|element| (traced.place == TracedPlace::System, element.hash));
    let at = first.iter().zip(&second).take_while(|(a, b)| hash(a) == hash(b)).count();
    let (a, b) = (first.get(at), second.get(at));
    let only_in = |one: Option<&Traced>, other: Option<&Traced>| one.and_then(|one| missing(one, other));
    let (only_a, only_b) = (only_in(a, b), only_in(b, a));
    let place = match (&only_a, &only_b) {
        (Some(a), Some(b)) => show::first_difference(&a.text, &b.text),
        (Some(_), None) | (None, Some(_) | None) => 0,
    };
    let side =
        |text: TracedText| Side { name: text.name, text: show::around(&text.text, place), bytes: text.text.len() };
    Difference {
        first_item: a.map(|traced| item(traced.place)),
        second_item: b.map(|traced| item(traced.place)),
        first: only_a.map(side),
        second: only_b.map(side),
    }
}

/// The first counted text of an element that the other does not count as often.
fn missing(one: &Traced, other: Option<&Traced>) -> Option<TracedText> {
    let counted = |traced: &Traced| {
        let texts = traced.texts.iter().filter(|text| text.verdict == Verdict::Counts);
        texts.cloned().collect::<Vec<_>>()
    };
    let mut left = other.map(counted).unwrap_or_default();
    counted(one).into_iter().find(|text| match left.iter().position(|other| other.text == text.text) {
        Some(index) => {
            left.swap_remove(index);
            false
        }
        None => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Flags};
    use crate::explain::{Given, read};

    fn turn(headers: &[(&str, &str)], body: &str) -> Turn {
        let config = config::resolve(&Flags::new(), &|_| None).expect("the defaults are valid");
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let given = Given { headers, body: body.as_bytes().to_vec(), model: None };
        read(&given, &config).expect("valid")
    }

    fn body(items: &[(&str, &str)]) -> String {
        let items = items.iter().map(|(role, text)| serde_json::json!({"role": role, "content": text}));
        serde_json::json!({"model": "m", "messages": items.collect::<Vec<_>>()}).to_string()
    }

    fn by_text(first: &[(&str, &str)], second: &[(&str, &str)]) -> Comparison {
        compare(&turn(&[], &body(first)), &turn(&[], &body(second)))
    }

    const OPENING: [(&str, &str); 2] = [("system", "be brief"), ("user", "hi")];

    #[test]
    fn a_turn_continues_what_it_begins_with() {
        let second = [OPENING[0], OPENING[1], ("assistant", "hello"), ("user", "go on")];
        let compared = by_text(&OPENING, &second);
        assert_eq!((compared.continues, compared.common_items, compared.difference.is_some()), (true, Some(2), false));
        // What a client adds to its last message and takes away again breaks nothing behind an answer.
        let decorated = [second[0], second[1], second[2], ("user", "go on <now: 12:00>")];
        let third = [second[0], second[1], second[2], second[3], ("assistant", "so"), ("user", "and on")];
        let compared = by_text(&decorated, &third);
        assert_eq!((compared.continues, compared.common_items), (true, Some(3)));
        let difference = compared.difference.expect("the last message differs");
        assert_eq!(difference.first_item.as_deref(), Some("messages[3]"));
        assert_eq!(difference.second.expect("there").text, "\"go on\"");
    }

    #[test]
    fn a_turn_that_changes_what_was_said_is_told_where() {
        let other = [("system", "be brief, it is 12:01"), OPENING[1], ("assistant", "hello"), ("user", "go on")];
        let compared = by_text(&OPENING, &other);
        assert!(!compared.continues);
        let difference = compared.difference.expect("the first item differs");
        assert_eq!((difference.first_item.as_deref(), compared.common_items), (Some("messages[0]"), Some(0)));
        let second = difference.second.expect("it has another text");
        assert_eq!((second.name.as_str(), second.text.as_str()), ("content", "\"be brief, it is 12:01\""));
        let shorter = by_text(&[OPENING[0], OPENING[1], ("user", "again")], &OPENING);
        assert!(!shorter.continues);
        let difference = shorter.difference.expect("the second ends before");
        assert_eq!((difference.first_item.as_deref(), difference.second_item), (Some("messages[2]"), None));
        let again = by_text(&OPENING, &OPENING);
        assert!(!again.continues && again.because.contains("never looks up a request's full input"));
    }

    #[test]
    fn names_and_responses_decide_before_texts() {
        let (opening, chained) = (body(&OPENING), r#"{"model":"m","input":"x","previous_response_id":"r"}"#);
        let plain = turn(&[], &opening);
        let named = |id| turn(&[("thread-id", id)], &opening);
        assert!(compare(&named("a"), &named("a")).continues);
        for (first, second, told) in [
            (&named("a"), &named("b"), "two sessions, \"a\" and \"b\""),
            (&named("a"), &plain, "only the first names its session"),
            (&plain, &turn(&[], chained), "the second goes on from a response"),
            (&turn(&[], chained), &plain, "the first goes on from a response"),
            (&plain, &turn(&[], r#"{"model":"m"}"#), "has no session"),
            (&plain, &turn(&[], &opening.replace(r#""m""#, r#""n""#)), "two models or tenants"),
        ] {
            let compared = compare(first, second);
            assert!(!compared.continues && compared.because.contains(told), "{}", compared.because);
        }
        assert!(compare(&turn(&[], chained), &turn(&[], chained)).continues);
    }

    #[test]
    fn an_item_is_the_same_in_another_order_and_another_without_its_doubles() {
        let item =
            |parts: &str| turn(&[], &format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{parts}]}}]}}"#));
        let (a, b) = (r#"{"type":"text","text":"a"}"#, r#"{"text":"b","type":"text"}"#);
        let same = compare(&item(&format!("{a},{b}")), &item(&format!("{b},{a}")));
        assert_eq!(same.common_items, Some(1));
        let twice = compare(&item(&format!("{a},{a},{b}")), &item(&format!("{a},{b}")));
        let difference = twice.difference.expect("a text is missing");
        assert_eq!(
            (difference.first.expect("it has one more").text.as_str(), difference.second.is_none()),
            ("\"a\"", true)
        );
    }
}
