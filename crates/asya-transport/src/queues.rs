//! Names of queues (`docs/reference/asya-protocol.md` section 1).

/// Naming of queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues {
    prefix: String,
    /// Dead-letter queue of the sidecar's own actor.
    pub dead_letter: String,
}

impl Queues {
    /// Naming for a namespace; `actor` is the sidecar's own actor.
    pub fn new(namespace: Option<&str>, actor: &str) -> Self {
        let prefix = match namespace {
            Some(namespace) => format!("asya-{namespace}_"),
            None => "asya-".to_owned(),
        };
        let dead_letter = format!("{prefix}{actor}_dlq");
        Self { prefix, dead_letter }
    }

    /// Queue of an actor.
    pub fn of(&self, actor: &str) -> String {
        format!("{}{actor}", self.prefix)
    }

    /// Queues of an actor.
    pub fn pair(&self, actor: &str) -> Pair {
        let queue = self.of(actor);
        Pair {
            dead_letter: format!("{queue}_dlq"),
            queue,
        }
    }
}

/// Smallest limit of returns of a message to its queue. The broker also counts messages that only waited in a sidecar whose connection
/// was lost; the sidecar counts attempts (`ASYA_MAX_DELIVERIES`).
pub const FEWEST_RETURNS: u32 = 20;

/// A queue and its dead-letter queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The queue.
    pub queue: String,
    /// Its dead-letter queue.
    pub dead_letter: String,
}

/// Queue of an actor in the public Asya v0.1, which has no namespaces.
pub fn public(actor: &str) -> String {
    format!("asya-{actor}")
}

/// Exchange through which the user of a namespace publishes to the queues of this namespace, if it has a user of its own.
pub fn exchange(namespace: &str) -> String {
    format!("asya-{namespace}_actors")
}

/// Exchange through which such users publish to reply queues.
pub const REPLIES: &str = "asya_reply";

/// Whether a queue is a reply queue.
pub(crate) fn is_reply(queue: &str) -> bool {
    queue.starts_with(REPLIES)
}

/// Reply queue with this name. It belongs to a program that sends messages, not to an actor: no queue of an actor has such a name.
pub fn reply(name: &str) -> String {
    format!("asya_reply_{name}")
}

/// Whether a text can be the name of a reply queue.
pub fn is_reply_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=40).contains(&name.len()) && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_names_are_unique() {
        let name = |namespace, actor| Queues::new(Some(namespace), actor).of(actor);
        assert_eq!(name("shop", "cart"), "asya-shop_cart");
        assert_ne!(name("a", "b-c"), name("a-b", "c"));
        assert_eq!(Queues::new(None, "cart").of("next"), "asya-next");
        assert_eq!(Queues::new(Some("shop"), "cart").dead_letter, "asya-shop_cart_dlq");
    }
}
