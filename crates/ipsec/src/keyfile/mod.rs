//! SAs and policies as text that reads like the arguments of `ip xfrm` (iproute2).
//!
//! ```text
//! # comments; a statement goes on until the next line that begins with state or policy
//! state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x1001 reqid 1 mode transport
//!     replay-window 128 flag esn
//!     aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0faabbccdd 128
//!     encap espinudp 4500 4500 0.0.0.0
//!     limit packet-soft 1000000 limit byte-hard 100000000000 limit time-hard 3600
//!     offload packet dir out
//! policy add src 10.0.0.0/24 dst 10.0.0.2 proto tcp dport 443 dir out priority 7
//!     tmpl src 10.0.0.1 dst 10.0.0.2 proto esp reqid 1 mode transport
//! policy add src 10.9.0.0/16 dir in action block
//! policy setdefault in block out accept
//! ```
//!
//! Words that mean something to Linux and nothing here (`dev`, `auth-trunc`, `level use` and others) are refused rather
//! than passed over: a file must not promise what is not kept.
//!
//! - `words`: text to statements of words; `statement`: statements to SAs and policies.

mod statement;
mod words;

use core::net::IpAddr;
use core::str::FromStr;
use offload_api::ipsec::SaAdded;
use offload_api::{Direction, Keying, KeyingError, Policy, SaParams};
use offload_base::Instant;

/// SAs and policies from a file.
///
/// ```
/// use ipsec::KeyFile;
///
/// let error = "state add src 10.0.0.1 dst 10.0.0.2 proto ah".parse::<KeyFile>().unwrap_err();
/// assert_eq!(error.to_string(), "line 1: `ah`: not a protocol that is known here; there is esp");
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyFile {
    /// SAs, with the lines they are on. Their direction counts where `directed` says so.
    states: Vec<State>,
    policies: Vec<(usize, Policy)>,
    defaults: Vec<(Direction, bool)>,
}

#[derive(Clone, Debug)]
struct State {
    line: usize,
    params: SaParams,
    /// The file says which way it goes.
    directed: bool,
}

/// What is wrong with a text: its author's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct KeyFileError {
    /// Where, from 1 on.
    pub line: usize,
    /// What.
    pub problem: Problem,
}

/// What is wrong at one place. Words are cut to what fits a line, what terminals obey is escaped in them, and keys are
/// left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A word that does not belong there.
    #[error("`{0}`: not known here")]
    Unknown(String),
    /// A word that should be something else.
    #[error("`{found}`: not {expected}")]
    Expected {
        /// What is there.
        found: String,
        /// What should be.
        expected: &'static str,
    },
    /// A word that should be something else, and is or may be part of a key.
    #[error("what is here is not {0}")]
    Secret(&'static str),
    /// The statement ends too early.
    #[error("the statement ends where {0} should be")]
    Missing(&'static str),
    /// Something was said twice.
    #[error("`{0}` is there twice")]
    Twice(String),
    /// A quotation mark without its partner.
    #[error("a quotation mark without its partner")]
    Quote,
    /// The key's length is not its algorithm's.
    #[error("the key has {found} bytes, salt included, where the algorithm takes {expected}")]
    KeyLength {
        /// Bytes that are there.
        found: usize,
        /// What it should be.
        expected: &'static str,
    },
    /// Parts that do not go together.
    #[error("{0}")]
    Mismatch(&'static str),
}

/// What could not be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// An SA between others.
    #[error("line {line}: the SA goes from somebody else to somebody else")]
    Elsewhere {
        /// Where it is.
        line: usize,
    },
    /// The IPsec layer would not have it.
    #[error("line {line}: {error}")]
    Refused {
        /// Where it is.
        line: usize,
        /// Why.
        error: KeyingError,
    },
}

impl KeyFile {
    /// Adds everything to `keying`. SAs that do not say which way they go go out if `local` has their source, in if it
    /// has their destination.
    ///
    /// # Errors
    /// At the first that is refused; what came before stays.
    pub fn apply(&self, now: Instant, keying: &mut dyn Keying, local: &[IpAddr]) -> Result<Vec<SaAdded>, ApplyError> {
        for (direction, bypass) in &self.defaults {
            keying.set_default(*direction, *bypass);
        }
        for (line, policy) in &self.policies {
            keying.add_policy(*policy).map_err(|error| ApplyError::Refused { line: *line, error })?;
        }
        let mut added = Vec::new();
        for State { line, params, directed } in &self.states {
            let is_mine = |address: &IpAddr| local.contains(address);
            let direction = match () {
                () if *directed => params.direction,
                () if is_mine(&params.destination) || params.destination.is_unspecified() => Direction::Receive,
                () if is_mine(&params.source) => Direction::Transmit,
                () => return Err(ApplyError::Elsewhere { line: *line }),
            };
            let sa = SaParams { direction, ..params.clone() };
            added.push(keying.add_sa(now, sa).map_err(|error| ApplyError::Refused { line: *line, error })?);
        }
        Ok(added)
    }

    /// The same, as the other end needs it: what goes out here comes in there.
    #[must_use]
    pub fn mirrored(&self) -> KeyFile {
        let other = |direction| match direction {
            Direction::Transmit => Direction::Receive,
            Direction::Receive => Direction::Transmit,
        };
        let mut mirrored = self.clone();
        for state in &mut mirrored.states {
            state.params.direction = other(state.params.direction);
        }
        for (_, policy) in &mut mirrored.policies {
            policy.direction = other(policy.direction);
        }
        for (direction, _) in &mut mirrored.defaults {
            *direction = other(*direction);
        }
        mirrored
    }

    /// The same, with this much for a device to do, whatever the file says.
    #[must_use]
    pub fn offloaded(mut self, kind: offload_api::OffloadKind) -> KeyFile {
        for state in &mut self.states {
            state.params.offload = kind;
        }
        self
    }

    /// Its SAs.
    pub fn sas(&self) -> impl Iterator<Item = &SaParams> {
        self.states.iter().map(|state| &state.params)
    }

    /// Its policies.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter().map(|(_, policy)| policy)
    }
}

impl FromStr for KeyFile {
    type Err = KeyFileError;
    fn from_str(text: &str) -> Result<KeyFile, KeyFileError> {
        let mut file = KeyFile::default();
        for statement in words::statements(text)? {
            statement::read(statement, &mut file)?;
        }
        Ok(file)
    }
}
