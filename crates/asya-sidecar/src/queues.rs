//! Names of queues (`docs/asya-protocol.md` section 1).

/// How queues are named here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues {
    prefix: String,
    /// Our own dead-letter queue.
    pub dead_letter: String,
}

impl Queues {
    /// The queues of a namespace; `actor` is ours.
    pub fn new(namespace: Option<&str>, actor: &str) -> Self {
        let prefix = match namespace {
            Some(namespace) => format!("asya-{namespace}_"),
            None => "asya-".to_owned(),
        };
        let dead_letter = format!("{prefix}{actor}_dlq");
        Self { prefix, dead_letter }
    }

    /// The queue of an actor.
    pub fn of(&self, actor: &str) -> String {
        format!("{}{actor}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_actors_share_a_queue() {
        let name = |namespace, actor| Queues::new(Some(namespace), actor).of(actor);
        assert_eq!(name("shop", "cart"), "asya-shop_cart");
        assert_ne!(name("a", "b-c"), name("a-b", "c"));
        assert_eq!(Queues::new(None, "cart").of("next"), "asya-next");
        assert_eq!(Queues::new(Some("shop"), "cart").dead_letter, "asya-shop_cart_dlq");
    }
}
