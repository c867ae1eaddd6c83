//! An engine's figures, from a page in Prometheus' text format.

use super::engines::Figures;

/// Ranks of one server that are looked at.
const MAX_LOCAL_RANKS: usize = 65_536;

/// What one rank says of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RankFigures {
    /// Requests that it works on.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Share of its cache in use, 0 to 1.
    pub kv_used: f64,
}

/// What a page says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// By local rank.
    pub ranks: Vec<RankFigures>,
    /// Blocks of each rank's cache.
    pub kv_blocks: Option<u64>,
    /// Tokens of a block.
    pub block_size: Option<u32>,
}

impl RankFigures {
    /// Requests that it has.
    pub fn total(&self) -> u32 {
        self.running.saturating_add(self.waiting)
    }
}

impl Page {
    /// Reads a page. Lines that are not looked for, or can't be read, are passed over.
    pub fn read(text: &str, names: &Figures) -> Self {
        let mut page = Self::default();
        for line in text.lines() {
            let Some((name, labels, value)) = sample(line) else { continue };
            if let Some(cache) = names.cache.as_ref().filter(|cache| cache.figure == name) {
                page.kv_blocks = label(labels, cache.blocks).and_then(|v| v.parse().ok()).or(page.kv_blocks);
                page.block_size = label(labels, cache.block_size).and_then(|v| v.parse().ok()).or(page.block_size);
            }
            if ![names.running, names.waiting, names.kv_used].contains(&name) {
                continue;
            }
            let rank = label(labels, names.rank).map_or(Some(0), |v| v.parse::<usize>().ok());
            let Some(rank) = rank.filter(|rank| *rank < MAX_LOCAL_RANKS) else { continue };
            if page.ranks.len() <= rank {
                page.ranks.resize(rank + 1, RankFigures::default());
            }
            let figures = &mut page.ranks[rank];
            match name {
                name if name == names.running => figures.running = count(value),
                name if name == names.waiting => figures.waiting = count(value),
                _ => figures.kv_used = if value.is_finite() { value.clamp(0.0, 1.0) } else { 0.0 },
            }
        }
        page
    }
}

/// Name, labels and value of a line; comments have none.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let (name, labels, rest) = match line.split_once('{') {
        Some((name, rest)) => {
            let (labels, rest) = rest.rsplit_once('}')?;
            (name, labels, rest)
        }
        None => {
            let (name, rest) = line.split_once(' ')?;
            (name, "", rest)
        }
    };
    Some((name, labels, rest.split_whitespace().next()?.parse().ok()?))
}

/// The value of a label, as it stands between its quotes.
fn label<'l>(mut labels: &'l str, wanted: &str) -> Option<&'l str> {
    loop {
        let (name, rest) = labels.split_once("=\"")?;
        let end = closing_quote(rest)?;
        if name.trim_matches([',', ' ']) == wanted {
            return Some(&rest[..end]);
        }
        labels = &rest[end + 1..];
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// A count from a floating-point number: the whole part, within what the type holds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "such a cast saturates, which is meant")]
fn count(number: f64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::super::engines::EngineKind;
    use super::*;

    #[test]
    fn a_page_of_a_real_vllm() {
        let text = "\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 2.0
vllm:num_requests_running{engine=\"1\",model_name=\"a\\\"b}\"} 0.0
vllm:num_requests_waiting{engine=\"0\",model_name=\"tiny\"} 1.0
vllm:num_requests_waiting{engine=\"1\",model_name=\"tiny\"} NaN
vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"tiny\"} 0.25
vllm:cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"512\",sliding_window=\"None\"} 1.0
vllm:num_requests_running_total{engine=\"9\"} 3
broken{engine=\"0\" 1
python_gc_objects_collected_total 812.0";
        let page = Page::read(text, EngineKind::Vllm.dialect().figures.as_ref().expect("it has some"));
        let ranks = vec![
            RankFigures { running: 2, waiting: 1, kv_used: 0.0 },
            RankFigures { kv_used: 0.25, ..Default::default() },
        ];
        assert_eq!(page, Page { ranks, kv_blocks: Some(512), block_size: Some(32) });
    }

    #[test]
    fn a_page_without_ranks_is_of_one() {
        let text = "sglang:num_running_reqs{model_name=\"m\"} 7\nsglang:token_usage 1.5 1700000000\n";
        let page = Page::read(text, EngineKind::Sglang.dialect().figures.as_ref().expect("it has some"));
        assert_eq!(page.ranks, [RankFigures { running: 7, waiting: 0, kv_used: 1.0 }]);
    }
}
