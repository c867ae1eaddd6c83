//! Files of jobs: one body, a line of JSON for each body, or the batch format of OpenAI.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::Xxh3;

use crate::core::id::{Model, RequestId};
use crate::gateway::api::Api;

/// Most bytes of one file; it is read whole before anything is submitted.
const MAX_BYTES: u64 = 2 * 1024 * 1024 * 1024;

/// One job of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Job {
    /// Made of what the job is: the same line has the same id whenever it is submitted.
    pub id: RequestId,
    /// What the file calls it.
    pub custom_id: Option<String>,
    pub model: Model,
    /// The API that the body is for, where the file says it.
    pub api: Option<Api>,
    pub body: Bytes,
}

/// What makes the ids of a file's jobs, besides its lines.
#[derive(Debug, Clone, Default)]
pub(super) struct Naming {
    /// Name of the batch: the same lines under another name are other jobs.
    pub batch: String,
    /// The model, where the bodies' own does not count.
    pub model: Option<Model>,
    /// Further headers.
    pub headers: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct BatchLine<'l> {
    custom_id: Option<String>,
    method: Option<String>,
    url: Option<String>,
    #[serde(borrow)]
    body: Option<&'l RawValue>,
}

#[derive(Deserialize)]
struct Body {
    model: Option<String>,
}

/// Reads a file, or standard input where it is `-`.
pub(super) fn read(path: &Path, naming: &Naming) -> anyhow::Result<Vec<Job>> {
    let shown = path.display();
    let mut text = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(MAX_BYTES + 1).read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut text))
    };
    read.with_context(|| format!("cannot read the jobs in {shown}"))?;
    if text.len() as u64 > MAX_BYTES {
        bail!("{shown} is larger than 2 GiB; split it, and give each part the same --batch");
    }
    parse(&text.into(), naming).with_context(|| shown.to_string())
}

fn parse(text: &Bytes, naming: &Naming) -> anyhow::Result<Vec<Job>> {
    // One body may be written over several lines.
    let lines: Vec<(usize, &[u8])> = match serde_json::from_slice::<&RawValue>(text) {
        Ok(_) => vec![(1, text.trim_ascii())],
        Err(_) => text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).zip(1..).map(|(l, n)| (n, l)).collect(),
    };
    let mut jobs = Vec::new();
    let (mut custom_ids, mut copies) = (HashMap::new(), HashMap::new());
    for (number, line) in lines.into_iter().filter(|(_, line)| !line.is_empty()) {
        let Entry { custom_id, api, body, model } = entry(line, naming).with_context(|| format!("line {number}"))?;
        if let Some(name) = &custom_id
            && let Some(first) = custom_ids.insert(name.clone(), number)
        {
            bail!("line {number}: custom_id {name:?} stands on line {first} already");
        }
        let hash = hash(naming, (custom_id.as_deref(), api), &model, body);
        // The same line twice is two jobs.
        let copy: &mut u64 = copies.entry(hash).or_default();
        let id = format!("j-{:032x}", hash.wrapping_add(u128::from(*copy)));
        *copy += 1;
        let id = RequestId::new(&id).expect("letters, a dash and digits are an id");
        jobs.push(Job { id, custom_id, model, api, body: text.slice_ref(body) });
    }
    if jobs.is_empty() {
        bail!("there are no jobs in it; write one body, or one JSON object a line");
    }
    Ok(jobs)
}

/// What one line says.
struct Entry<'l> {
    custom_id: Option<String>,
    api: Option<Api>,
    body: &'l [u8],
    model: Model,
}

fn entry<'l>(line: &'l [u8], naming: &Naming) -> anyhow::Result<Entry<'l>> {
    let batch: Option<BatchLine<'l>> = serde_json::from_slice(line).ok();
    let (custom_id, api, body) = match batch {
        Some(BatchLine { custom_id: Some(name), body: Some(body), method, url }) => {
            (Some(name), api(method.as_deref(), url.as_deref())?, body.get().as_bytes())
        }
        Some(_) | None => (None, None, line),
    };
    let read: Body = serde_json::from_slice(body).map_err(|e| anyhow!("this is no JSON object of a request: {e}"))?;
    let model = match (&naming.model, read.model) {
        (Some(model), _) => model.clone(),
        (None, Some(name)) => Model::new(&name).map_err(|e| anyhow!("the model {name:?} {e}"))?,
        (None, None) => bail!("the body names no model; give one with --model"),
    };
    Ok(Entry { custom_id, api, body, model })
}

/// Where a line of a batch wants its body posted.
fn api(method: Option<&str>, url: Option<&str>) -> anyhow::Result<Option<Api>> {
    if let Some(method) = method.filter(|method| *method != "POST") {
        bail!("the method is {method:?}; allowed is POST");
    }
    let Some(url) = url else { return Ok(None) };
    let paths = || Api::ALL.map(Api::path).join(", ");
    Api::of_path(url).map(Some).ok_or_else(|| anyhow!("the url is {url:?}; allowed are {}", paths()))
}

fn hash(naming: &Naming, (custom_id, api): (Option<&str>, Option<Api>), model: &Model, body: &[u8]) -> u128 {
    let mut hash = Xxh3::new();
    let mut add = |part: &[u8]| {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    for part in [naming.batch.as_str(), custom_id.unwrap_or_default(), model.as_str()] {
        add(part.as_bytes());
    }
    for (name, value) in &naming.headers {
        add(name.as_bytes());
        add(value.as_bytes());
    }
    if let Some(api) = api {
        add(api.path().as_bytes());
    }
    add(body);
    hash.digest128()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(text: &str, naming: &Naming) -> anyhow::Result<Vec<Job>> {
        parse(&Bytes::copy_from_slice(text.as_bytes()), naming)
    }

    #[test]
    fn one_body_lines_and_the_batch_format() {
        let naming = Naming::default();
        let one = jobs("{\n \"model\": \"m\"\n}\n", &naming).expect("one body");
        assert_eq!((one.len(), &one[0].body[..]), (1, &b"{\n \"model\": \"m\"\n}"[..]));
        let lines = jobs("{\"model\":\"m\"}\r\n\n {\"model\":\"n\",\"body\":{}}\n", &naming).expect("lines");
        assert_eq!(lines.iter().map(|job| job.model.as_str()).collect::<Vec<_>>(), ["m", "n"]);
        let batch =
            r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body": {"model": "m", "n":1e999}}"#;
        let batch = jobs(batch, &naming).expect("a batch");
        assert_eq!((batch[0].custom_id.as_deref(), batch[0].api), (Some("a"), Some(Api::Chat)));
        assert_eq!(&batch[0].body[..], br#"{"model": "m", "n":1e999}"#);
    }

    #[test]
    fn the_same_line_has_the_same_id_and_a_copy_another() {
        let text = "{\"model\":\"m\"}\n{\"model\":\"m\"}\n{\"model\":\"n\"}";
        let ids = |naming: &Naming| -> Vec<String> {
            jobs(text, naming).expect("valid").iter().map(|job| job.id.to_string()).collect()
        };
        let first = ids(&Naming::default());
        assert_eq!(first, ids(&Naming::default()));
        assert!(first[0] != first[1] && first[1] != first[2]);
        let named = ids(&Naming { batch: "monday".into(), ..Naming::default() });
        let with_header = ids(&Naming { headers: vec![("a".into(), "b".into())], ..Naming::default() });
        assert!(!first.contains(&named[0]) && !first.contains(&with_header[0]));
    }

    #[test]
    fn what_is_no_job_is_named_with_its_line() {
        let model = || Naming { model: Some(Model::new("m").expect("valid")), ..Naming::default() };
        for (text, told) in [
            ("", "there are no jobs in it"),
            (
                r#"{"custom_id":"a","url":"/v1/nope","body":{"model":"m"}}"#,
                "line 1: the url is \"/v1/nope\"; allowed are /v1/chat",
            ),
            (
                r#"{"custom_id":"a","method":"DELETE","body":{"model":"m"}}"#,
                "line 1: the method is \"DELETE\"; allowed is POST",
            ),
            ("{\"model\":\"m\"}\nnonsense", "line 2"),
            ("{\"model\":\"m\"}\n{\"messages\":[]}", "line 2"),
            (
                "{\"custom_id\":\"a\",\"body\":{\"model\":\"m\"}}\n{\"custom_id\":\"a\",\"body\":{\"model\":\"n\"}}",
                "line 2: custom_id \"a\" stands on line 1 already",
            ),
        ] {
            let error = format!("{:#}", jobs(text, &Naming::default()).expect_err(text));
            assert!(error.contains(told), "{error}");
        }
        assert_eq!(jobs("{\"messages\":[]}", &model()).expect("the flag names it")[0].model.as_str(), "m");
    }
}
