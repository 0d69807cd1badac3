//! Sizes in bytes, as people write and read them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes: never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(u64);

/// Units, the longest name first, so that none is taken for the end of another.
const UNITS: [(&str, u64); 7] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("b", 1),
];

/// Why something is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// It is no number with a unit.
    #[error(
        "`{0}` is no size: write a whole number and a unit, such as 64KiB (1024) or 64KB (1000)"
    )]
    Malformed(String),
    /// Its unit has two meanings.
    #[error("`{0}` is no size: K, M and G alone are ambiguous; write KiB (1024) or KB (1000)")]
    Ambiguous(String),
    /// It is nothing.
    #[error("`{0}` is 0 bytes, which moves nothing: write at least 1")]
    Zero(String),
    /// It is beyond all bounds.
    #[error("`{0}` is more bytes than can be counted")]
    Overflow(String),
}

impl Size {
    /// The number of bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let lower = text.trim().to_ascii_lowercase();
        let (digits, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((lower.strip_suffix(name)?.trim_end(), *unit)))
            .unwrap_or((&lower, 1));
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = digits.strip_suffix(['k', 'm', 'g']).unwrap_or_default();
            let ambiguous = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            let error = if ambiguous { SizeError::Ambiguous } else { SizeError::Malformed };
            return Err(error(text.into()));
        }
        // Nothing but digits: what does not parse is too large.
        let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        match bytes {
            None => Err(SizeError::Overflow(text.into())),
            Some(0) => Err(SizeError::Zero(text.into())),
            Some(bytes) => Ok(Self(bytes)),
        }
    }
}

impl fmt::Display for Size {
    /// The largest unit that divides it, the powers of two first: parsing it gives it back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
            ("GB", 1_000_000_000),
            ("MB", 1_000_000),
            ("KB", 1_000),
        ];
        let exact = units.into_iter().find(|(_, unit)| self.0.is_multiple_of(*unit));
        let text = match exact {
            Some((name, unit)) => format!("{}{name}", self.0 / unit),
            None => format!("{}B", self.0),
        };
        f.pad(&text)
    }
}

impl From<std::num::NonZeroU64> for Size {
    fn from(bytes: std::num::NonZeroU64) -> Self {
        Self(bytes.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        text.parse::<Size>().unwrap().bytes()
    }

    #[test]
    fn binary_and_decimal_units_and_plain_bytes_are_sizes() {
        assert_eq!(bytes("4KiB"), 4096);
        assert_eq!(bytes("64KB"), 64_000);
        assert_eq!(bytes("1MiB"), 1 << 20);
        assert_eq!(bytes("2GB"), 2_000_000_000);
        assert_eq!(bytes("3 gib"), 3 << 30);
        assert_eq!(bytes("4096"), 4096);
        assert_eq!(bytes("7B"), 7);
    }

    #[test]
    fn what_is_no_size_is_refused_by_name() {
        let error = |text: &str| text.parse::<Size>().unwrap_err();
        for text in ["", "KiB", "1.5MiB", "-4KiB", "4 potatoes", "0x10", "4KiBB", "k"] {
            assert_eq!(error(text), SizeError::Malformed(text.into()));
            assert!(error(text).to_string().contains(&format!("`{text}`")));
        }
        assert_eq!(error("4K"), SizeError::Ambiguous("4K".into()));
        assert_eq!(error("0KiB"), SizeError::Zero("0KiB".into()));
        assert_eq!(error("99999999999GiB"), SizeError::Overflow("99999999999GiB".into()));
        assert_eq!(
            error("99999999999999999999"),
            SizeError::Overflow("99999999999999999999".into())
        );
    }

    #[test]
    fn a_printed_size_is_read_back_as_itself() {
        for size in [1, 1000, 1023, 1024, 65_536, 64_000, 268_435_456, 1_000_000_000, u64::MAX] {
            assert_eq!(bytes(&Size(size).to_string()), size);
        }
        assert_eq!(Size(65_536).to_string(), "64KiB");
        assert_eq!(Size(64_000).to_string(), "64KB");
    }
}
