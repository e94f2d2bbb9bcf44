//! Formats numbers for readers: three significant digits with a suitable unit, joined by a no-break space.

/// Text in place of a number that was not measured.
pub const NOT_AVAILABLE: &str = "n/a";

/// Formats three significant digits, with commas between thousands.
pub fn digits(x: f64) -> String {
    match x.abs() {
        _ if !x.is_finite() => NOT_AVAILABLE.to_owned(),
        0.0 => "0".to_owned(),
        size if size >= 99.95 => grouped(&format!("{x:.0}")),
        size if size >= 9.995 => format!("{x:.1}"),
        size if size >= 0.9995 => format!("{x:.2}"),
        size if size >= 9.995e-5 => {
            // As many more decimals as there are zeros after the point.
            let decimals = 2 - size.log10().floor() as i32;
            format!("{x:.*}", decimals.clamp(3, 7) as usize)
        }
        _ => format!("{x:.1e}"),
    }
}

/// Formats a whole number, such as 16,384.
pub fn count(n: u64) -> String {
    grouped(&n.to_string())
}

fn grouped(whole: &str) -> String {
    let (sign, whole) = whole
        .strip_prefix('-')
        .map_or(("", whole), |rest| ("-", rest));
    let mut text = sign.to_owned();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a time given in milliseconds.
pub fn time_ms(ms: f64) -> String {
    match ms.abs() {
        _ if !ms.is_finite() => NOT_AVAILABLE.to_owned(),
        size if size >= 999.5 => format!("{}\u{a0}s", digits(ms / 1e3)),
        size if size >= 0.9995 || size == 0.0 => format!("{}\u{a0}ms", digits(ms)),
        size if size >= 0.9995e-3 => format!("{}\u{a0}µs", digits(ms * 1e3)),
        _ => format!("{}\u{a0}ns", digits(ms * 1e6)),
    }
}

/// Formats a share of 1 as percent.
pub fn percent(share: f64) -> String {
    match share.is_finite() {
        true if share.abs() >= 0.9995 => {
            format!("{}\u{a0}%", grouped(&format!("{:.0}", share * 100.0)))
        }
        true => format!("{:.1}\u{a0}%", share * 100.0),
        false => NOT_AVAILABLE.to_owned(),
    }
}

/// Formats a memory size, with units of 1024.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n}\u{a0}B");
    }
    let mut size = n as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1023.5 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{}\u{a0}{}", digits(size), UNITS[unit])
}

/// Formats a rate with units of 1000: `scaled(4.4e12, "B/s")` is `4.40 TB/s`.
pub fn scaled(x: f64, unit: &str) -> String {
    let steps = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match steps.iter().find(|(size, _)| x.abs() >= size * 0.9995) {
        _ if !x.is_finite() => NOT_AVAILABLE.to_owned(),
        Some((size, prefix)) => format!("{}\u{a0}{prefix}{unit}", digits(x / size)),
        None => format!("{}\u{a0}{unit}", digits(x)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        for (got, want) in [
            (digits(0.0), "0"),
            (digits(99.96), "100"),
            (digits(9.996), "10.0"),
            (digits(1.0 / 3.0), "0.333"),
            (digits(-1234.5), "-1,234"),
            (digits(1e-7), "1.0e-7"),
            (digits(0.001_234_56), "0.00123"),
            (digits(-0.000_999_4), "-0.000999"),
            (digits(0.05), "0.0500"),
            (digits(f64::NAN), "n/a"),
            (count(16_384), "16,384"),
            (count(999), "999"),
            (count(1_000_000), "1,000,000"),
            (time_ms(1234.0), "1.23 s"),
            (time_ms(412.4), "412 ms"),
            (time_ms(0.0034), "3.40 µs"),
            (time_ms(25e-6), "25.0 ns"),
            (time_ms(f64::INFINITY), "n/a"),
            (percent(0.445), "44.5 %"),
            (percent(12.3456), "1,235 %"),
            (percent(f64::NAN), "n/a"),
            (bytes(1023), "1023 B"),
            (bytes(1024), "1.00 KiB"),
            (bytes(5_799 << 20), "5.66 GiB"),
            (bytes(u64::MAX), "16,384 PiB"),
            (scaled(4.4e12, "B/s"), "4.40 TB/s"),
            (scaled(999.96e9, "op/s"), "1.00 Top/s"),
            (scaled(12.0, "B/s"), "12.0 B/s"),
        ] {
            assert_eq!(got.replace('\u{a0}', " "), want);
        }
    }
}
