//! Speed of a model within the last minute, for autoscalers. Pure: the time is given.

/// Seconds of a slot.
const SLOT: u64 = 10;
/// Slots of a minute.
const SLOTS: usize = 6;
/// Seconds of all slots.
const MINUTE: f64 = 60.0;

/// Tokens and first parts of the last minute.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    slots: [Slot; SLOTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Slots since the start.
    number: u64,
    tokens: u64,
    streams: u64,
    /// Sum of the times to the first part of these streams.
    seconds: f64,
}

impl Recent {
    /// Counts tokens of a response at this second.
    pub fn tokens(&mut self, tokens: u64, second: u64) {
        let slot = self.slot(second);
        slot.tokens = slot.tokens.saturating_add(tokens);
    }

    /// Counts a stream whose first part took so long.
    pub fn stream(&mut self, seconds: f64, second: u64) {
        let slot = self.slot(second);
        slot.streams += 1;
        slot.seconds += seconds;
    }

    /// Tokens per second, in the mean of the last minute.
    pub fn tokens_per_second(&self, second: u64) -> f64 {
        let tokens: u64 = self.last(second).map(|slot| slot.tokens).sum();
        number(tokens) / MINUTE
    }

    /// Mean time to the first part of a stream within the last minute; 0 without streams.
    pub fn first_part_seconds(&self, second: u64) -> f64 {
        let streams: u64 = self.last(second).map(|slot| slot.streams).sum();
        let seconds: f64 = self.last(second).map(|slot| slot.seconds).sum();
        if streams == 0 { 0.0 } else { seconds / number(streams) }
    }

    fn slot(&mut self, second: u64) -> &mut Slot {
        let now = second / SLOT;
        let place = usize::try_from(now).unwrap_or_default() % SLOTS;
        let slot = &mut self.slots[place];
        if slot.number != now {
            *slot = Slot {
                number: now,
                ..Slot::default()
            };
        }
        slot
    }

    fn last(&self, second: u64) -> impl Iterator<Item = &Slot> {
        let now = second / SLOT;
        let is_recent = move |slot: &&Slot| slot.number + SLOTS as u64 > now;
        self.slots.iter().filter(is_recent)
    }
}

#[allow(clippy::cast_precision_loss, reason = "tokens of a minute are far below 2^52")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_minute_counts() {
        let mut recent = Recent::default();
        recent.tokens(600, 5);
        recent.tokens(60, 59);
        recent.stream(1.0, 5);
        recent.stream(3.0, 59);
        let both = |recent: &Recent, second| {
            let tenths = |value: f64| (value * 10.0).round();
            (
                tenths(recent.tokens_per_second(second)),
                tenths(recent.first_part_seconds(second)),
            )
        };
        assert_eq!(both(&recent, 59), (110.0, 20.0));
        assert_eq!(both(&recent, 60), (10.0, 30.0));
        assert_eq!(both(&recent, 1000), (0.0, 0.0));
        recent.tokens(6, 60);
        assert_eq!(both(&recent, 60), (11.0, 30.0), "the first slot begins anew");
    }
}
