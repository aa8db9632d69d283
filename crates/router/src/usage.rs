//! Tokens of a request, as its engine reports them.
//!
//! A whole response has an object `usage`; a stream has it in one of its last events. A stream that ends before reports none, and
//! then the parts that were received count as tokens.

use serde::Deserialize;
use serde_json::value::RawValue;

/// Most tokens of a request, in each direction. Larger numbers are not true: no engine has so large a context.
const MOST: u64 = 100_000_000;

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub input: u64,
    /// Tokens of the response.
    pub output: u64,
}

/// An object `usage` of any API: OpenAI's completions (`prompt_tokens`), its responses and Anthropic's messages (`input_tokens`).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_field_names, reason = "the names of the APIs")]
struct Reported<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    completion_tokens: Option<&'a RawValue>,
    total_tokens: Option<&'a RawValue>,
    input_tokens: Option<&'a RawValue>,
    output_tokens: Option<&'a RawValue>,
    /// Anthropic's `input_tokens` are those beyond the ones of these two.
    cache_read_input_tokens: Option<&'a RawValue>,
    cache_creation_input_tokens: Option<&'a RawValue>,
}

/// Reads an object `usage`. `None` if it has no numbers of tokens, or such as cannot be true.
pub fn read(object: &[u8]) -> Option<Usage> {
    let reported: Reported<'_> = serde_json::from_slice(object).ok()?;
    let number = |field: Option<&RawValue>| match field.map(RawValue::get) {
        None | Some("null") => Some(None),
        Some(text) => text.parse().ok().filter(|number| *number <= MOST).map(Some),
    };
    let [input, output, total] = [
        number(reported.prompt_tokens.or(reported.input_tokens))?,
        number(reported.completion_tokens.or(reported.output_tokens))?,
        number(reported.total_tokens)?,
    ];
    let cached = [reported.cache_read_input_tokens, reported.cache_creation_input_tokens];
    let cached = cached
        .into_iter()
        .map(|field| number(field).map(Option::unwrap_or_default));
    let cached: u64 = cached.sum::<Option<u64>>()?;
    let usage = match (input, output, total) {
        (None, None, None) => return None,
        // Engines report only the total of what has no output, such as a ranking.
        (None, None, Some(total)) => Usage {
            input: total,
            output: 0,
        },
        (input, output, _) => Usage {
            input: input.unwrap_or_default() + cached,
            output: output.unwrap_or_default(),
        },
    };
    Some(usage)
}

/// Finds the value of the key `usage` in an object of JSON that arrives in parts, in memory that does not grow with it.
#[derive(Debug, Default)]
pub struct Finder {
    depth: u32,
    string: Option<Str>,
    /// The last string was a key of the outermost object, and is `usage`.
    is_key: bool,
    /// The value, while it is read and after it.
    value: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Before,
    Within,
    Found,
}

/// A string that is being read.
#[derive(Clone, Copy, Debug, Default)]
struct Str {
    escaped: bool,
    /// Bytes that agree with [`KEY`]; `None` after one that does not.
    agree: Option<usize>,
}

const KEY: &[u8] = b"usage";
/// Longest value.
const LONGEST: usize = 8 * 1024;

impl Finder {
    /// Takes in the next part.
    pub fn read(&mut self, part: &[u8]) {
        for byte in part {
            if self.state == State::Found {
                return;
            }
            self.step(*byte);
        }
    }

    /// The tokens, if the value has been found.
    pub fn usage(&self) -> Option<Usage> {
        (self.state == State::Found).then(|| read(&self.value)).flatten()
    }

    fn step(&mut self, byte: u8) {
        if self.state == State::Within {
            let is_end = self.depth == 1 && self.string.is_none() && matches!(byte, b',' | b'}');
            if is_end || self.value.len() >= LONGEST {
                self.state = State::Found;
                return;
            }
            self.value.push(byte);
        }
        if let Some(string) = &mut self.string {
            match byte {
                _ if string.escaped => string.escaped = false,
                b'\\' => (string.escaped, string.agree) = (true, None),
                b'"' => {
                    self.is_key = self.depth == 1 && string.agree == Some(KEY.len());
                    self.string = None;
                }
                _ => string.agree = string.agree.filter(|at| KEY.get(*at) == Some(&byte)).map(|at| at + 1),
            }
            return;
        }
        match byte {
            b'"' => {
                self.string = Some(Str {
                    escaped: false,
                    agree: Some(0),
                });
            }
            b'{' | b'[' => self.depth = self.depth.saturating_add(1),
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' if self.is_key && self.state == State::Before => self.state = State::Within,
            b' ' | b'\t' | b'\r' | b'\n' => return,
            _ => {}
        }
        self.is_key = false;
    }
}

/// An event of a stream, as far as it counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// It has a part of the response.
    pub is_part: bool,
    /// Tokens so far.
    pub usage: Option<Usage>,
    /// It has nothing but the tokens, as OpenAI's last event with `stream_options.include_usage`.
    pub only_usage: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Data<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    usage: Option<&'a RawValue>,
    /// Kind of the event, in OpenAI's responses and Anthropic's messages.
    r#type: Option<&'a RawValue>,
    response: Option<WithUsage<'a>>,
    message: Option<WithUsage<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WithUsage<'a> {
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    delta: Option<Delta<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    reasoning: Option<&'a RawValue>,
    reasoning_content: Option<&'a RawValue>,
    tool_calls: Option<&'a RawValue>,
}

impl Choice<'_> {
    fn is_part(&self) -> bool {
        let of_delta = self.delta.iter().flat_map(|delta| {
            [
                delta.content,
                delta.reasoning,
                delta.reasoning_content,
                delta.tool_calls,
            ]
        });
        of_delta.chain([self.text]).flatten().any(is_filled)
    }
}

fn is_filled(value: &RawValue) -> bool {
    !matches!(value.get(), "null" | "\"\"" | "[]")
}

/// Reads an event of a stream, with its line ends.
pub fn event(text: &[u8]) -> Event {
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let data = lines.filter_map(|line| line.strip_prefix(b"data:"));
    let read = data.filter_map(|data| serde_json::from_slice::<Data<'_>>(data).ok());
    read.fold(Event::default(), |event, data| event.with(&data))
}

impl Event {
    fn with(self, data: &Data<'_>) -> Self {
        let mut within = [&data.response, &data.message].into_iter().flatten();
        let usage = data.usage.or_else(|| within.find_map(|whole| whole.usage));
        let usage = usage.and_then(|usage| read(usage.get().as_bytes()));
        let kind = data.r#type.map(RawValue::get).unwrap_or_default();
        let is_delta = kind.ends_with(".delta\"") || kind == "\"content_block_delta\"";
        let choices = data.choices.as_deref();
        Self {
            is_part: self.is_part || is_delta || choices.is_some_and(|choices| choices.iter().any(Choice::is_part)),
            usage: usage.or(self.usage),
            only_usage: usage.is_some() && choices.is_some_and(<[_]>::is_empty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::unnecessary_wraps, reason = "compared with what is read")]
    fn usage(input: u64, output: u64) -> Option<Usage> {
        Some(Usage { input, output })
    }

    #[test]
    fn tokens_are_read_as_every_api_reports_them() {
        let total = br#"{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}"#;
        assert_eq!(read(total), usage(7, 3));
        assert_eq!(read(br#"{"input_tokens":7,"output_tokens":3}"#), usage(7, 3));
        let cached =
            br#"{"input_tokens":7,"cache_read_input_tokens":90,"cache_creation_input_tokens":null,"output_tokens":3}"#;
        assert_eq!(read(cached), usage(97, 3));
        assert_eq!(read(br#"{"prompt_tokens":7,"total_tokens":7}"#), usage(7, 0));
        assert_eq!(read(br#"{"total_tokens":7}"#), usage(7, 0));
        assert_eq!(read(br#"{"type":"duration","seconds":3}"#), None);
    }

    #[test]
    fn tokens_that_cannot_be_true_do_not_count() {
        for number in ["-1", "1.5", "1e3", "\"7\"", "99999999999999999999", "100000001", "[]"] {
            let reported = format!(r#"{{"prompt_tokens":{number},"completion_tokens":1}}"#);
            assert_eq!(read(reported.as_bytes()), None, "{number}");
        }
        assert_eq!(read(b"null"), None);
        assert_eq!(read(b"{"), None);
    }

    fn found(text: &str, part: usize) -> Option<Usage> {
        let mut finder = Finder::default();
        for part in text.as_bytes().chunks(part) {
            finder.read(part);
        }
        finder.usage()
    }

    #[test]
    fn tokens_of_a_whole_response_are_those_of_the_outermost_object() {
        let inner = r#"{"usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
        let text = format!(
            r#"{{"choices":[{inner},"usage"],"note":"\"usage\":{{","a":"usage","us\u0061ge":0, "usage" : {{"prompt_tokens":7,"completion_tokens":3,"x":"}},"}} , "z":[]}}"#
        );
        for part in [1, 2, 7, 1000] {
            assert_eq!(found(&text, part), usage(7, 3), "{part}");
        }
        assert_eq!(found(inner, 5), usage(1, 1));
        assert_eq!(found(r#"{"choices":[],"usage":null}"#, 5), None);
        assert_eq!(found(r#"[{"usage":{"prompt_tokens":1}}]"#, 5), None);
        assert_eq!(
            found(r#"{"usage":{"prompt_tokens":1"#, 5),
            None,
            "the response ended before"
        );
    }

    #[test]
    fn memory_for_a_response_is_bounded() {
        let mut finder = Finder::default();
        finder.read(br#"{"usage":{"x":""#);
        for _ in 0..100 {
            finder.read(&[b'a'; 1024]);
        }
        assert!(finder.value.len() <= LONGEST && finder.usage().is_none());
    }

    #[test]
    fn events_have_parts_and_tokens() {
        let part = Event {
            is_part: true,
            ..Event::default()
        };
        for text in [
            r#"data: {"choices":[{"delta":{"content":"Hello"}}]}"#,
            r#"data: {"choices":[{"delta":{"content":null,"reasoning_content":"Hm"}}],"usage":null}"#,
            r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"data:{"choices":[{"index":0,"text":"Hello"}]}"#,
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"a\"}}",
            "event: x\r\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\r\n",
        ] {
            assert_eq!(event(text.as_bytes()), part, "{text}");
        }
        for text in [
            r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#,
            r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
            "data: [DONE]",
            ": ping",
            "event: ping\ndata: {\"type\":\"ping\"}",
            "data: not JSON",
        ] {
            assert_eq!(event(text.as_bytes()), Event::default(), "{text}");
        }
    }

    #[test]
    fn last_event_of_a_stream_has_the_tokens() {
        let last = event(br#"data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#);
        assert_eq!((last.usage, last.only_usage), (usage(7, 3), true));
        let with_choice =
            event(br#"data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#);
        assert_eq!((with_choice.usage, with_choice.only_usage), (usage(7, 3), false));
        let completed =
            event(br#"data: {"type":"response.completed","response":{"usage":{"input_tokens":7,"output_tokens":3}}}"#);
        assert_eq!((completed.usage, completed.only_usage), (usage(7, 3), false));
        let started =
            event(br#"data: {"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}"#);
        assert_eq!(started.usage, usage(7, 1));
        let delta = event(br#"data: {"type":"message_delta","delta":{},"usage":{"output_tokens":3}}"#);
        assert_eq!(delta.usage, usage(0, 3));
    }
}
