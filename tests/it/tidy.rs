//! Rules of the source tree that neither compiler nor linter checks. Each failure says what to do.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Which modules each module may use. The direction is the design: the further down, the less it knows. A new
/// module is added here, where a reader sees what it depends on.
const MAY_USE: [(&str, &[&str]); 20] = [
    (
        "cli",
        &[
            "bench",
            "bridge",
            "demo",
            "explain",
            "gateway",
            "replay",
            "up",
            "ops",
            "top",
            "config",
            "router",
            "worker",
            "client",
            "sim",
            "local",
            "telemetry",
            "nats",
            "wire",
            "core",
        ],
    ),
    ("up", &["bridge", "gateway", "router", "config", "sim", "worker", "local", "nats", "core"]),
    ("demo", &["client", "sim", "local", "nats", "wire", "core"]),
    ("bench", &["client", "local", "nats", "wire", "core"]),
    ("explain", &["config", "nats", "wire", "core"]),
    ("top", &["ops", "nats", "wire", "core"]),
    ("ops", &["config", "nats", "wire", "core"]),
    ("replay", &["core"]),
    ("gateway", &["config", "client", "telemetry", "nats", "wire", "core"]),
    ("router", &["config", "telemetry", "nats", "wire", "core"]),
    ("bridge", &["worker", "nats", "wire", "core"]),
    ("sim", &["worker", "nats", "wire", "core"]),
    ("worker", &["telemetry", "nats", "wire", "core"]),
    ("client", &["nats", "wire", "core"]),
    ("local", &[]),
    ("config", &["telemetry", "nats", "wire", "core"]),
    ("telemetry", &["core"]),
    ("nats", &["wire", "core"]),
    ("wire", &["core"]),
    ("core", &[]),
];

/// What the core may not name: it takes time and randomness as arguments, waits for nothing and logs nothing.
const IMPURE: [&str; 8] =
    ["tokio", "tracing", "Instant::now", "SystemTime", "rand::rng()", "std::env", "std::fs", "std::net"];

/// Longest file, in lines of code: without comments, empty lines and unit tests.
const MAX_LINES: usize = 450;

struct Source {
    /// From the project's root, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// Lines with their numbers, without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate().map(|(index, line)| (index + 1, line));
        lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// The module directly under the crate's root; none for `lib.rs` and `main.rs`.
    fn module(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("src/")?;
        let first = inside.split('/').next()?;
        match first.strip_suffix(".rs") {
            Some("lib" | "main") => None,
            Some(module) => Some(module),
            None => Some(first),
        }
    }
}

fn sources(dir: &str) -> Vec<Source> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&Path::new(ROOT).join(dir), &mut found);
    found.sort();
    let read = |path: PathBuf| Source {
        text: std::fs::read_to_string(&path).expect("sources are UTF-8"),
        path: path.strip_prefix(ROOT).expect("under the root").to_str().expect("UTF-8").replace('\\', "/"),
    };
    found.into_iter().map(read).collect()
}

/// The modules of this crate that a line names: `crate::core::id`, `use crate::{core, wire}`.
fn modules_named(line: &str) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut named = BTreeSet::new();
    for (at, _) in line.match_indices("crate::") {
        let own = !line[..at].ends_with(|c: char| is_word(c) || c == '$');
        let rest = &line[at + "crate::".len()..];
        let group = rest.strip_prefix('{').map(|inside| inside.split('}').next().unwrap_or(inside));
        for path in group.unwrap_or(rest).split(',') {
            let path = path.trim();
            let module = path.split(|c| !is_word(c)).next().unwrap_or_default();
            if own && !module.is_empty() {
                named.insert(module);
            }
            if group.is_none() {
                break;
            }
        }
    }
    named
}

#[test]
fn modules_named_in_a_line() {
    let named = |line| modules_named(line).into_iter().collect::<Vec<_>>();
    assert_eq!(named("use crate::core::id::{DpRank, Model};"), ["core"]);
    assert_eq!(named("use crate::{core::id, wire};"), ["core", "wire"]);
    assert_eq!(named("let x = crate::nats::link::describe(&e); use rankpin_crate::sim;"), ["nats"]);
    assert!(named("pub(crate) fn x()").is_empty());
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for source in sources("src") {
        let Some(module) = source.module() else { continue };
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == module) else {
            wrong.push(format!("{}: module {module} is not in the table MAY_USE of tests/it/tidy.rs", source.path));
            continue;
        };
        for (number, line) in source.code() {
            for used in modules_named(line) {
                // Names of the root that are no modules (macros, types) are none of this rule's business.
                let is_module = MAY_USE.iter().any(|(name, _)| *name == used);
                if is_module && used != module && !allowed.contains(&used) {
                    wrong.push(format!("{}:{number}: {module} may not use {used}", source.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Lines of the sources that hold one of the words, where the rule holds.
fn lines_with(words: &[&str], holds: impl Fn(&Source) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources("src").iter().filter(|source| holds(source)) {
        for (number, line) in source.code() {
            for word in words.iter().filter(|word| line.contains(**word)) {
                found.push(format!("{}:{number}: names {word}", source.path));
            }
        }
    }
    found
}

#[test]
fn only_the_nats_module_names_the_nats_library() {
    let found = lines_with(&["async_nats"], |source| source.module() != Some("nats"));
    // The log filter names the library's own log target, not its code.
    let found: Vec<String> = found.into_iter().filter(|line| !line.starts_with("src/telemetry/logging.rs")).collect();
    assert!(found.is_empty(), "add what is needed to src/nats instead:\n{}", found.join("\n"));
}

#[test]
fn the_core_is_pure() {
    // Its tests begin at some moment, from which they step time themselves.
    let is_pure = |source: &Source| source.module() == Some("core") && source.path != "src/core/testing.rs";
    let found = lines_with(&IMPURE, is_pure);
    assert!(found.is_empty(), "pass it in as an argument instead:\n{}", found.join("\n"));
}

#[test]
fn files_are_short_enough_to_read() {
    let mut long = Vec::new();
    for source in sources("src").into_iter().chain(sources("tests")) {
        let code = source.code().map(|(_, line)| line.trim()).filter(|line| !line.is_empty());
        let lines = code.take_while(|line| *line != "mod tests {").count();
        if lines > MAX_LINES {
            long.push(format!("{}: {lines} lines of code, {MAX_LINES} are allowed: split it", source.path));
        }
    }
    assert!(long.is_empty(), "\n{}", long.join("\n"));
}

#[test]
fn sections_of_the_protocol_that_comments_name_are_there() {
    let protocol = std::fs::read_to_string(Path::new(ROOT).join("docs/protocol.md")).expect("readable");
    let headings: BTreeSet<&str> = protocol
        .lines()
        .filter_map(|line| line.strip_prefix("## ").or_else(|| line.strip_prefix("### ")))
        .filter_map(|heading| heading.split(' ').next())
        .map(|number| number.trim_end_matches('.'))
        .collect();
    let mut missing = Vec::new();
    for source in sources("src") {
        for (_, rest) in
            source.text.match_indices("rotocol section ").map(|(at, word)| (at, &source.text[at + word.len()..]))
        {
            let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
            let number = rest[..end].trim_end_matches('.');
            if !headings.contains(number) {
                missing.push(format!("{}: protocol section {number}", source.path));
            }
        }
    }
    assert!(missing.is_empty(), "docs/protocol.md has no such sections:\n{}", missing.join("\n"));
}
