//! The direction that a context or an SA works on.

/// Which half of a connection a context works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Data that this end sends.
    Transmit,
    /// Data that this end receives.
    Receive,
}
