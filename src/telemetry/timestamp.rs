//! Instants as RFC 3339 in UTC with milliseconds, for years up to 9999.

use std::cell::Cell;
use std::time::Duration;

pub(super) use crate::unix_time::now;

/// Length of `2006-01-02T15:04:05.678Z`.
const LENGTH: usize = 24;
const SECONDS_PER_DAY: u64 = 86_400;

thread_local! {
    /// The second written last and its text. Lines come many to the second, so the calendar is
    /// consulted once for all of them.
    static LAST: Cell<(u64, [u8; LENGTH])> = const { Cell::new((u64::MAX, [0; LENGTH])) };
}

/// Appends the text of an instant given as time since the Unix epoch.
pub(super) fn push_timestamp(out: &mut Vec<u8>, since_epoch: Duration) {
    let second = since_epoch.as_secs();
    let (last, mut text) = LAST.get();
    if last != second {
        text = whole_second(second);
        LAST.set((second, text));
    }
    let millis = since_epoch.subsec_millis();
    text[20] = digit(u64::from(millis / 100));
    text[21] = digit(u64::from(millis / 10 % 10));
    text[22] = digit(u64::from(millis % 10));
    out.extend_from_slice(&text);
}

fn whole_second(second: u64) -> [u8; LENGTH] {
    let (year, month, day) = date(second / SECONDS_PER_DAY);
    let clock = second % SECONDS_PER_DAY;
    let mut text = *b"0000-00-00T00:00:00.000Z";
    put_pair(&mut text, 0, year / 100 % 100);
    put_pair(&mut text, 2, year % 100);
    put_pair(&mut text, 5, month);
    put_pair(&mut text, 8, day);
    put_pair(&mut text, 11, clock / 3600);
    put_pair(&mut text, 14, clock / 60 % 60);
    put_pair(&mut text, 17, clock % 60);
    text
}

fn put_pair(text: &mut [u8; LENGTH], at: usize, value: u64) {
    text[at] = digit(value / 10);
    text[at + 1] = digit(value % 10);
}

fn digit(value: u64) -> u8 {
    // Callers pass 0 to 9, so nothing is cut off.
    b'0' + value as u8
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Years are taken to begin in March, which puts the leap day at their end: then the days before
/// each month are a straight line, and a span of 400 years has always the same length.
fn date(days_since_epoch: u64) -> (u64, u64, u64) {
    const DAYS_PER_400_YEARS: u64 = 146_097;
    /// From 0000-03-01 to 1970-01-01.
    const EPOCH: u64 = 719_468;
    let days = days_since_epoch + EPOCH;
    let (era, day_of_era) = (days / DAYS_PER_400_YEARS, days % DAYS_PER_400_YEARS);
    let leap_days = day_of_era / 1_460 + day_of_era / (DAYS_PER_400_YEARS - 1) - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{date, push_timestamp};

    fn text(seconds: u64, millis: u64) -> String {
        let mut out = Vec::new();
        push_timestamp(&mut out, Duration::from_millis(seconds * 1000 + millis));
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn known_instants() {
        assert_eq!(text(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(951_782_400, 7), "2000-02-29T00:00:00.007Z");
        assert_eq!(text(1_000_000_000, 999), "2001-09-09T01:46:40.999Z");
        assert_eq!(text(1_709_251_199, 40), "2024-02-29T23:59:59.040Z");
        assert_eq!(text(4_102_444_799, 100), "2099-12-31T23:59:59.100Z");
    }

    #[test]
    fn the_same_second_again_and_another_one() {
        assert_eq!(text(1_000_000_000, 1), "2001-09-09T01:46:40.001Z");
        assert_eq!(text(1_000_000_000, 2), "2001-09-09T01:46:40.002Z");
        assert_eq!(text(1_000_000_001, 0), "2001-09-09T01:46:41.000Z");
        assert_eq!(text(1_000_000_000, 3), "2001-09-09T01:46:40.003Z");
    }

    #[test]
    fn days_follow_each_other_for_eight_centuries() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..800 * 366 {
            assert_eq!(date(days), (year, month, day), "day {days}");
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }
}
