//! The simulated engine.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::answer::{Answer, Api, Said, Stop, Usage};
use super::cache;
use super::prompt::Prompt;
use super::rank::{Decode, Prefill, Rank, Rates};
use super::script::{Line, Script};
use super::speech::Speech;
use crate::core::id::{DpRank, RankRange};
use crate::wire::Encoding;
use crate::wire::event::{Finished, Outcome};
use crate::wire::header;
use crate::wire::load::RankReport;
use crate::worker::{Engine, EngineRequest, Failure, Refusal, ReplyStream};

/// Rates and factors that make sense; beyond, times no longer fit their type.
const SPEEDS: std::ops::RangeInclusive<f64> = 0.001..=1e9;
/// Largest block, in tokens.
const MAX_BLOCK_SIZE: u32 = 65_536;

/// Header of an answer's first message: the rank that served it, also where the request named none.
pub const RANK_HEADER: &str = "Rankpin-Sim-Rank";

/// What a simulated engine is like.
#[derive(Debug, Clone, Copy)]
pub struct SimOptions {
    /// The ranks hosted.
    pub ranks: RankRange,
    /// Tokens per block of the prefix cache.
    pub block_size: u32,
    /// Blocks in each rank's prefix cache.
    pub kv_blocks: u64,
    /// Prompt tokens that a rank prefills a second, where they are not cached.
    pub prefill_rate: f64,
    /// Tokens that a rank generates a second for one request.
    pub decode_rate: f64,
    /// Longest answer, in tokens; one that asks for less gets less.
    pub output_tokens: u64,
    /// By how much faster than life all of it goes.
    pub speed: f64,
}

impl SimOptions {
    /// An engine somewhat like one GPU with a small model.
    pub fn new(ranks: RankRange) -> Self {
        Self {
            ranks,
            block_size: 16,
            kv_blocks: 8192,
            prefill_rate: 20_000.0,
            decode_rate: 100.0,
            output_tokens: 64,
            speed: 1.0,
        }
    }

    /// Checks the numbers. The error names the one that is wrong.
    fn check(&self) -> Result<(), String> {
        let speeds = [("prefill_rate", self.prefill_rate), ("decode_rate", self.decode_rate), ("speed", self.speed)];
        for (name, value) in speeds {
            if !SPEEDS.contains(&value) {
                return Err(format!("{name} is {value}, allowed is {} to {}", SPEEDS.start(), SPEEDS.end()));
            }
        }
        if self.block_size == 0 || self.block_size > MAX_BLOCK_SIZE {
            return Err(format!("block_size is {}, allowed is 1 to {MAX_BLOCK_SIZE}", self.block_size));
        }
        Ok(())
    }
}

/// An engine that does everything but think: it queues, prefills what its cache does not hold, decodes and streams.
#[derive(Debug)]
pub struct SimEngine {
    options: SimOptions,
    rates: Rates,
    ranks: Vec<Rank>,
    next: AtomicU64,
    script: Script,
}

/// What a request has cost so far.
#[derive(Debug, Default)]
struct Tally {
    usage: Usage,
    response_id: Option<String>,
}

impl SimEngine {
    /// An engine with empty caches. The error names an option that makes no sense.
    pub fn new(options: SimOptions) -> Result<Self, String> {
        options.check()?;
        let capacity = usize::try_from(options.kv_blocks).unwrap_or(usize::MAX);
        Ok(Self {
            options,
            rates: Rates { prefill: options.prefill_rate * options.speed, decode: options.decode_rate * options.speed },
            ranks: options.ranks.iter().map(|_| Rank::new(capacity)).collect(),
            next: AtomicU64::new(0),
            script: Script::default(),
        })
    }

    /// The same engine, which says what a script says.
    pub fn with_script(self, script: Script) -> Self {
        Self { script, ..self }
    }

    /// The rank that a request names, or the next one: an engine's own balancer knows no sessions.
    fn rank(&self, wanted: Option<DpRank>) -> Result<(DpRank, &Rank), Refusal> {
        let rank = wanted.unwrap_or_else(|| self.options.ranks.at(self.next.fetch_add(1, Ordering::Relaxed)));
        let index = self.options.ranks.index_of(rank);
        let index = index.ok_or_else(|| Refusal::not_found("rank_out_of_range", format!("there is no rank {rank}")))?;
        Ok((rank, &self.ranks[index]))
    }

    async fn generate(
        &self,
        request: &EngineRequest,
        replies: &mut ReplyStream,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        let encoding = Encoding::of(request.headers.find(header::CONTENT_TYPE));
        let path = request.headers.find(header::PATH);
        let mut prompt = Prompt::read(&request.payload, encoding, path).map_err(Refusal::invalid)?;
        if let Some(model) = &request.model {
            prompt.model = model.as_ref().to_owned();
        }
        let (number, rank) = self.rank(request.rank)?;
        replies.set_header(RANK_HEADER, &number.to_string());
        replies.set_content_type("application/json");
        let _working = rank.work();
        self.prefill(rank, &prompt, &mut tally.usage).await;

        let answer = Answer::new(prompt.api, request.id.as_str(), &prompt.model);
        tally.response_id = answer.response_id();
        match prompt.api {
            Api::Embeddings => {
                let whole = answer.vectors(&prompt.inputs, &tally.usage, prompt.base64);
                return Ok(replies.finish(whole).await?);
            }
            Api::CountTokens => {
                let whole = answer.whole(Said::Text(""), &tally.usage, Stop::End);
                return Ok(replies.finish(whole).await?);
            }
            Api::Chat | Api::Completions | Api::Messages | Api::Responses => {}
        }
        match self.script.line(prompt.results, &prompt.tools) {
            Some(Line::Call(name, arguments)) => {
                self.call(&prompt, (name, arguments), answer, replies, &mut tally.usage).await
            }
            Some(Line::Text(text)) => {
                let speech = Speech::given(text);
                self.say(rank, &prompt, (&speech, Stop::End), answer, replies, &mut tally.usage).await
            }
            None => {
                let length = prompt.max_tokens.unwrap_or(u64::MAX).min(self.options.output_tokens);
                let stop = if prompt.max_tokens == Some(length) { Stop::Length } else { Stop::End };
                let speech = Speech::made_up(&prompt.text, length);
                self.say(rank, &prompt, (&speech, stop), answer, replies, &mut tally.usage).await
            }
        }
    }

    async fn say(
        &self,
        rank: &Rank,
        prompt: &Prompt,
        (speech, stop): (&Speech, Stop),
        mut answer: Answer,
        replies: &mut ReplyStream,
        usage: &mut Usage,
    ) -> Result<(), Failure> {
        let mut decode = Decode::new(speech.len(), self.rates);
        let mut text = String::new();
        if prompt.stream {
            send_all(replies, answer.opening(usage)).await?;
        }
        while let Some(tokens) = decode.next().await {
            let from = text.len();
            usage.output_tokens = tokens.end;
            tokens.for_each(|i| text.push_str(speech.at(i)));
            if prompt.stream {
                replies.send(answer.delta(&text[from..])).await?;
            }
        }
        self.keep(rank, prompt, &text);
        let last = match prompt.stream {
            true => {
                send_all(replies, answer.closing(&text, usage, stop)).await?;
                Bytes::new()
            }
            false => answer.whole(Said::Text(&text), usage, stop),
        };
        Ok(replies.finish(last).await?)
    }

    async fn call(
        &self,
        prompt: &Prompt,
        (name, arguments): (&str, &str),
        mut answer: Answer,
        replies: &mut ReplyStream,
        usage: &mut Usage,
    ) -> Result<(), Failure> {
        let mut decode = Decode::new(cache::tokens(arguments), self.rates);
        while let Some(tokens) = decode.next().await {
            usage.output_tokens = tokens.end;
        }
        let last = match prompt.stream {
            true => {
                send_all(replies, answer.call(name, arguments, usage)).await?;
                Bytes::new()
            }
            false => answer.whole(Said::Call { name, arguments }, usage, Stop::Tool),
        };
        Ok(replies.finish(last).await?)
    }

    async fn prefill(&self, rank: &Rank, prompt: &Prompt, usage: &mut Usage) {
        let block_tokens = self.options.block_size;
        let blocks = cache::blocks(&prompt.model, &prompt.text, block_tokens);
        usage.prompt_tokens = cache::tokens(&prompt.text);
        // One token at least is computed, or there is nothing to go on from.
        let most = usage.prompt_tokens.saturating_sub(1) / u64::from(block_tokens);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let to_do = Prefill { blocks: &blocks, block_tokens, tokens: usage.prompt_tokens, most };
        let hit = rank.prefill(&to_do, self.rates).await;
        usage.cached_tokens = hit as u64 * u64::from(block_tokens);
    }

    /// What was generated stands in the cache as the next turn will send it.
    fn keep(&self, rank: &Rank, prompt: &Prompt, text: &str) {
        rank.keep(&cache::blocks(&prompt.model, &prompt.with_answer(text), self.options.block_size));
    }
}

async fn send_all(replies: &mut ReplyStream, parts: Vec<Bytes>) -> Result<(), Failure> {
    for part in parts {
        replies.send(part).await?;
    }
    Ok(())
}

impl Engine for SimEngine {
    async fn serve(&self, request: EngineRequest, replies: &mut ReplyStream) -> Result<Finished, Failure> {
        let mut tally = Tally::default();
        // Generation may be dropped at any point: its counters are guards.
        let outcome = tokio::select! {
            biased;
            generated = self.generate(&request, replies, &mut tally) => {
                generated?;
                Outcome::Ok
            }
            _ = request.cancel.cancelled() => Outcome::Cancelled,
        };
        Ok(Finished {
            outcome,
            prompt_tokens: Some(tally.usage.prompt_tokens),
            cached_tokens: Some(tally.usage.cached_tokens),
            output_tokens: Some(tally.usage.output_tokens),
            response_id: tally.response_id,
        })
    }

    fn load(&self, ranks: &mut [RankReport]) {
        for (rank, report) in self.ranks.iter().zip(ranks) {
            rank.report(report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_balances_what_names_no_rank() {
        let engine = SimEngine::new(SimOptions::new(RankRange::new(4, 2).expect("valid"))).expect("valid");
        let place = |rank| engine.rank(rank).expect("declared").0;
        assert_eq!(place(None), DpRank(4));
        assert_eq!(place(None), DpRank(5));
        assert_eq!(place(None), DpRank(4));
        assert!(engine.rank(Some(DpRank(6))).is_err());
    }
}
