//! The explanation for people.

use std::fmt::Write as _;

use super::cluster::{Candidate, Compared};
use super::compare::{Comparison, Side};
use super::show;
use super::turn::{Class, Element, Turn};
use super::{Cluster, Explanation};

/// One request, on as many lines as it takes.
pub fn explanation(explained: &Explanation) -> String {
    let Explanation { turn, cluster } = explained;
    let mut out = String::new();
    head(&mut out, turn);
    keys(&mut out, turn);
    elements(&mut out, turn);
    if let Some(cluster) = cluster {
        live(&mut out, cluster);
    }
    out
}

/// Two requests.
pub fn comparison(comparison: &Comparison) -> String {
    let mut out = String::new();
    let verdict = if comparison.continues { "continues" } else { "does NOT continue" };
    line(&mut out, &format!("The second {verdict} the first: {}.", comparison.because));
    if let Some(common) = comparison.common_items {
        line(&mut out, &format!("Both begin with the same {common} item(s) that count."));
    }
    if let Some(difference) = &comparison.difference {
        let at = |item: &Option<String>| item.clone().unwrap_or_else(|| "(its end)".into());
        let (first, second) = (at(&difference.first_item), at(&difference.second_item));
        line(&mut out, &format!("They first differ at {first} of the first and {second} of the second:"));
        side(&mut out, "first", difference.first.as_ref());
        side(&mut out, "second", difference.second.as_ref());
        if difference.first.is_none() && difference.second.is_none() {
            line(&mut out, "  the same texts, of another kind of element");
        }
    }
    out
}

fn side(out: &mut String, which: &str, side: Option<&Side>) {
    let text = side.map_or_else(|| "nothing more".to_owned(), |side| format!("{}: {}", side.name, side.text));
    line(out, &format!("  only in the {which:<6}  {text}"));
}

fn head(out: &mut String, turn: &Turn) {
    let class = match turn.class {
        Class::Named => "a turn of a named session",
        Class::Chained => "a turn that goes on from a response",
        Class::Opening => "an opening turn of a session that nothing names",
        Class::LaterTurn => "a later turn of a session that nothing names",
        Class::Sessionless => "a request without a session",
    };
    field(out, "request", class);
    match &turn.alias {
        Some(alias) => field(out, "model", &format!("{} (asked for as {alias})", turn.model)),
        None => field(out, "model", &turn.model),
    }
    if let Some(tenant) = &turn.tenant {
        field(out, "tenant", tenant);
    }
    let session = turn.session.as_deref().map_or_else(|| "none".to_owned(), show::session);
    field(out, "session", &session);
    field(out, "from", &turn.source);
    if let Some(parent) = &turn.parent {
        field(out, "parent", &show::session(parent));
    }
    for note in &turn.notes {
        field(out, "note", note);
    }
}

fn keys(out: &mut String, turn: &Turn) {
    if turn.keys.is_empty() {
        return;
    }
    line(
        out,
        "\nPrefix keys, one for each item that counts; a pin is looked up under them from the last but one back to the first:",
    );
    for key in &turn.keys {
        let who = if key.assistant { "assistant" } else { "" };
        let looked_up = if key.looked_up { "looked up" } else { "full input, never looked up" };
        let pinned = key.pinned.map_or_else(String::new, |when| format!("; pinned {when}"));
        line(out, &format!("  {:<14} {who:<9} {}  {looked_up}{pinned}", key.item, key.key));
    }
}

fn elements(out: &mut String, turn: &Turn) {
    if turn.elements.is_empty() {
        return;
    }
    line(out, "\nTexts: + counts, - is left out. Order within an item, field names and numbers don't count:");
    for element in &turn.elements {
        line(out, &format!("  {}{}", element.item, kind(element)));
        for text in &element.texts {
            let (mark, why) = match &text.why {
                None => ("+", String::new()),
                Some(why) => ("-", format!("  ({why})")),
            };
            line(out, &format!("    {mark} {:<10} {}{why}", text.name, text.text));
        }
    }
}

fn kind(element: &Element) -> &'static str {
    match (element.counts, element.assistant) {
        (false, _) => "  nothing in it counts: it gives no key",
        (true, true) => "  (the assistant's)",
        (true, false) => "",
    }
}

fn live(out: &mut String, cluster: &Cluster) {
    line(out, &format!("\nPins: {} key(s) were looked up, {} hold something.", cluster.looked_up, cluster.found.len()));
    for (index, found) in cluster.found.iter().enumerate() {
        let mark = if cluster.follows == Some(index) { ">" } else { " " };
        let placement = found.placement.as_deref().unwrap_or("nothing (deleted or unreadable)");
        let shared = if found.shared { ", shared by several conversations: passed over" } else { "" };
        let root = found.root.as_ref().map_or_else(String::new, |root| format!(", root {}", show::session(root)));
        let (revision, age) = (found.revision, found.age_s);
        line(out, &format!("  {mark} {} → {placement} (revision {revision}, {age} s old{root}){shared}", found.of));
        line(out, &format!("      key {}", found.key));
    }
    if cluster.follows.is_none() {
        line(out, "  None of them is followed.");
    }
    line(out, "\nWorkers, as a new placement:");
    for worker in &cluster.workers {
        let mark = if worker.open { "+" } else { "-" };
        let score = match worker.score {
            Some(Compared::RelativeLoad(load)) => format!(", relative load {load:.3}"),
            Some(Compared::Cost(tokens)) => format!(", cost {tokens:.0} tokens without what is cached there"),
            None => String::new(),
        };
        line(out, &format!("  {mark} {:<16} {}{score}{}", worker.placement, worker.standing, load(worker)));
    }
    if cluster.workers.is_empty() {
        line(out, "  None is registered.");
    }
    let placement = cluster.placement.as_deref().unwrap_or("nowhere");
    line(out, &format!("\nIt would go to {placement} ({}): {}.", cluster.decision, cluster.because));
    for note in &cluster.notes {
        field(out, "note", note);
    }
}

/// What a worker reports of its load, after a comma each.
fn load(worker: &Candidate) -> String {
    let mut told = String::new();
    if let Some(inflight) = worker.inflight {
        let most = worker.max_inflight.map_or_else(String::new, |most| format!(" of {most}"));
        told += &format!(", {inflight}{most} in flight");
    }
    if let Some(queued) = worker.queued.filter(|queued| *queued > 0) {
        told += &format!(", {queued} queued");
    }
    if let Some(percent) = worker.kv_used_percent {
        told += &format!(", {percent} % of its blocks in use");
    }
    told
}

fn field(out: &mut String, name: &str, value: &str) {
    line(out, &format!("{name:<8} {value}"));
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "{text}").expect("a String takes every text");
}
