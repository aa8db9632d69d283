//! A model of 100 KB whose weights are set by hand, so that a real llama-server answers one known sentence, whatever it is asked.
//!
//! It is a Llama with one layer that does nothing: attention and feed-forward are zero, so that the next token depends on
//! the last one alone. Each piece of the sentence has a dimension of its own; all other tokens share the first one. The output
//! matrix leads from each dimension to the piece that follows: from any prompt to the first piece, from the last piece to the
//! end of the text.

use super::gguf::{Gguf, Value};

/// The whole answer of the model, as the engine gives it.
pub const SENTENCE: &str = "Hello from a real engine: this tiny model knows one sentence, and you have just read it.";

/// Far more than byte-wise prompts of tests need; a token takes 128 bytes of cache.
const CONTEXT_LENGTH: u32 = 32_768;
/// A power of two, with room for every piece of the sentence.
const WIDTH: usize = 32;
/// Scale of a normalized one-hot vector that gives logits of thousands: no temperature makes another token likely.
const CERTAINTY: f32 = 1000.0;
const END: usize = 0;
/// Short, because the answer does not depend on the prompt.
const CHAT_TEMPLATE: &str = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:";

/// Chunks of [`SENTENCE`] when the engine streams it.
pub fn pieces() -> Vec<&'static str> {
    let starts = SENTENCE.match_indices(' ').map(|(at, _)| at);
    let ends = starts.clone().chain([SENTENCE.len()]);
    [0].into_iter()
        .chain(starts)
        .zip(ends)
        .map(|(start, end)| &SENTENCE[start..end])
        .collect()
}

/// The bytes of the model's GGUF file.
pub(super) fn one_sentence() -> Vec<u8> {
    let tokens = Tokens::new();
    let mut file = Gguf::default();
    put_settings(&mut file);
    put_tokens(&mut file, &tokens);
    put_weights(&mut file, &tokens);
    file.to_bytes()
}

/// The vocabulary: the end of the text, each byte, and the pieces of the sentence.
///
/// The tokenizer is GPT-2's without merges. So prompts are read as bytes, and no prompt can contain a piece.
struct Tokens {
    texts: Vec<String>,
    /// The first piece.
    first: usize,
}

impl Tokens {
    fn new() -> Self {
        let mut texts = vec!["<|end|>".to_owned()];
        texts.extend((0..=u8::MAX).map(|byte| spell(&[byte])));
        let first = texts.len();
        texts.extend(pieces().iter().map(|piece| spell(piece.as_bytes())));
        Self { texts, first }
    }

    fn count(&self) -> usize {
        self.texts.len()
    }

    /// The dimension of a token: 0 for all that may be in a prompt, then one for each piece.
    fn dimension(&self, token: usize) -> usize {
        (token + 1).saturating_sub(self.first)
    }

    /// The dimension that leads to a token, if one does.
    fn dimension_before(&self, token: usize) -> Option<usize> {
        let last = self.count() - 1;
        match token {
            END => Some(self.dimension(last)),
            token if token >= self.first => Some(self.dimension(token) - 1),
            _ => None,
        }
    }
}

/// Bytes as GPT-2's tokenizer spells them: printable ones stand for themselves, the others for the letters from 256 on.
fn spell(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| letter(*byte)).collect()
}

fn letter(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_printable(byte) {
        return char::from(byte);
    }
    let position = (0..byte).filter(|byte| !is_printable(*byte)).count();
    u32::try_from(256 + position)
        .ok()
        .and_then(char::from_u32)
        .unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn put_settings(file: &mut Gguf) {
    let width = u32::try_from(WIDTH).unwrap_or_default();
    file.entry("general.architecture", Value::Text("llama".to_owned()))
        .entry("general.name", Value::Text("one sentence".to_owned()))
        .entry("general.file_type", Value::U32(0))
        .entry("llama.context_length", Value::U32(CONTEXT_LENGTH))
        .entry("llama.embedding_length", Value::U32(width))
        .entry("llama.feed_forward_length", Value::U32(width))
        .entry("llama.block_count", Value::U32(1))
        .entry("llama.attention.head_count", Value::U32(1))
        .entry("llama.attention.head_count_kv", Value::U32(1))
        .entry("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5))
        .entry("llama.rope.dimension_count", Value::U32(width));
}

fn put_tokens(file: &mut Gguf, tokens: &Tokens) {
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    let mut types = vec![NORMAL; tokens.count()];
    types[END] = CONTROL;
    file.entry("tokenizer.ggml.model", Value::Text("gpt2".to_owned()))
        .entry("tokenizer.ggml.pre", Value::Text("gpt-2".to_owned()))
        .entry("tokenizer.ggml.tokens", Value::Texts(tokens.texts.clone()))
        .entry("tokenizer.ggml.token_type", Value::Integers(types))
        .entry("tokenizer.ggml.merges", Value::Texts(Vec::new()))
        .entry("tokenizer.ggml.bos_token_id", Value::U32(0))
        .entry("tokenizer.ggml.eos_token_id", Value::U32(0))
        // So that an empty prompt has a token, too.
        .entry("tokenizer.ggml.add_bos_token", Value::Bool(true))
        .entry("tokenizer.chat_template", Value::Text(CHAT_TEMPLATE.to_owned()));
}

fn put_weights(file: &mut Gguf, tokens: &Tokens) {
    let one_if = |condition: bool| if condition { 1.0 } else { 0.0 };
    file.matrix("token_embd.weight", tokens.count(), WIDTH, |token, dimension| {
        one_if(tokens.dimension(token) == dimension)
    });
    file.matrix("output.weight", tokens.count(), WIDTH, |token, dimension| {
        CERTAINTY * one_if(tokens.dimension_before(token) == Some(dimension))
    });
    file.vector("output_norm.weight", WIDTH, 1.0);
    for norm in ["attn_norm", "ffn_norm"] {
        file.vector(&format!("blk.0.{norm}.weight"), WIDTH, 1.0);
    }
    for idle in [
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ] {
        file.matrix(&format!("blk.0.{idle}.weight"), WIDTH, WIDTH, |_, _| 0.0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pieces_make_the_sentence_and_differ() {
        assert_eq!(pieces().concat(), SENTENCE);
        assert!(pieces().len() < WIDTH, "each has a dimension, and prompts have one");
        let texts: BTreeSet<String> = Tokens::new().texts.into_iter().collect();
        assert_eq!(texts.len(), 1 + 256 + pieces().len(), "no token is there twice");
    }

    #[test]
    fn bytes_are_spelled_as_by_gpt_2() {
        assert_eq!(spell(b" it."), "\u{120}it.");
        assert_eq!(spell(b"\0\n\x7f\xad"), "\u{100}\u{10a}\u{121}\u{143}");
    }

    /// From any prompt through all pieces to the end.
    #[test]
    fn each_token_leads_to_the_next() {
        let tokens = Tokens::new();
        let next = |token: usize| {
            let dimension = Some(tokens.dimension(token));
            let following: Vec<usize> = (0..tokens.count())
                .filter(|next| tokens.dimension_before(*next) == dimension)
                .collect();
            assert_eq!(following.len(), 1, "after token {token}");
            following[0]
        };
        for start in 0..tokens.first {
            let mut token = next(start);
            for position in tokens.first..tokens.count() {
                assert_eq!(token, position, "after the prompt's token {start}");
                token = next(token);
            }
            assert_eq!(token, END);
        }
    }

    #[test]
    fn the_file_ends_with_its_last_tensor() {
        let bytes = one_sentence();
        assert_eq!(bytes[..8], *b"GGUF\x03\0\0\0");
        assert_eq!(bytes[8..16], 12u64.to_le_bytes(), "tensors");
        assert_eq!(bytes[16..24], 20u64.to_le_bytes(), "metadata");
        assert_eq!(bytes.len() % 32, 0);
        let data = 4 * (2 * Tokens::new().count() * WIDTH + 3 * WIDTH + 7 * WIDTH * WIDTH);
        assert!((data..data + 20_000).contains(&bytes.len()), "{} bytes", bytes.len());
    }
}
