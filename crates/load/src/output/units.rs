//! Numbers as people read them.

/// `1.50ms`, from µs.
pub(crate) fn time(us: f64) -> String {
    match us {
        _ if us < 1e3 => format!("{us:.2}us"),
        _ if us < 1e6 => format!("{:.2}ms", us / 1e3),
        _ => format!("{:.2}s", us / 1e6),
    }
}

/// `1.50MB`, from bytes, in powers of 1024 as wrk has it.
pub(crate) fn size(bytes: f64) -> String {
    let units = ["B", "KB", "MB", "GB", "TB"];
    let mut scaled = bytes;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes:.0}B") } else { format!("{scaled:.2}{}", units[unit]) }
}

/// `0.20%`, from a share of 1.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// `1,234,567`.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_their_units() {
        assert_eq!(
            [time(0.0), time(999.994), time(1500.0), time(2.5e6)],
            ["0.00us", "999.99us", "1.50ms", "2.50s"]
        );
        assert_eq!(
            [size(0.0), size(1023.0), size(1536.0), size(3e15)],
            ["0B", "1023B", "1.50KB", "2728.48TB"]
        );
        assert_eq!([percent(0.001), percent(1.0)], ["0.10%", "100.00%"]);
        assert_eq!(
            [grouped(0), grouped(999), grouped(1000), grouped(1_234_567)],
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
