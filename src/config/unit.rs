//! Sizes and times as an operator writes them.

use std::time::Duration;

/// The longest time that is accepted: ten years, so that a deadline computed from it never overflows a clock.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Why a size or a time was refused; the texts finish the sentence "`key` …".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    /// What is wrong.
    pub(super) problem: &'static str,
    /// What to write instead.
    pub(super) remedy: &'static str,
}

const NOT_A_SIZE: Malformed = Malformed {
    problem: "is not a size",
    remedy: "write a whole number of bytes, or one with KiB, MiB or GiB, such as \"8MiB\"",
};
const NOT_A_TIME: Malformed =
    Malformed { problem: "is not a time", remedy: "write a whole number with ms, s, m or h, such as \"30s\"" };
const TOO_LARGE: Malformed = Malformed { problem: "is too large a size", remedy: "write at most \"1048576GiB\"" };
const TOO_LONG: Malformed = Malformed { problem: "is too long a time", remedy: "write at most \"87600h\" (ten years)" };

/// Reads a size in bytes: a whole number alone or followed by `KiB`, `MiB` or `GiB` (powers of 1024).
///
/// # Errors
/// Another unit, a fraction, a sign, or more than 2^50 bytes.
pub(super) fn size(text: &str) -> Result<u64, Malformed> {
    let (number, unit) = split(text);
    let scale: u64 = match unit {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "KB" | "kB" | "K" | "k" | "MB" | "M" | "GB" | "G" | "kib" | "mib" | "gib" => {
            return Err(Malformed { problem: "has an unknown unit", remedy: "the units are KiB, MiB and GiB" });
        }
        _ => return Err(NOT_A_SIZE),
    };
    if number.is_empty() {
        return Err(NOT_A_SIZE);
    }
    let bytes = number.parse::<u64>().ok().and_then(|count| count.checked_mul(scale));
    bytes.filter(|bytes| *bytes <= 1 << 50).ok_or(TOO_LARGE)
}

/// Writes a size as it would be typed, in the largest unit that leaves a whole number.
pub(super) fn shown_size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units.into_iter().find(|(scale, _)| bytes > 0 && bytes.is_multiple_of(*scale));
    unit.map_or_else(|| bytes.to_string(), |(scale, name)| format!("{}{name}", bytes / scale))
}

/// Reads a time: a whole number followed by `ms`, `s`, `m` or `h`.
///
/// # Errors
/// No unit, another unit, a fraction, a sign, or more than ten years.
pub(super) fn time(text: &str) -> Result<Duration, Malformed> {
    let (number, unit) = split(text);
    let milliseconds: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "" => {
            return Err(Malformed { problem: "has no unit", remedy: NOT_A_TIME.remedy });
        }
        _ => return Err(NOT_A_TIME),
    };
    if number.is_empty() {
        return Err(NOT_A_TIME);
    }
    let total = number.parse::<u64>().ok().and_then(|count| count.checked_mul(milliseconds));
    total.map(Duration::from_millis).filter(|time| *time <= LONGEST).ok_or(TOO_LONG)
}

/// Splits the leading digits from what follows them, which may stand behind one space.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.strip_prefix(' ').unwrap_or(unit))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{shown_size, size, time};

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("1KiB", 1024), ("8MiB", 8 << 20), ("2 GiB", 2 << 30), ("1048576GiB", 1 << 50)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_size_is_shown_as_it_is_typed() {
        for text in ["0", "512", "1KiB", "1025", "8MiB", "3GiB"] {
            assert_eq!(size(text).map(shown_size).as_deref(), Ok(text));
        }
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "KiB", "-1", "1.5MiB", "8MB", "8mib", "8 x", "1MiB ", "1048577GiB", "99999999999999999999"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_a_unit() {
        for (text, milliseconds) in [("0s", 0), ("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2 h", 7_200_000)] {
            assert_eq!(time(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_time_is_refused() {
        for text in ["", "s", "30", "-1s", "1.5h", "1d", "1h30m", "87601h", "99999999999999999999s"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
