//! Moments as files have them: seconds since 1970 and RFC 3339. Days are counted as Hinnant does ("chrono-compatible
//! low-level date algorithms"): years that begin in March put the odd day last.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in seconds since 1970; 0 if the machine's clock is before that.
pub fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

/// `2026-01-18T09:30:00Z`.
pub fn rfc_3339(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Seconds since 1970 of a date (`2026-01-18`) or a moment (`2026-01-18T09:30:00.5+01:00`), parts of a second cut off.
/// `None` of anything else, and of a moment before 1970.
pub fn parse_rfc_3339(text: &str) -> Option<u64> {
    if !text.is_ascii() {
        return None;
    }
    let (date, time) = match text.split_at_checked(10)? {
        (date, "") => (date, "T00:00:00Z"),
        parts => parts,
    };
    let [year, month, day] = fixed(date, '-', [4, 2, 2])?;
    let clock = time.strip_prefix(['T', 't', ' '])?;
    let (clock, mut zone) = clock.split_at_checked(8)?;
    let [hour, minute, second] = fixed(clock, ':', [2, 2, 2])?;
    if let Some(fraction) = zone.strip_prefix('.') {
        zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
        if zone.len() == fraction.len() {
            return None;
        }
    }
    let east = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        (sign @ ("+" | "-"), offset) => {
            let [hours, minutes] = fixed(offset, ':', [2, 2])?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            let seconds = 3600 * hours + 60 * minutes;
            if sign == "+" { seconds } else { -seconds }
        }
        _ => return None,
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_of = [
        31,
        28 + i64::from(leap),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let in_month = *days_of.get(usize::try_from(month - 1).ok()?)?;
    // A leap second is the second after it.
    if !(1..=in_month).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let march = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * march + 2) / 5 + day - 1;
    let days = 146_097 * era + 365 * of_era + of_era / 4 - of_era / 100 + of_year - 719_468;
    u64::try_from(86_400 * days + 3600 * hour + 60 * minute + second - east).ok()
}

/// `N` numbers of as many digits as `widths` says.
fn fixed<const N: usize>(text: &str, between: char, widths: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(between);
    let mut numbers = [0; N];
    for (number, width) in numbers.iter_mut().zip(widths) {
        let part = parts.next()?;
        if part.len() != width || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_date() {
        // Of `date -u -d @SECONDS +%FT%TZ`.
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (1_768_694_400, "2026-01-18T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc_3339(seconds), expected);
            assert_eq!(parse_rfc_3339(expected), Some(seconds));
        }
    }

    #[test]
    fn zones_fractions_and_dates_are_read() {
        for (text, expected) in [
            ("2026-01-18", Some(1_768_694_400)),
            ("2026-01-18T01:00:00+01:00", Some(1_768_694_400)),
            ("2026-01-17t16:00:00.25-08:00", Some(1_768_694_400)),
            ("2026-01-18 00:00:00z", Some(1_768_694_400)),
            ("2016-12-31T23:59:60Z", Some(1_483_228_800)),
            ("", None),
            ("yesterday", None),
            ("2026-01-18T", None),
            ("2026-01-18T00:00:00", None),
            ("2026-01-18T00:00:00.Z", None),
            ("2026-01-18T00:00:00+1", None),
            ("2026-13-01", None),
            ("2026-00-01", None),
            ("2025-02-29", None),
            ("2026-01-18T24:00:00Z", None),
            ("1969-12-31T23:59:59Z", None),
            ("+026-01-18", None),
            ("2026-01-1\u{e9}", None),
            ("2026-01-18Z", None),
        ] {
            assert_eq!(parse_rfc_3339(text), expected, "{text}");
        }
    }
}
