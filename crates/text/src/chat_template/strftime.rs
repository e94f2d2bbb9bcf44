//! Dates for the template function `strftime_now`, in UTC: the directives of C's `strftime` in the C locale.

use jiff::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;

/// Formats a moment. Unknown directives are left unchanged, as glibc does; a moment outside jiff's range
/// (years -9999 to 9999) becomes the nearest one inside.
pub(super) fn strftime(format: &str, unix_seconds: i64) -> String {
    let nearest = match unix_seconds < 0 {
        true => Timestamp::MIN,
        false => Timestamp::MAX,
    };
    let moment = Timestamp::from_second(unix_seconds).unwrap_or(nearest);
    let text = BrokenDownTime::from(moment).to_string(translate(format));
    text.expect("the directives of `translate` need only a date and a time")
}

/// Rewrites a format for jiff, which rejects unknown directives and writes some in another locale.
fn translate(format: &str) -> String {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // glibc's flag for numbers without padding.
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        match directive {
            Some(c @ ('y' | 'C' | 'm' | 'd' | 'e' | 'j' | 'H' | 'I' | 'M' | 'S' | 'w' | 'u')) => {
                out.push_str(if unpadded { "%-" } else { "%" });
                out.push(c);
            }
            Some(c @ ('A' | 'a' | 'B' | 'b' | 'h' | 'p' | 'n' | 't' | '%')) => out.extend(['%', c]),
            // C writes years without padding.
            Some('Y') => out.push_str("%-Y"),
            Some('F') => out.push_str("%-Y-%m-%d"),
            Some('D' | 'x') => out.push_str("%m/%d/%y"),
            Some('T' | 'X') => out.push_str("%H:%M:%S"),
            Some('R') => out.push_str("%H:%M"),
            Some('c') => out.push_str("%a %b %e %H:%M:%S %-Y"),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some(other) => out.extend(['%', '%', other]),
            None => out.push_str("%%"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts are from Python's `datetime.strftime`.
    #[test]
    fn formats_dates_as_python_does() {
        let check = |seconds, format, expected| assert_eq!(strftime(format, seconds), expected);
        let july = 1_721_952_000 + 4 * 3600 + 5 * 60 + 6;
        check(july, "%d %b %Y", "26 Jul 2024");
        check(july, "%Y-%m-%d", "2024-07-26");
        check(
            july,
            "%A, %B %-d, %y %j %w %u",
            "Friday, July 26, 24 208 5 5",
        );
        check(
            july,
            "%H:%M:%S %I %p %-I|%e|%%|%Q|%",
            "04:05:06 04 AM 4|26|%|%Q|%",
        );
        check(
            july,
            "%F %T %D %R %c",
            "2024-07-26 04:05:06 07/26/24 04:05 Fri Jul 26 04:05:06 2024",
        );
        check(july, "%h %C %-m %x %X", "Jul 20 7 07/26/24 04:05:06");
        check(0, "%c %j %Z%z", "Thu Jan  1 00:00:00 1970 001 UTC+0000");
        check(951_782_400, "%F %j %a", "2000-02-29 060 Tue");
        check(1_735_646_400, "%F %j", "2024-12-31 366");
        check(1_740_787_200, "%F %j", "2025-03-01 060");
        check(-1, "%F %T %A %I%p", "1969-12-31 23:59:59 Wednesday 11PM");
        check(i64::MAX, "%% %Y", "% 9999");
        check(i64::MIN, "é%", "é%");
    }
}
