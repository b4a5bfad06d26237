//! When a file was modified, as fields of HTTP have it: seconds since 1970, as ownCloud's clients and rclone write them.

use core::time::Duration;
use std::time::SystemTime;

/// To the nanosecond.
pub(crate) fn to_text(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}.{:09}", since.as_secs(), since.subsec_nanos())
}

/// `None`: that is no time.
pub(crate) fn from_text(text: &str) -> Option<SystemTime> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let seconds: u64 = seconds.parse().ok().filter(|seconds| *seconds < 1 << 40)?;
    let nanos = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos))
}

/// The same, without the fraction of a second.
pub(crate) fn in_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_through_and_others_are_told() {
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
        assert_eq!(from_text(&to_text(time)), Some(time));
        assert_eq!(from_text("5.5"), Some(SystemTime::UNIX_EPOCH + Duration::from_millis(5500)));
        assert_eq!(from_text("5"), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(5)));
        for bad in ["", "x", "1.x", "-1", "99999999999999", "1.\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}"] {
            assert_eq!(from_text(bad), None, "{bad}");
        }
    }
}
