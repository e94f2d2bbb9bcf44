//! Timestamps as files hold them: seconds since 1970, and RFC 3339.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::Offset;

/// Returns the current time in seconds since 1970, or 0 if the system clock is set to an earlier time.
pub fn unix_now() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or(0)
}

/// Formats seconds since 1970 as `2026-01-18T09:30:00Z`. Times after the year 9999 are formatted as the end of that
/// year.
pub fn rfc_3339(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let seconds = seconds.min(Timestamp::MAX.as_second());
    let time = Timestamp::from_second(seconds);
    time.expect("the number of seconds is within the range")
        .to_string()
}

/// Parses a date (`2026-01-18`) or a time with an offset (`2026-01-18T09:30:00.5+01:00`) into seconds since 1970, with
/// fractions of a second cut off. Returns `None` for other text and for times before 1970.
pub fn parse_rfc_3339(text: &str) -> Option<u64> {
    let seconds = match text.parse::<Date>() {
        Ok(date) if text.len() == "2026-01-18".len() => {
            let midnight = date.at(0, 0, 0, 0);
            Offset::UTC.to_timestamp(midnight).ok()?.as_second()
        }
        _ => text.parse::<Timestamp>().ok()?.as_second(),
    };
    u64::try_from(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_agree_with_date() {
        // From `date -u -d @SECONDS +%FT%TZ`.
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
        // A file may hold any number.
        assert!(rfc_3339(u64::MAX).starts_with("9999-12-30T"));
    }

    #[test]
    fn parses_offsets_fractions_and_dates() {
        for (text, expected) in [
            ("2026-01-18", Some(1_768_694_400)),
            ("2026-01-18T01:00:00+01:00", Some(1_768_694_400)),
            ("2026-01-17t16:00:00.25-08:00", Some(1_768_694_400)),
            ("2026-01-18 00:00:00z", Some(1_768_694_400)),
            // A leap second counts as the second before it.
            ("2016-12-31T23:59:60Z", Some(1_483_228_799)),
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
