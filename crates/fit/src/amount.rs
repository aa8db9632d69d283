//! Amounts of resources, counted as kube-scheduler counts them: CPU in thousandths, everything else in whole units, both
//! rounded up.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use runway_operator::quantity::nanos;

/// Name of the resource that is counted in thousandths.
pub(super) const CPU: &str = "cpu";
/// Name of the resource for the number of pods of a node.
pub(super) const PODS: &str = "pods";

const NANOS: i128 = 1_000_000_000;

/// Amounts in billionths, exact as far as quantities are, by names of the object they are read from: clusters have many pods.
pub(super) type Nanos<'a> = BTreeMap<&'a str, i128>;

/// Amounts by the name of the resource.
pub type Amounts = BTreeMap<String, i64>;

/// Amounts in the units of the scheduler.
pub(super) fn counted(amounts: &Nanos<'_>) -> Amounts {
    amounts
        .iter()
        .map(|(name, value)| ((*name).to_owned(), count(name, *value)))
        .collect()
}

fn count(name: &str, value: i128) -> i64 {
    let unit = if name == CPU { NANOS / 1000 } else { NANOS };
    let up = value.div_euclid(unit) + i128::from(value.rem_euclid(unit) != 0);
    i64::try_from(up).unwrap_or(if up < 0 { i64::MIN } else { i64::MAX })
}

/// A list of quantities in the units of the scheduler. Texts that are not quantities are skipped.
pub(super) fn of_quantities(quantities: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    quantities
        .into_iter()
        .flatten()
        .filter_map(|(name, quantity)| Some((name.clone(), count(name, nanos(&quantity.0)?))))
        .collect()
}

/// Adds amounts.
pub(super) fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        match to.get_mut(name) {
            Some(sum) => *sum = sum.saturating_add(*amount),
            None => {
                to.insert(name.clone(), *amount);
            }
        }
    }
}

/// An amount of a resource as text: CPUs as `4` or `500m`, bytes as `16Gi`, everything else as a number.
pub(super) fn text(name: &str, amount: i64) -> String {
    if name == CPU {
        return match amount % 1000 {
            0 => (amount / 1000).to_string(),
            _ => format!("{amount}m"),
        };
    }
    let is_bytes = name == "memory" || name == "ephemeral-storage" || name.starts_with("hugepages-");
    let units = [(1_i64 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let unit = units.iter().find(|(size, _)| amount >= *size && amount % size == 0);
    match unit {
        Some((size, unit)) if is_bytes => format!("{}{unit}", amount / size),
        _ => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_counted_as_the_scheduler_does() {
        for (name, text, expected) in [
            (CPU, "1", 1000),
            (CPU, "500m", 500),
            (CPU, "0.0001", 1),
            (CPU, "1500u", 2),
            ("memory", "1Gi", 1 << 30),
            ("memory", "1500m", 2),
            ("memory", "1e3", 1000),
            ("memory", "12E2", 1200),
            ("memory", "0.5Ki", 512),
            ("nvidia.com/gpu", "8", 8),
            ("memory", "-1Ki", -1024),
        ] {
            assert_eq!(count(name, nanos(text).unwrap()), expected, "{text}");
        }
        for text in ["", "much", "1x", "1.2.3", "Gi", "1e2147483647"] {
            assert_eq!(nanos(text), None, "{text}");
        }
    }

    #[test]
    fn amounts_are_shown_in_usual_units() {
        for (name, amount, expected) in [
            (CPU, 1500, "1500m"),
            (CPU, 4000, "4"),
            ("memory", 32 << 30, "32Gi"),
            ("memory", 1_500_000_000, "1500000000"),
            ("nvidia.com/gpu", 1024, "1024"),
        ] {
            assert_eq!(text(name, amount), expected);
        }
    }
}
