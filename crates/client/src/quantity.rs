//! Quantities as the API server writes them, as numbers.

/// Value of a quantity such as `1500m` or `5k`, with the precision of `f64`.
pub fn number(text: &str) -> Option<f64> {
    let unit = text
        .find(|c: char| c.is_ascii_alphabetic() && c != 'e')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let number: f64 = number.parse().ok()?;
    let factor = match unit {
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        "Ti" => 1_099_511_627_776.0,
        "Pi" => 1_125_899_906_842_624.0,
        _ => 1.0,
    };
    Some(number * factor)
}
