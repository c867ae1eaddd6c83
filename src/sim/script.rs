//! What a simulated model says instead of made-up words: a script, for clients that have to be led through tool calls.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Most steps of a script.
const MAX_STEPS: usize = 1024;

/// The steps, one for each answer to what the user last said: the first answers the user, the second the result of the
/// call that the first made, and so on. After the last one the model makes up its own words again.
#[derive(Debug, Clone, Default)]
pub struct Script {
    steps: Vec<Step>,
}

/// One answer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    text: Option<String>,
    #[serde(default)]
    calls: Vec<Call>,
}

/// A call of a tool.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    name: String,
    arguments: Box<RawValue>,
}

/// What a script says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line<'s> {
    /// This text.
    Text(&'s str),
    /// A call of this tool with these arguments.
    Call(&'s str, &'s str),
}

impl Script {
    /// Reads a script: a JSON array of steps, each `{"text": "…"}` or `{"calls": [{"name": "…", "arguments": {…}}, …]}`.
    /// Of several calls the first one is made whose tool the request offers. The error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let steps: Vec<Step> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if steps.len() > MAX_STEPS {
            return Err(format!("it has {} steps, {MAX_STEPS} are allowed", steps.len()));
        }
        for (number, step) in (1..).zip(&steps) {
            if step.text.is_some() != step.calls.is_empty() {
                return Err(format!("step {number} needs either a text or calls"));
            }
            if let Some(call) = step.calls.iter().find(|call| !call.arguments.get().starts_with('{')) {
                return Err(format!("step {number}: the arguments of {:?} are no object", call.name));
            }
        }
        Ok(Self { steps })
    }

    /// What is said after so many results of calls, to a request that offers these tools; nothing where the script has no
    /// such step, or only calls of other tools: many clients ask small things on the side.
    pub(super) fn line(&self, results: usize, tools: &[String]) -> Option<Line<'_>> {
        let step = self.steps.get(results)?;
        if let Some(text) = &step.text {
            return Some(Line::Text(text));
        }
        let call = step.calls.iter().find(|call| tools.contains(&call.name))?;
        Some(Line::Call(&call.name, call.arguments.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_the_results_and_calls_the_tools_offered() {
        let text = r#"[{"calls":[{"name":"a","arguments":{}},{"name":"b","arguments":{"x":1}}]},{"text":"done"}]"#;
        let script = Script::parse(text).expect("valid");
        let tools = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(script.line(0, &tools(&["b", "a"])), Some(Line::Call("a", "{}")));
        assert_eq!(script.line(0, &tools(&["b"])), Some(Line::Call("b", "{\"x\":1}")));
        assert_eq!(script.line(0, &[]), None);
        assert_eq!(script.line(1, &[]), Some(Line::Text("done")));
        assert_eq!(script.line(2, &[]), None);
    }

    #[test]
    fn what_is_no_script_is_told() {
        for (text, told) in [
            ("{}", "invalid type"),
            ("[{}]", "step 1 needs either"),
            (r#"[{"text":"x"},{"text":"x","calls":[{"name":"a","arguments":{}}]}]"#, "step 2 needs either"),
            (r#"[{"calls":[{"name":"a","arguments":"x"}]}]"#, "are no object"),
            (r#"[{"say":"x"}]"#, "unknown field"),
        ] {
            let error = Script::parse(text).expect_err(text);
            assert!(error.contains(told), "{error}");
        }
    }
}
