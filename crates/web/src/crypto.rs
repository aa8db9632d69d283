//! Random keys, and comparison of secrets.

use getrandom::Error;

/// Random bytes from the operating system.
///
/// # Errors
/// The operating system provides none.
pub fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// A random key of 256 bits, in hexadecimal digits.
///
/// # Errors
/// The operating system provides no random bytes.
pub fn random_key() -> Result<String, Error> {
    Ok(hex::encode(random::<32>()?))
}

/// Equality in a time that does not depend on the position of the first difference.
pub fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}
