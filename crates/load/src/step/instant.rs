//! A moment as people write it: RFC 3339, or seconds since 1970.

use std::time::{Duration, SystemTime};

use crate::error::Error;

const OPTION: &str = "--start-at";
const SHAPE: &str =
    "a moment to come, such as 2030-01-31T09:30:00Z, 2030-01-31T10:30:00.5+01:00 or 1896082200.25 (date +%s)";
/// Beyond it something else is meant, such as milliseconds.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// The moment that is meant.
pub(crate) fn parse(given: &str) -> Result<SystemTime, Error> {
    seconds_since_1970(given)
        .or_else(|| rfc3339(given))
        .filter(|since| (0.0..1e11).contains(since))
        .map(|since| SystemTime::UNIX_EPOCH + Duration::from_secs_f64(since))
        .ok_or_else(|| Error::usage(OPTION, given, SHAPE))
}

/// How long from now until then.
pub(crate) fn until(given: &str, moment: SystemTime) -> Result<Duration, Error> {
    let wait = moment.duration_since(SystemTime::now()).map_err(|past| {
        let ago = format!("a moment to come: that one was {:.1} s ago", past.duration().as_secs_f64());
        Error::usage(OPTION, given, ago)
    })?;
    if wait > LONGEST {
        let days = wait.as_secs() / 86_400;
        return Err(Error::usage(
            OPTION,
            given,
            format!("a moment within 30 days: that one is {days} days from now"),
        ));
    }
    Ok(wait)
}

fn seconds_since_1970(given: &str) -> Option<f64> {
    given.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.').then(|| given.parse().ok()).flatten()
}

/// RFC 3339 section 5.6: `YYYY-MM-DDTHH:MM:SS[.fraction](Z|±HH:MM)`.
fn rfc3339(given: &str) -> Option<f64> {
    let date_end = 10;
    let (date, rest) = (given.get(..date_end)?, given.get(date_end + 1..)?);
    if !matches!(given.as_bytes()[date_end], b'T' | b't' | b' ') {
        return None;
    }
    let clock_end = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, offset) = rest.split_at(clock_end);
    let [year, month, day] = fields(date, '-', [4, 2, 2])?;
    let (clock, fraction) = clock.split_once('.').map_or(Some((clock, 0.0)), |(clock, digits)| {
        let whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        whole.then(|| format!("0.{digits}").parse().ok()).flatten().map(|fraction| (clock, fraction))
    })?;
    let [hour, minute, second] = fields(clock, ':', [2, 2, 2])?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_in_month = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    // 60 is a leap second.
    if !(1..=days_in_month).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let offset_s = match offset.as_bytes() {
        b"Z" | b"z" => 0,
        [sign, ..] => {
            let [hours, minutes] = fields(&offset[1..], ':', [2, 2])?;
            let east_s = hours * 3600 + minutes * 60;
            if hours > 23 || minutes > 59 {
                return None;
            }
            if *sign == b'+' { east_s } else { -east_s }
        }
        [] => return None,
    };
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset_s;
    Some(seconds as f64 + fraction)
}

/// Numbers of exactly so many digits each.
fn fields<const N: usize>(text: &str, between: char, widths: [usize; N]) -> Option<[i64; N]> {
    let mut numbers = [0; N];
    let mut parts = text.split(between);
    for (number, width) in numbers.iter_mut().zip(widths) {
        let part = parts.next()?;
        if part.len() != width || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// In the Gregorian calendar. Years are counted from March, so that a leap day is a year's last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let years = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let days_before_month = (153 * month_from_march + 2) / 5;
    let leap_days = years / 4 - years / 100 + years / 400;
    365 * years + leap_days + days_before_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(given: &str) -> Option<f64> {
        let moment = parse(given).ok()?;
        Some(moment.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64())
    }

    #[test]
    fn moments() {
        // What `date -u -d … +%s.%N` says.
        for (given, expected) in [
            ("1970-01-01T00:00:00Z", 0.0),
            ("2000-02-29T23:59:59Z", 951_868_799.0),
            ("2026-11-22T05:00:00Z", 1_795_323_600.0),
            ("2030-01-31T10:30:00.5+01:00", 1_896_082_200.5),
            ("2030-01-31 04:00:00-05:30", 1_896_082_200.0),
            ("2100-03-01t00:00:00z", 4_107_542_400.0),
            ("1896082200.25", 1_896_082_200.25),
            ("0", 0.0),
        ] {
            assert_eq!(seconds(given), Some(expected), "{given}");
        }
    }

    #[test]
    fn what_is_no_moment() {
        for wrong in [
            "",
            "tomorrow",
            "-5",
            "1e5",
            "2026-11-22",
            "2026-11-22T05:00:00",
            "2026-11-31T05:00:00Z",
            "2025-02-29T05:00:00Z",
            "2100-02-29T05:00:00Z",
            "2026-13-01T05:00:00Z",
            "2026-11-22T24:00:00Z",
            "2026-11-22T5:00:00Z",
            "2026-11-22T05:00:00.Z",
            "2026-11-22T05:00:00+1:00",
            "2026-11-22T05:00:00+01:00:00",
            "2026-11-22T05:00:00Zulu",
            "2026-11-22é05:00:00Z",
            "999999999999",
        ] {
            assert!(parse(wrong).unwrap_err().is_usage(), "{wrong}");
        }
    }

    #[test]
    fn the_past_is_refused() {
        let error = until("0", parse("0").unwrap()).unwrap_err().to_string();
        assert!(error.contains("ago"), "{error}");
    }

    #[test]
    fn what_lies_far_ahead_is_refused() {
        let after = |days: u64| {
            let moment = SystemTime::now() + Duration::from_secs(days * 86_400);
            until("then", moment).map_err(|error| error.to_string())
        };
        assert!(after(29).is_ok());
        assert!(after(31).unwrap_err().contains("that one is 30 days from now"));
    }
}
