//! Mistakes in how workers are set up, as their registrations show them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Finding, Health};
use crate::core::fleet::LOST_AFTER;
use crate::core::worker::{WorkerSpec, WorkerState};
use crate::ops::fleet::Refused;

const CHECK: &str = "workers";

/// What is to be said of them.
pub(super) fn examine(specs: &[(WorkerSpec, Duration)], refused: &[Refused]) -> Vec<Finding> {
    let alive: Vec<&WorkerSpec> = specs.iter().filter(|(_, age)| *age <= LOST_AFTER).map(|(spec, _)| spec).collect();
    let ready = alive.iter().filter(|spec| spec.state == WorkerState::Ready).count();
    let found = format!("{} registered and alive, {ready} ready", alive.len());
    let mut findings = vec![match ready {
        0 => Finding::new(CHECK, Health::Fail, found, "every request is answered 503 or 404 until one is there"),
        _ => Finding::ok(CHECK, found),
    }];
    for refused in refused {
        let found = format!("the registration of {:?} is refused: {}", refused.worker, refused.problem);
        findings.push(Finding::new(CHECK, Health::Fail, found, "mend what the worker registers"));
    }
    findings.extend(sizes(&alive));
    findings.extend(overlaps(&alive));
    findings
}

/// One model that is served with different numbers of ranks: often one server was started without its flag.
fn sizes(alive: &[&WorkerSpec]) -> Vec<Finding> {
    let mut by_model: BTreeMap<(&str, &str), BTreeMap<u32, Vec<&str>>> = BTreeMap::new();
    for spec in alive {
        for model in &spec.models {
            let sizes = by_model.entry((model.as_str(), spec.pool.as_str())).or_default();
            sizes.entry(spec.ranks.size()).or_default().push(spec.id.as_str());
        }
    }
    let mixed = by_model.into_iter().filter(|(_, sizes)| sizes.len() > 1);
    mixed
        .map(|((model, pool), sizes)| {
            let told: Vec<String> =
                sizes.iter().map(|(size, workers)| format!("{size} on {}", workers.join(", "))).collect();
            let found =
                format!("model {model:?} in pool {pool:?} has workers of different dp_size: {}", told.join("; "));
            Finding::new(CHECK, Health::Warn, found, "meant so? each worker gets its share by weight, not by ranks")
        })
        .collect()
}

/// Ranges that overlap in part. Workers that each count from 0 are common and right; a range that begins elsewhere is one
/// of several nodes of one engine, and has to have its ranks for itself.
fn overlaps(alive: &[&WorkerSpec]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, a) in alive.iter().enumerate() {
        for b in &alive[index + 1..] {
            let shares_model = a.models.iter().any(|model| b.serves(model));
            let range = |spec: &WorkerSpec| {
                let start = u32::from(spec.ranks.start().0);
                (start, start + spec.ranks.size())
            };
            let ((a_start, a_end), (b_start, b_end)) = (range(a), range(b));
            let several_nodes = a_start != 0 || b_start != 0;
            if a.pool == b.pool && shares_model && several_nodes && a_start < b_end && b_start < a_end {
                let found = format!(
                    "workers {} (ranks {a_start} to {}) and {} (ranks {b_start} to {}) of pool {:?} overlap",
                    a.id,
                    a_end - 1,
                    b.id,
                    b_end - 1,
                    a.pool.as_str()
                );
                let advice =
                    "nodes of one engine have ranks of their own: set dp_start; separate engines count from 0 each";
                findings.push(Finding::new(CHECK, Health::Warn, found, advice));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::registration::Registration;

    fn worker(id: &str, start: u32, size: u32) -> (WorkerSpec, Duration) {
        (Registration::new(id, "i", &["m"], start, size).check().expect("valid"), Duration::ZERO)
    }

    fn told(specs: &[(WorkerSpec, Duration)]) -> Vec<String> {
        examine(specs, &[]).into_iter().filter(|one| one.health != Health::Ok).map(|one| one.found).collect()
    }

    #[test]
    fn misplaced_ranges_are_told() {
        assert_eq!(told(&[worker("a", 0, 4), worker("b", 0, 4)]), Vec::<String>::new());
        assert_eq!(told(&[worker("a", 0, 4), worker("b", 4, 4)]), Vec::<String>::new());
        let overlap = told(&[worker("a", 0, 4), worker("b", 2, 4)]);
        assert_eq!(overlap, ["workers a (ranks 0 to 3) and b (ranks 2 to 5) of pool \"default\" overlap"]);
        let sizes = told(&[worker("a", 0, 4), worker("b", 0, 1)]);
        assert_eq!(sizes, ["model \"m\" in pool \"default\" has workers of different dp_size: 1 on b; 4 on a"]);
        let silent = (worker("a", 0, 4).0, LOST_AFTER + Duration::from_secs(1));
        assert_eq!(told(&[silent]), ["0 registered and alive, 0 ready"]);
    }
}
