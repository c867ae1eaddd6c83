//! Tokens that an answer says it cost, in the shapes of the three APIs.

use serde_json::Value;

/// Tokens of a prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of them.
    pub prompt: u64,
    /// Those of them that came out of the prefix cache.
    pub cached: u64,
}

impl Usage {
    /// Share of the prompt that came out of the cache, 0 to 1; `None` where there was no prompt.
    #[expect(clippy::cast_precision_loss, reason = "nobody plays 2^52 tokens")]
    pub fn cached_share(self) -> Option<f64> {
        (self.prompt > 0).then(|| self.cached as f64 / self.prompt as f64)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.cached += other.cached;
    }
}

/// What a reply message says of its prompt: the whole answer, or one event of a stream.
pub fn of(payload: &[u8]) -> Option<Usage> {
    // Most events of a stream say nothing of it, and are not worth a parse.
    const FIELD: &[u8] = b"\"usage\"";
    if !payload.windows(FIELD.len()).any(|window| window == FIELD) {
        return None;
    }
    let value: Value = serde_json::from_slice(payload).ok()?;
    // Responses and Anthropic events wrap the answer that they are about.
    [&value, &value["response"], &value["message"]].into_iter().find_map(|answer| read(&answer["usage"]))
}

fn read(usage: &Value) -> Option<Usage> {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    if let Some(prompt) = usage["prompt_tokens"].as_u64() {
        return Some(Usage { prompt, cached: number(&usage["prompt_tokens_details"]["cached_tokens"]) });
    }
    let input = usage["input_tokens"].as_u64()?;
    let Some(details) = usage.get("input_tokens_details") else {
        // Anthropic counts apart what was read from the cache and what was written to it.
        let cached = number(&usage["cache_read_input_tokens"]);
        return Some(Usage { prompt: input + cached + number(&usage["cache_creation_input_tokens"]), cached });
    };
    Some(Usage { prompt: input, cached: number(&details["cached_tokens"]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_apis() {
        let expected = Some(Usage { prompt: 100, cached: 60 });
        for answer in [
            r#"{"usage":{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":60}}}"#,
            r#"{"type":"response.completed","response":{"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60}}}}"#,
            r#"{"type":"message_start","message":{"usage":{"input_tokens":30,"cache_read_input_tokens":60,"cache_creation_input_tokens":10}}}"#,
        ] {
            assert_eq!(of(answer.as_bytes()), expected, "{answer}");
        }
        for nothing in ["[DONE]", r#"{"usage":null}"#, r#"{"type":"message_delta","usage":{"output_tokens":5}}"#] {
            assert_eq!(of(nothing.as_bytes()), None, "{nothing}");
        }
    }
}
