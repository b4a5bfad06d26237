//! Dates of HTTP (RFC 9110 section 5.6.7), and times as numbers, for any year.
//!
//! Crate `httpdate` panics on times outside the years 1970 to 9999, and parses no dates before 1970.

use std::time::{Duration, SystemTime};

/// Parses a date in any of the three formats, from year 0 on. Returns `None` if the text is not a date.
///
/// ```
/// use http_rules::date::parse;
/// use std::time::{Duration, SystemTime};
///
/// assert_eq!(parse("Thu, 01 Jan 1970 00:00:09 GMT"), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(9)));
/// assert_eq!(parse("Wed, 31 Dec 1969 23:59:51 GMT"), Some(SystemTime::UNIX_EPOCH - Duration::from_secs(9)));
/// assert_eq!(parse("yesterday"), None);
/// ```
pub fn parse(text: &str) -> Option<SystemTime> {
    parse_exact(text).or_else(|| {
        // A wrong day of the week does not change the time, and a precondition must not be ignored because of it.
        let end = text.find([',', ' '])?;
        let days = DAYS.iter().find(|days| days.contains(&&text[..end]))?;
        days.iter().find_map(|day| parse_exact(&format!("{day}{}", &text[end..])))
    })
}

fn parse_exact(text: &str) -> Option<SystemTime> {
    if let Ok(time) = httpdate::parse_http_date(text) {
        return Some(time);
    }
    // IMF-fixdate and asctime have years of four digits. 400 years always have the same number of days and of weeks, so
    // shifting the year keeps the day of the week.
    let at = if text.ends_with(" GMT") { 12 } else { 20 };
    let year = text.get(at..at + 4).filter(|year| year.bytes().all(|byte| byte.is_ascii_digit()))?;
    let year: u16 = year.parse().ok().filter(|year| *year < 1970)?;
    let later = format!("{}{}{}", &text[..at], year + SHIFT_YEARS, &text[at + 4..]);
    httpdate::parse_http_date(&later).ok()?.checked_sub(SHIFT)
}

/// Formats a time as an IMF-fixdate. Returns `None` if the year is not within 0 to 9999, which the format cannot
/// express.
///
/// ```
/// use http_rules::date::format;
/// use std::time::{Duration, SystemTime};
///
/// assert_eq!(format(SystemTime::UNIX_EPOCH).as_deref(), Some("Thu, 01 Jan 1970 00:00:00 GMT"));
/// let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
/// assert_eq!(format(before).as_deref(), Some("Wed, 31 Dec 1969 23:59:59 GMT"));
/// assert_eq!(format(SystemTime::UNIX_EPOCH + Duration::from_secs(300_000_000_000)), None);
/// ```
pub fn format(time: SystemTime) -> Option<String> {
    match seconds(time) {
        0..END_OF_9999 => Some(httpdate::fmt_http_date(time)),
        START_OF_0..0 => {
            let later = httpdate::fmt_http_date(time.checked_add(SHIFT)?);
            let year: u16 = later[12..16].parse().ok()?;
            Some(format!("{}{:04}{}", &later[..12], year - SHIFT_YEARS, &later[16..]))
        }
        _ => None,
    }
}

/// Returns the nanoseconds from 1970 to `time`, negative for earlier times.
///
/// ```
/// use http_rules::date::nanoseconds;
/// use std::time::{Duration, SystemTime};
///
/// assert_eq!(nanoseconds(SystemTime::UNIX_EPOCH - Duration::from_nanos(5)), -5);
/// ```
pub fn nanoseconds(time: SystemTime) -> i128 {
    // A duration has fewer than 2^64 seconds, so the conversion to `i128` is exact.
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    }
}

/// Returns the time that many nanoseconds after 1970. Returns `None` if the system cannot represent the time.
///
/// ```
/// use http_rules::date::{from_nanoseconds, nanoseconds};
///
/// assert_eq!(from_nanoseconds(-5).map(nanoseconds), Some(-5));
/// assert_eq!(from_nanoseconds(i128::MAX), None);
/// ```
pub fn from_nanoseconds(nanoseconds: i128) -> Option<SystemTime> {
    let seconds = u64::try_from(nanoseconds.unsigned_abs() / SECOND.unsigned_abs()).ok()?;
    let apart = Duration::new(seconds, (nanoseconds.unsigned_abs() % SECOND.unsigned_abs()) as u32);
    match nanoseconds {
        0.. => SystemTime::UNIX_EPOCH.checked_add(apart),
        _ => SystemTime::UNIX_EPOCH.checked_sub(apart),
    }
}

/// Returns the seconds from 1970 to `time`, rounded down, like dates of HTTP.
pub(crate) fn seconds(time: SystemTime) -> i128 {
    nanoseconds(time).div_euclid(SECOND)
}

const DAYS: [[&str; 7]; 2] = [
    ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"],
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
];
const SECOND: i128 = 1_000_000_000;
const END_OF_9999: i128 = 253_402_300_800;
const START_OF_0: i128 = -62_167_219_200;
const SHIFT_YEARS: u16 = 2000;
/// The shift in years as a duration: five times 400 years.
const SHIFT: Duration = Duration::from_secs(5 * 146_097 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_formats_parse_to_the_same_time() {
        for date in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parse(date).map(seconds), Some(784_111_777), "{date}");
            assert_eq!(parse(&date.replace("Sun", "Mon")).map(seconds), Some(784_111_777), "{date}");
        }
        for date in ["Fri, 01 Jan 1960 00:00:00 GMT", "Fri Jan  1 00:00:00 1960"] {
            assert_eq!(parse(date).map(seconds), Some(-315_619_200), "{date}");
        }
        assert_eq!(parse("Sat, 01 Jan 0000 00:00:00 GMT").map(seconds), Some(-62_167_219_200));
        assert_eq!(parse("Fri, 31 Dec 9999 23:59:59 GMT").map(seconds), Some(END_OF_9999 - 1));
    }

    #[test]
    fn malformed_dates_are_refused() {
        for bad in [
            "",
            "0",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Day, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06 Nov 1994 08:49:37 GMT",
            "Sun, 31 Feb 1960 00:00:00 GMT",
            "Fri, 01 Jan -960 00:00:00 GMT",
            "Fri, 01 Jan 10000 00:00:00 GMT",
            "Fri, 01 Jan 1960 00:00:00 GMT, Fri, 01 Jan 1960 00:00:00 GMT",
            "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9} GMT",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn any_time_is_formatted_without_panic() {
        for seconds in [
            -1,
            -(1 << 40),
            START_OF_0 - 1,
            START_OF_0,
            -315_619_200,
            0,
            1,
            END_OF_9999 - 1,
            END_OF_9999,
            300_000_000_000,
            1 << 40,
        ] {
            let time = from_nanoseconds(seconds * SECOND).unwrap();
            let expected = (START_OF_0..END_OF_9999).contains(&seconds).then_some(seconds);
            assert_eq!(format(time).map(|date| super::seconds(parse(&date).unwrap())), expected, "{seconds}");
        }
        assert_eq!(seconds(from_nanoseconds(-1).unwrap()), -1);
        assert_eq!(from_nanoseconds(i128::MIN), None);
    }
}
