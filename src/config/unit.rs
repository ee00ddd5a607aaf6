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
const NOT_A_RATE: Malformed = Malformed {
    problem: "is not a rate",
    remedy: "write a whole number with /s, /m or /h, such as \"100/s\", or \"off\"",
};
const NOT_A_BYTE_RATE: Malformed = Malformed {
    problem: "is not a rate of bytes",
    remedy: "write a size from 1KiB to below 4GiB with /s, /m or /h, such as \"10MiB/s\", or \"off\"",
};
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

/// Reads how many may come in a time: a whole number above zero, then `/s`, `/m` or `/h`.
///
/// # Errors
/// No time, another unit, zero, or more than 2^32 - 1.
pub(super) fn rate(text: &str) -> Result<(u32, Duration), Malformed> {
    let (count, time) = per(text, NOT_A_RATE)?;
    let count = count.parse().ok().filter(|count| *count > 0 && text.starts_with(|c: char| c.is_ascii_digit()));
    Ok((count.ok_or(NOT_A_RATE)?, time))
}

/// Reads how many bytes may come in a time: a size of at least 1 KiB, then `/s`, `/m` or `/h`.
///
/// # Errors
/// No time, no size, too little, or 4 GiB and more.
pub(super) fn byte_rate(text: &str) -> Result<(u32, Duration), Malformed> {
    let (bytes, time) = per(text, NOT_A_BYTE_RATE)?;
    let bytes = u32::try_from(size(bytes)?).ok().filter(|bytes| *bytes >= 1024);
    Ok((bytes.ok_or(NOT_A_BYTE_RATE)?, time))
}

/// Splits what comes in a time from the time.
fn per(text: &str, malformed: Malformed) -> Result<(&str, Duration), Malformed> {
    let (count, unit) = text.split_once('/').ok_or(malformed)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(malformed),
    };
    Ok((count, Duration::from_secs(seconds)))
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

    use super::{byte_rate, rate, shown_size, size, time};

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
    fn rates_have_a_time() {
        let second = Duration::from_secs(1);
        assert_eq!(rate("100/s"), Ok((100, second)));
        assert_eq!(rate("5/m"), Ok((5, 60 * second)));
        assert_eq!(byte_rate("10MiB/s"), Ok((10 << 20, second)));
        assert_eq!(byte_rate("2048/h"), Ok((2048, 3600 * second)));
        for text in ["", "100", "/s", "0/s", "+1/s", "-1/s", "1.5/s", "1/ s", "1/d", "4294967296/s", "10MiB/s"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["", "10MiB", "/s", "0/s", "1023/s", "4GiB/s", "10MB/s", "10MiB/d"] {
            assert!(byte_rate(text).is_err(), "{text}");
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
