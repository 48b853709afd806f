//! Numbers as wrk and wrk2 write them: a quantity, scaled to its unit, and a column that keeps
//! the digits of quantities with and without a unit below each other.

/// `1.50ms` from µs; `0.90s` and `0.85m` come before 1.
pub(super) fn time_us(us: f64) -> String {
    if us < 1e6 { scaled(us, 1e3, &["us", "ms"]) } else { scaled(us / 1e6, 60.0, &["s", "m"]) }
}

/// `1.00s`: how long a run was. In seconds as soon as that is wrk's next unit, since most readers expect them.
pub(super) fn time_of_run(seconds: f64) -> String {
    if seconds < 0.85 { time_us(seconds * 1e6) } else { scaled(seconds, 60.0, &["s", "m"]) }
}

/// `30s`, `2m`: a length that somebody typed. Minutes only where they are whole.
pub(super) fn time_s(seconds: f64) -> String {
    if seconds >= 60.0 && seconds % 60.0 == 0.0 {
        return format!("{}m", seconds / 60.0);
    }
    format!("{seconds}s")
}

/// `31.28k`, in powers of 1000.
pub(super) fn metric(number: f64) -> String {
    scaled(number, 1e3, &["", "k", "M", "G", "T"])
}

/// `29.34M` (a `B` follows where bytes are meant), in powers of 1024.
pub(super) fn binary(number: f64) -> String {
    scaled(number, 1024.0, &["", "K", "M", "G", "T"])
}

/// `quantity`, right-aligned in `width` columns, its unit (none, one or two letters) in the last two.
pub(super) fn column(quantity: &str, width: usize) -> String {
    let unit = quantity.bytes().rev().take_while(u8::is_ascii_alphabetic).count().min(2);
    let pad = 2 - unit;
    format!("{quantity:>width$}{:pad$}", "", width = width - pad)
}

/// Takes the next unit from 0.85 of it on, as wrk does.
fn scaled(number: f64, step: f64, units: &[&str]) -> String {
    let mut number = number;
    let mut rest = units;
    while let [_, larger @ ..] = rest
        && !larger.is_empty()
        && number >= 0.85 * step
    {
        number /= step;
        rest = larger;
    }
    format!("{number:.2}{}", rest.first().copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_as_wrk_writes_them() {
        assert_eq!(time_us(92.0), "92.00us");
        assert_eq!(time_us(1790.0), "1.79ms");
        assert_eq!(time_us(2_010_000.0), "2.01s");
        assert_eq!(time_us(60_000_000.0), "1.00m");
        assert_eq!(time_us(900_370.0), "900.37ms");
        assert_eq!([30.0, 51.0, 120.0, 7200.0, 0.5].map(time_s), ["30s", "51s", "2m", "120m", "0.5s"]);
        assert_eq!([0.5, 0.99, 2.01, 60.0].map(time_of_run), ["500.00ms", "0.99s", "2.01s", "1.00m"]);
        assert_eq!(metric(31_280.0), "31.28k");
        assert_eq!(metric(890.0), "0.89k");
        assert_eq!(metric(26.67), "26.67");
        assert_eq!(binary(15_330_181.0), "14.62M");
        assert_eq!(binary(12.0), "12.00");
    }

    #[test]
    fn units_have_two_columns_of_their_own() {
        assert_eq!(column("92.00us", 10), "   92.00us");
        assert_eq!(column("1.05k", 8), "  1.05k ");
        assert_eq!(column("26.67", 8), " 26.67  ");
        assert_eq!(column("2.01s", 10), "    2.01s ");
    }
}
