//! Dates for the function `strftime_now`, in UTC: the directives of C's
//! `strftime` in the C locale. Calendar arithmetic: Howard Hinnant,
//! "chrono-Compatible Low-Level Date Algorithms".

use std::fmt::Write as _;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

const SECONDS_PER_DAY: i64 = 86_400;

/// A moment, taken apart.
struct Date {
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
    /// From 0, Sunday.
    weekday: i64,
    /// From 1.
    day_of_year: i64,
    seconds_of_day: i64,
}

impl Date {
    fn from_unix(seconds: i64) -> Self {
        let days = seconds.div_euclid(SECONDS_PER_DAY);
        // Years begin in March, so that the day that leap years add is their last.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_march_year =
            day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_march_year + 2) / 153;
        let month = if march_month < 10 {
            march_month + 3
        } else {
            march_month - 9
        };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let day_of_year = if month > 2 {
            day_of_march_year + 60 + i64::from(is_leap)
        } else {
            day_of_march_year - 305
        };
        Date {
            year,
            month,
            day: day_of_march_year - (153 * march_month + 2) / 5 + 1,
            weekday: (days + 4).rem_euclid(7),
            day_of_year,
            seconds_of_day: seconds.rem_euclid(SECONDS_PER_DAY),
        }
    }
}

/// `format` with the directives replaced; unknown ones stay as they are.
pub(super) fn strftime(format: &str, unix_seconds: i64) -> String {
    let date = Date::from_unix(unix_seconds);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // glibc: a hyphen asks for no padding.
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        match directive {
            Some(directive) => write_directive(&mut out, directive, padded, &date),
            None => out.push('%'),
        }
    }
    out
}

fn write_directive(out: &mut String, directive: char, padded: bool, date: &Date) {
    let month = MONTHS[(date.month - 1) as usize];
    let weekday = WEEKDAYS[date.weekday as usize];
    let (hour, minute, second) = (
        date.seconds_of_day / 3600,
        date.seconds_of_day / 60 % 60,
        date.seconds_of_day % 60,
    );
    let hour12 = (hour + 11) % 12 + 1;
    let mut nested = |parts: &[(char, &str)]| {
        for (directive, after) in parts {
            write_directive(out, *directive, true, date);
            out.push_str(after);
        }
    };
    let (number, width, fill) = match directive {
        'Y' => (date.year, 1, '0'),
        'y' => (date.year.rem_euclid(100), 2, '0'),
        'C' => (date.year.div_euclid(100), 2, '0'),
        'm' => (date.month, 2, '0'),
        'd' => (date.day, 2, '0'),
        'e' => (date.day, 2, ' '),
        'j' => (date.day_of_year, 3, '0'),
        'H' => (hour, 2, '0'),
        'I' => (hour12, 2, '0'),
        'M' => (minute, 2, '0'),
        'S' => (second, 2, '0'),
        'w' => (date.weekday, 1, '0'),
        'u' => ((date.weekday + 6) % 7 + 1, 1, '0'),
        'B' => return out.push_str(month),
        'b' | 'h' => return out.push_str(&month[..3]),
        'A' => return out.push_str(weekday),
        'a' => return out.push_str(&weekday[..3]),
        'p' => return out.push_str(if hour < 12 { "AM" } else { "PM" }),
        'F' => return nested(&[('Y', "-"), ('m', "-"), ('d', "")]),
        'D' | 'x' => return nested(&[('m', "/"), ('d', "/"), ('y', "")]),
        'T' | 'X' => return nested(&[('H', ":"), ('M', ":"), ('S', "")]),
        'R' => return nested(&[('H', ":"), ('M', "")]),
        'c' => return nested(&[('a', " "), ('b', " "), ('e', " "), ('T', " "), ('Y', "")]),
        'Z' => return out.push_str("UTC"),
        'z' => return out.push_str("+0000"),
        'n' => return out.push('\n'),
        't' => return out.push('\t'),
        '%' => return out.push('%'),
        other => {
            out.push('%');
            return out.push(other);
        }
    };
    let text = number.to_string();
    let missing = if padded {
        usize::saturating_sub(width, text.len())
    } else {
        0
    };
    out.extend(std::iter::repeat_n(fill, missing));
    let _ = write!(out, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts are from Python's `datetime.strftime`.
    #[test]
    fn dates_as_python_writes_them() {
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
        check(0, "%c %j %Z%z", "Thu Jan  1 00:00:00 1970 001 UTC+0000");
        check(951_782_400, "%F %j %a", "2000-02-29 060 Tue");
        check(1_735_646_400, "%F %j", "2024-12-31 366");
        check(1_740_787_200, "%F %j", "2025-03-01 060");
        check(-1, "%F %T %A %I%p", "1969-12-31 23:59:59 Wednesday 11PM");
        check(i64::MAX, "%%", "%");
    }
}
