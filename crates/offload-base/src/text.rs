//! Text for people: parsing of rates, formatting of errors.

use core::error::Error;

/// Parses a rate in bits per second, such as `9G`, `2.5M` or `400`, from 1 to 10^15. Returns `None` if the text is not
/// a rate.
///
/// ```
/// use offload_base::text::bits_per_second;
///
/// assert_eq!(bits_per_second("2.5G"), Some(2_500_000_000));
/// assert_eq!(["fast", "0", "G", "1Gbit"].map(bits_per_second), [None; 4]);
/// ```
pub fn bits_per_second(text: &str) -> Option<u64> {
    let (number, factor) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 1e3),
        (at, 'M') => (&text[..at], 1e6),
        (at, 'G') => (&text[..at], 1e9),
        (at, 'T') => (&text[..at], 1e12),
        _ => (text, 1.0),
    };
    let bits = number.parse::<f64>().ok()? * factor;
    // The upper bound is below 2^53, so the conversion from `f64` loses no digit.
    (1.0..=1e15).contains(&bits).then_some(bits as u64)
}

/// Formats an error with its causes. A cause that is already part of the text is left out.
///
/// ```
/// use offload_base::text::with_causes;
///
/// assert_eq!(with_causes(&std::io::Error::other("no")), "no");
/// ```
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Many error types print their source themselves. Repeating it would read like two faults.
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt;

    #[derive(Debug)]
    struct FailedStep(&'static str, Option<Box<FailedStep>>);

    impl fmt::Display for FailedStep {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for FailedStep {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn each_cause_is_printed_once() {
        let cause = FailedStep("no route", Some(Box::new(FailedStep("the wire is cut", None))));
        let error = FailedStep("cannot connect: no route", Some(Box::new(cause)));
        assert_eq!(with_causes(&error), "cannot connect: no route: the wire is cut");
    }
}
