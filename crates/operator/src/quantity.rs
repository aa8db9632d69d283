//! Quantities in the canonical form of the API server, which stores `1024Mi` as `1Gi`. What is applied must equal what is
//! stored; otherwise it would look changed forever.

/// A number without its decimal point: `digits / 10^places`.
struct Decimal {
    digits: i128,
    places: u32,
}

/// The canonical form (apimachinery `resource.Quantity`). A text that is not a quantity stays unchanged: the API server rejects
/// it.
pub fn canonical(text: &str) -> String {
    parse(text).unwrap_or_else(|| text.to_owned())
}

/// Whether one quantity is smaller than another; `None` if one of them is not a quantity.
pub fn is_less(a: &str, b: &str) -> Option<bool> {
    let (a, b) = (in_nanos(a)?, in_nanos(b)?);
    Some(a < b)
}

/// Value of a quantity in billionths, rounded up, as kube-scheduler counts; `None` if the text is not a quantity. Unlike the other
/// functions it reads exponents such as `1e3`.
pub fn nanos(text: &str) -> Option<i128> {
    let up = |value: i128, divisor: i128| value / divisor + i128::from(value % divisor != 0);
    let (number, suffix) = split(text)?;
    let digits = number.digits.checked_abs()?;
    let scaled = if let Some(power) = binary_power(suffix) {
        digits
            .checked_mul(1024_i128.checked_pow(power)?)?
            .checked_mul(1_000_000_000)?
    } else {
        let written = || suffix.strip_prefix(['e', 'E'])?.parse().ok();
        let exponent = decimal_exponent(suffix).or_else(written)?.checked_add(9)?;
        let factor = 10_i128.checked_pow(exponent.unsigned_abs())?;
        if exponent < 0 {
            up(digits, factor)
        } else {
            digits.checked_mul(factor)?
        }
    };
    let value = up(scaled, 10_i128.checked_pow(number.places)?);
    Some(value * number.digits.signum())
}

/// Suffixes of an amount of memory.
pub const MEMORY_SUFFIXES: &[&str] = &[
    "", "m", "k", "Ki", "M", "Mi", "G", "Gi", "T", "Ti", "P", "Pi", "E", "Ei",
];
/// Suffixes of an amount of processors.
pub const CPU_SUFFIXES: &[&str] = &["", "m"];

/// Value of a quantity, as far as validation needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// The text is not a quantity with one of the suffixes.
    Unreadable,
    /// Zero.
    Zero,
    /// More than zero.
    Positive,
}

/// Reads a quantity as the patterns of our CRDs do: digits, an optional fraction, one of the suffixes. A sign other than `+` and
/// exponents are not accepted.
pub fn amount(text: &str, suffixes: &[&str]) -> Amount {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());

    if !digits(whole) || !digits(fraction) || !suffixes.contains(&suffix) {
        Amount::Unreadable
    } else if number.bytes().any(|b| matches!(b, b'1'..=b'9')) {
        Amount::Positive
    } else {
        Amount::Zero
    }
}

fn parse(text: &str) -> Option<String> {
    let (number, suffix) = split(text)?;
    if number.digits == 0 {
        return Some("0".to_owned());
    }
    if let Some(power) = binary_power(suffix) {
        return binary(&number, power);
    }
    decimal(&number, decimal_exponent(suffix)?)
}

fn in_nanos(text: &str) -> Option<i128> {
    let (number, suffix) = split(text)?;
    let factor = match binary_power(suffix) {
        Some(power) => 1024_i128.checked_pow(power)?.checked_mul(1_000_000_000)?,
        None => 10_i128.checked_pow(u32::try_from(decimal_exponent(suffix)? + 9).ok()?)?,
    };
    Some(number.digits.checked_mul(factor)? / 10_i128.checked_pow(number.places)?)
}

fn split(text: &str) -> Option<(Decimal, &str)> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let places = u32::try_from(fraction.len()).ok()?;
    Some((
        Decimal {
            digits: digits * sign,
            places,
        },
        suffix,
    ))
}

fn binary_power(suffix: &str) -> Option<u32> {
    let position = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].iter().position(|s| *s == suffix)?;
    u32::try_from(position + 1).ok()
}

/// `1e3` is left to the API server.
fn decimal_exponent(suffix: &str) -> Option<i32> {
    let known = [
        ("n", -9),
        ("u", -6),
        ("m", -3),
        ("", 0),
        ("k", 3),
        ("M", 6),
        ("G", 9),
        ("T", 12),
        ("P", 15),
        ("E", 18),
    ];
    known.iter().find(|(s, _)| *s == suffix).map(|(_, exponent)| *exponent)
}

fn binary(number: &Decimal, power: u32) -> Option<String> {
    let scaled = number.digits.checked_mul(1024_i128.checked_pow(power)?)?;
    let divisor = 10_i128.checked_pow(number.places)?;
    if scaled / divisor < 1024 {
        // Small quantities are written in decimals.
        return decimal(
            &Decimal {
                digits: scaled,
                places: number.places,
            },
            0,
        );
    }
    let mut bytes = scaled / divisor + i128::from(scaled % divisor != 0);
    let mut suffix = 0;
    while suffix < 6 && bytes % 1024 == 0 {
        bytes /= 1024;
        suffix += 1;
    }
    let names = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    Some(format!("{bytes}{}", names.get(suffix)?))
}

fn decimal(number: &Decimal, exponent: i32) -> Option<String> {
    let mut digits = number.digits;
    let mut exponent = exponent - i32::try_from(number.places).ok()?;
    while digits % 10 == 0 {
        digits /= 10;
        exponent += 1;
    }
    while exponent < -9 {
        digits = digits / 10 + i128::from(digits % 10 != 0);
        exponent += 1;
    }
    while exponent.rem_euclid(3) != 0 || exponent > 18 {
        digits = digits.checked_mul(10)?;
        exponent -= 1;
    }
    let names = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let name = names.get(usize::try_from((exponent + 9) / 3).ok()?)?;
    Some(format!("{digits}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_the_server_writes_them() {
        for (given, stored) in [
            ("1", "1"),
            ("0.5", "500m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1000", "1k"),
            ("1200", "1200"),
            ("2000000000", "2G"),
            ("1024Mi", "1Gi"),
            ("0.5Gi", "512Mi"),
            ("1.5Gi", "1536Mi"),
            ("512Ki", "512Ki"),
            ("0.5Ki", "512"),
            ("0Gi", "0"),
            ("+2Gi", "2Gi"),
            ("1073741824", "1073741824"),
            ("much", "much"),
            ("", ""),
        ] {
            assert_eq!(canonical(given), stored, "{given}");
        }
    }

    #[test]
    fn amounts_compare_across_suffixes() {
        assert_eq!(is_less("1G", "1Gi"), Some(true));
        assert_eq!(is_less("1024Mi", "1Gi"), Some(false));
        assert_eq!(is_less("10Gi", "much"), None);
    }

    #[test]
    fn amounts() {
        for (text, expected) in [
            ("32Gi", Amount::Positive),
            ("+0.5Gi", Amount::Positive),
            ("500m", Amount::Positive),
            ("4", Amount::Positive),
            ("0", Amount::Zero),
            ("0.0Gi", Amount::Zero),
            ("", Amount::Unreadable),
            ("-1Gi", Amount::Unreadable),
            ("1.", Amount::Unreadable),
            (".5", Amount::Unreadable),
            ("1.2.3", Amount::Unreadable),
            ("32GB", Amount::Unreadable),
            ("32 Gi", Amount::Unreadable),
            ("lots", Amount::Unreadable),
            ("1ä", Amount::Unreadable),
        ] {
            assert_eq!(amount(text, MEMORY_SUFFIXES), expected, "{text:?}");
        }
        assert_eq!(amount("4Gi", CPU_SUFFIXES), Amount::Unreadable);
    }
}
