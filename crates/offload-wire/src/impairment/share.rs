//! Shares of frames.

use core::fmt;
use core::str::FromStr;

/// A share of all frames, from 0 to 1: 0.01 is one in a hundred.
///
/// ```
/// use offload_wire::Share;
///
/// assert_eq!("0.25".parse(), Share::new(0.25));
/// assert!(Share::new(1.5).is_err() && "much".parse::<Share>().is_err());
/// assert_eq!(Share::default(), Share::NEVER);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Share(f64);

/// The error for a number that is not a share.
///
/// ```
/// use offload_wire::Share;
///
/// let error = Share::new(1.5).unwrap_err();
/// assert_eq!(error.to_string(), "1.5 is not a share: give a number from 0 to 1, where 0.01 is 1 %");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given} is not a share: give a number from 0 to 1, where 0.01 is 1 %")]
pub struct InvalidShare {
    given: String,
}

impl Share {
    /// The share that selects no frame.
    pub const NEVER: Share = Share(0.0);
    /// The share that selects every frame.
    pub const ALWAYS: Share = Share(1.0);

    /// Creates a share.
    ///
    /// # Errors
    /// If `share` is not a number from 0 to 1.
    pub fn new(share: f64) -> Result<Share, InvalidShare> {
        // This comparison also fails for NaN.
        if (0.0..=1.0).contains(&share) { Ok(Share(share)) } else { Err(InvalidShare { given: share.to_string() }) }
    }

    /// Returns the share as a number from 0 to 1.
    pub fn as_f64(self) -> f64 {
        self.0
    }
}

impl FromStr for Share {
    type Err = InvalidShare;
    fn from_str(text: &str) -> Result<Share, InvalidShare> {
        let invalid = || InvalidShare { given: text.to_owned() };
        // The error shows the text as given, not the number as parsed.
        Share::new(text.parse().map_err(|_| invalid())?).map_err(|_| invalid())
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
