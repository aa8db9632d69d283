//! Blocks of a prompt, by which prompts with the same beginning are recognized. Pure.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, LazyLock};

/// Bytes of a block: about 64 tokens, as in the prefix plugin of the reference endpoint picker
/// (gateway-api-inference-extension v1.5, `pkg/epp/framework/plugins/scheduling/scorer/prefix`).
const BLOCK: usize = 256;
/// Blocks of a prompt that count. The rest of a longer prompt does not change the choice.
const MOST: usize = 256;

/// A key of this process, so that clients cannot make up prompts that look like those of others.
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Hashes of the blocks of a prompt, each with all before it. The prompt itself is not kept. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt(Arc<[u64]>);

impl Prompt {
    /// The prompt of a request for a model, as the parts of its body in the order in which engines read them. The last block counts
    /// only if it is full: its end differs from request to request.
    pub fn of<'a>(model: &str, parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = KEY.build_hasher();
        hasher.write(model.as_bytes());
        let mut blocks = Vec::new();
        let mut free = BLOCK;
        for mut part in parts {
            while !part.is_empty() && blocks.len() < MOST {
                let (now, later) = part.split_at(free.min(part.len()));
                hasher.write(now);
                free -= now.len();
                part = later;
                if free == 0 {
                    // A hash of all bytes so far: a hasher can be read in between.
                    blocks.push(hasher.finish());
                    free = BLOCK;
                }
            }
        }
        Self(blocks.into())
    }

    /// The hashes, in order.
    pub fn blocks(&self) -> &[u64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_the_blocks_of_their_common_beginning() {
        let of = |text: &str| Prompt::of("gemma", [text.as_bytes()]);
        let (long, other) = ("a".repeat(1000), "a".repeat(600) + &"b".repeat(400));
        let (long, other) = (of(&long), of(&other));
        assert_eq!((long.blocks().len(), other.blocks().len()), (3, 3));
        let same = long.blocks().iter().zip(other.blocks()).filter(|(a, b)| a == b).count();
        assert_eq!(same, 2);
        assert_eq!(of("short").blocks(), [0; 0]);
    }

    #[test]
    fn parts_of_a_body_are_one_text_and_models_have_texts_of_their_own() {
        let text = "c".repeat(700);
        let (first, rest) = text.as_bytes().split_at(300);
        let whole = Prompt::of("gemma", [text.as_bytes()]);
        assert_eq!(Prompt::of("gemma", [first, rest]), whole);
        assert_ne!(Prompt::of("llama", [text.as_bytes()]), whole);
    }

    #[test]
    fn blocks_of_a_long_prompt_are_bounded() {
        let text = vec![b'd'; 10 * MOST * BLOCK];
        assert_eq!(Prompt::of("gemma", [text.as_slice()]).blocks().len(), MOST);
    }
}
