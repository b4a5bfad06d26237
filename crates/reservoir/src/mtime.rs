//! Modification times as HTTP fields: seconds since 1970, negative before, in the format of ownCloud's clients and
//! rclone.

use core::time::Duration;
use std::time::SystemTime;

/// The resolution of a time. Unknown times have their own variant, because any value might be a real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    Unknown,
    Seconds,
    Nanoseconds,
}

impl Resolution {
    /// Returns the resolution of a time in text form.
    pub(crate) fn from_text(text: &str) -> Resolution {
        if text.contains('.') { Resolution::Nanoseconds } else { Resolution::Seconds }
    }
}

/// Formats a time with nanoseconds.
pub(crate) fn to_text(time: SystemTime) -> String {
    let (sign, span) = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => ("", since),
        Err(before) => ("-", before.duration()),
    };
    format!("{sign}{}.{:09}", span.as_secs(), span.subsec_nanos())
}

/// Parses a time. Returns `None` if the text is malformed.
pub(crate) fn from_text(text: &str) -> Option<SystemTime> {
    let (is_before, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let (seconds, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    if !seconds.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: u64 = seconds.parse().ok().filter(|seconds| *seconds < 1 << 40)?;
    let nanos = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let span = Duration::new(seconds, nanos);
    match is_before {
        true => SystemTime::UNIX_EPOCH.checked_sub(span),
        false => SystemTime::UNIX_EPOCH.checked_add(span),
    }
}

/// Rounds a time down to whole seconds.
pub(crate) fn in_seconds(time: SystemTime) -> SystemTime {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs()),
        Err(before) => {
            let span = before.duration();
            let seconds = span.as_secs() + u64::from(span.subsec_nanos() > 0);
            SystemTime::UNIX_EPOCH.checked_sub(Duration::from_secs(seconds)).unwrap_or(time)
        }
    }
}

/// Tests whether two times are equal in their coarser resolution. An unknown time equals no other.
pub(crate) fn are_same(one: (SystemTime, Resolution), other: (SystemTime, Resolution)) -> bool {
    match (one.1, other.1) {
        (Resolution::Unknown, _) | (_, Resolution::Unknown) => false,
        (Resolution::Nanoseconds, Resolution::Nanoseconds) => one.0 == other.0,
        (Resolution::Seconds, _) | (_, Resolution::Seconds) => in_seconds(one.0) == in_seconds(other.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_and_bad_texts_are_refused() {
        let epoch = SystemTime::UNIX_EPOCH;
        for (time, text) in [
            (epoch, "0.000000000"),
            (epoch + Duration::new(1_700_000_000, 123_456_789), "1700000000.123456789"),
            (epoch - Duration::from_millis(250), "-0.250000000"),
            (epoch - Duration::new(1_000_000_000, 1), "-1000000000.000000001"),
            (epoch + Duration::from_secs(300_000_000_000), "300000000000.000000000"),
        ] {
            assert_eq!((to_text(time), from_text(text)), (text.to_owned(), Some(time)));
        }
        assert_eq!(from_text("5.5"), Some(epoch + Duration::from_millis(5500)));
        assert_eq!(from_text("-5"), Some(epoch - Duration::from_secs(5)));
        for bad in
            ["", "x", "1.x", "--1", "-", "1.-5", "+1", "1.+5", "99999999999999", "1.\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}"]
        {
            assert_eq!(from_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_compare_by_the_coarser_resolution() {
        use Resolution::{Nanoseconds, Seconds, Unknown};
        let at = |text| from_text(text).unwrap();
        for (one, other, same) in [
            (("7.2", Nanoseconds), ("7.9", Nanoseconds), false),
            (("7.0", Nanoseconds), ("7.9", Nanoseconds), false),
            (("7.9", Nanoseconds), ("7", Seconds), true),
            (("7.9", Nanoseconds), ("8", Seconds), false),
            (("-0.5", Nanoseconds), ("-1", Seconds), true),
            (("-0.5", Nanoseconds), ("0", Seconds), false),
            (("-1", Nanoseconds), ("-1", Seconds), true),
            (("0", Nanoseconds), ("0", Nanoseconds), true),
            (("0", Nanoseconds), ("0", Unknown), false),
            (("0", Unknown), ("0", Unknown), false),
        ] {
            assert_eq!(are_same((at(one.0), one.1), (at(other.0), other.1)), same, "{one:?} {other:?}");
        }
    }
}
