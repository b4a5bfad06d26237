//! The direction of a context or an SA.

/// The half of a connection on which a context works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Data that this host sends.
    Transmit,
    /// Data that this host receives.
    Receive,
}
