//! The partitions of a namespace: whether their buckets are there, and whether every one is served.

use super::{Finding, Health, bucket};
use crate::config::RouterConfig;
use crate::core::partition::Partitions;
use crate::nats::bucket::Bucket;
use crate::nats::{Link, pins};
use crate::wire::partitions;
use crate::wire::service::RouterState;
use crate::wire::subject::Subjects;

const CHECK: &str = "partitions";

/// How many partitions the namespace has; `None` where nobody has said yet.
pub(super) async fn count(link: &Link, subjects: &Subjects) -> Option<u16> {
    let told = Bucket::new(link.clone(), &subjects.pins_bucket()).info().await.ok()?;
    partitions::told(&told.description)
}

/// What is told of their buckets: nothing where the namespace is not divided, and is not meant to be.
pub(super) async fn storage(link: &Link, subjects: &Subjects, config: &RouterConfig) -> Vec<Finding> {
    let wanted = config.partitions.count();
    let Some(count) = count(link, subjects).await else { return Vec::new() };
    let mut findings = Vec::new();
    if count != wanted {
        let found = format!("the namespace has {count}, and this configuration says {wanted}");
        let advice = format!("a router of it refuses to start: give it --partitions {count}");
        findings.push(Finding::new(CHECK, Health::Warn, found, advice));
    }
    if count == 1 {
        return findings;
    }
    let mut sound = 0;
    for one in pins::all(link, subjects, count) {
        let mut found = bucket(link, one.name(), config.pin_ttl).await;
        found.retain(|finding| finding.health != Health::Ok);
        sound += u16::from(found.is_empty());
        findings.extend(found);
    }
    if sound == count {
        findings.push(Finding::ok(CHECK, format!("{count}, each with its bucket")));
    }
    findings
}

/// Partitions that no router serves, or only one.
pub(super) fn served(states: &[RouterState]) -> Vec<Finding> {
    let told: Vec<_> =
        states.iter().filter(|state| state.ready).filter_map(|state| state.pins.partitions.as_ref()).collect();
    let Some(count) = told.iter().map(|partitions| partitions.count).max() else { return Vec::new() };
    let lists: Vec<_> = told.iter().filter_map(|told| Partitions::parse(&told.served, told.count).ok()).collect();
    let served_by = |least: usize, most: usize| {
        let all = Partitions::all(count);
        let few = all
            .every()
            .filter(|partition| (least..=most).contains(&lists.iter().filter(|list| list.serves(*partition)).count()));
        few.map(|partition| partition.to_string()).collect::<Vec<_>>().join(",")
    };
    let list = |text: String| Partitions::parse(&text, count).map_or(text, |list| list.to_string());
    let mut findings = Vec::new();
    match served_by(0, 0) {
        none if none.is_empty() => {}
        none => {
            let found = format!("no router that is ready serves {} of {count}", list(none));
            let advice = "their sessions get 503 no_worker; start a router with --partition";
            findings.push(Finding::new(CHECK, Health::Fail, found, advice));
        }
    }
    match served_by(1, 1) {
        one if one.is_empty() => {}
        one => {
            let found = format!("one router alone serves {} of {count}", list(one));
            let advice = "with a second one that has them too, a restart is noticed by nobody";
            findings.push(Finding::new(CHECK, Health::Note, found, advice));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, format!("each of {count} is served by two routers or more")));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::service::{PartitionsState, PinCounts};

    fn router(served: &str, ready: bool) -> RouterState {
        let partitions = Some(PartitionsState { count: 8, served: served.into() });
        RouterState { ready, pins: PinCounts { partitions, ..PinCounts::default() }, ..RouterState::default() }
    }

    fn told(states: &[RouterState]) -> Vec<(Health, String)> {
        served(states).into_iter().map(|finding| (finding.health, finding.found)).collect()
    }

    #[test]
    fn partitions_without_routers_are_told() {
        assert_eq!(told(&[RouterState { ready: true, ..RouterState::default() }]), []);
        let (low, high) = (router("0-3", true), router("4-7", true));
        let note = "one router alone serves 0-7 of 8".to_owned();
        assert_eq!(told(&[low.clone(), high.clone()]), [(Health::Note, note)]);
        let fine = "each of 8 is served by two routers or more".to_owned();
        assert_eq!(told(&[low.clone(), high.clone(), router("0-7", true)]), [(Health::Ok, fine)]);
        let missing = "no router that is ready serves 4-7 of 8".to_owned();
        assert_eq!(told(&[low.clone(), low, router("4-7", false)]), [(Health::Fail, missing)]);
    }
}
