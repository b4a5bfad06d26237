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
//! Applied while packets flow, a file changes what is there, in the order of its statements:
//!
//! ```text
//! state rekey src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x1001 new-spi 0x2001
//!     aead 'rfc4106(gcm(aes))' 0x101112131415161718191a1b1c1d1e1fddccbbaa 128
//! state update src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x2001 limit packet-hard 4000000
//! state delete src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x1001
//! policy update src 10.9.0.0/16 dir in action allow
//! policy delete src 10.9.0.0/16 dir in
//! ```
//!
//! `state rekey` is no word of Linux's: it adds an SA like the one there is, but for `new-spi` and key. `state update` gives an
//! SA another lifetime, counted from then on, as Linux's does, and takes nothing but limits, at least one; `INF` is none. A policy's name is its
//! direction, selector and priority. Of tunnels, three words say what becomes of the outer header: `dscp` (`copy`, or a
//! number; `extra-flag dont-encap-dscp` is `dscp 0`), `df` (`copy`, `set`, `clear`, which is `flag nopmtudisc`), and
//! `flag noecn`; `flag decap-dscp` has the outer DSCP outlive the tunnel.
//!
//! Words that mean something to Linux and nothing here (`dev`, `auth-trunc`, `level use` and others) are refused rather
//! than passed over: a file must not promise what is not kept.
//!
//! - `words`: text to statements of words; `statement`: which kind one is;
//! - `state`: SAs; `policy`: policies; `value`: what both are made of.

mod policy;
mod state;
mod statement;
mod value;
mod words;

use crate::keying::{Keying, KeyingError, SaAdded, SaId};
use core::net::IpAddr;
use core::str::FromStr;
use offload_api::{Direction, EspKey, Lifetime, Policy, SaParams};
use offload_base::Instant;

/// SAs and policies from a file, or what is to become of them.
///
/// ```
/// use ipsec::KeyFile;
///
/// let error = "state add src 10.0.0.1 dst 10.0.0.2 proto ah".parse::<KeyFile>().unwrap_err();
/// assert_eq!(error.to_string(), "line 1: `ah` is not a protocol that is known here; there is esp");
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyFile {
    /// With the lines they are on.
    statements: Vec<(usize, Statement)>,
    defaults: Vec<(Direction, bool)>,
}

#[derive(Clone, Debug)]
enum Statement {
    /// `directed`: the file says which way it goes. Else its direction means nothing.
    Add {
        params: SaParams,
        directed: bool,
    },
    Update {
        name: Name,
        lifetime: Lifetime,
    },
    Rekey {
        name: Name,
        spi: u32,
        key: EspKey,
    },
    Delete(Name),
    AddPolicy(Policy),
    UpdatePolicy(Policy),
    /// Of which the action means nothing.
    DeletePolicy(Policy),
}

/// Which SA a statement is about.
#[derive(Clone, Copy, Debug)]
struct Name {
    source: IpAddr,
    destination: IpAddr,
    spi: u32,
    /// `None`: the file does not say.
    direction: Option<Direction>,
}

/// What is wrong with a text: its author's fault.
///
/// See [`KeyFile`] for an example.
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
///
/// See [`KeyFile`] for an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A word that does not belong there.
    #[error("`{0}` is not known here")]
    Unknown(String),
    /// A word that should be something else.
    #[error("`{found}` is not {expected}")]
    Expected {
        /// What is there.
        found: String,
        /// What should be.
        expected: &'static str,
    },
    /// A word that should be something else, and is or may be part of a key.
    #[error("the value here is not {0}")]
    Secret(&'static str),
    /// The statement ends too early.
    #[error("the statement ends where {0} should be")]
    Missing(&'static str),
    /// Something was said twice.
    #[error("`{0}` is there twice")]
    Twice(String),
    /// A quotation mark without its partner.
    #[error("a quotation mark is not closed")]
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
///
/// ```
/// use ipsec::keyfile::ApplyError;
/// use ipsec::{KeyFile, KeyedDevice, SecureDevice};
/// use offload_base::Instant;
///
/// let (_device, driver) = nic_sim::nic(nic_sim::NicConfig::default());
/// let mut secure = SecureDevice::new(Box::new(driver));
/// let file: KeyFile = "
///     state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x1001 reqid 1 mode transport
///         aead rfc4106(gcm(aes)) 0x000102030405060708090a0b0c0d0e0faabbccdd 128
/// ".parse()?;
/// let applied = file.apply(Instant::ZERO, secure.keying().unwrap(), &["10.0.0.3".parse()?]);
/// assert_eq!(applied.unwrap_err(), ApplyError::Elsewhere { line: 2 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// An SA between others.
    #[error("line {line}: neither address of the SA is an address of this host")]
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
    /// Does with `keying` what the file says, in its order. SAs that do not say which way they go go out if `local` has their
    /// source, in if it has their destination. That packets pass which no policy is about comes into force at the end, that
    /// they do not at the beginning: in between, policies may not be there yet.
    ///
    /// Returned are the SAs that were added, successors included.
    ///
    /// # Errors
    /// At the first that is refused; what came before stays.
    pub fn apply(&self, now: Instant, keying: &mut dyn Keying, local: &[IpAddr]) -> Result<Vec<SaAdded>, ApplyError> {
        self.set_defaults(keying, false);
        let mut added = Vec::new();
        for (line, statement) in &self.statements {
            let line = *line;
            let done = match statement {
                Statement::Add { params, directed } => {
                    let said = directed.then_some(params.direction);
                    let direction = direction_of(line, said, (params.source, params.destination), local)?;
                    keying.add_sa(now, SaParams { direction, ..params.clone() }).map(|sa| added.push(sa))
                }
                Statement::Update { name, lifetime } => {
                    let sa = name.find(line, keying, local)?;
                    keying.update_sa(now, sa, *lifetime)
                }
                Statement::Rekey { name, spi, key } => {
                    let sa = name.find(line, keying, local)?;
                    keying.rekey_sa(now, sa, *spi, key.clone()).map(|sa| added.push(sa))
                }
                Statement::Delete(name) => {
                    let sa = name.find(line, keying, local)?;
                    keying.delete_sa(sa)
                }
                Statement::AddPolicy(policy) => keying.add_policy(*policy),
                Statement::UpdatePolicy(policy) => {
                    // No packet passes in between.
                    let _there_may_be_none = keying.delete_policy(policy.direction, &policy.selector, policy.priority);
                    keying.add_policy(*policy)
                }
                Statement::DeletePolicy(policy) => {
                    keying.delete_policy(policy.direction, &policy.selector, policy.priority)
                }
            };
            done.map_err(|error| ApplyError::Refused { line, error })?;
        }
        self.set_defaults(keying, true);
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
        for (_, statement) in &mut mirrored.statements {
            match statement {
                Statement::Add { params, .. } => params.direction = other(params.direction),
                Statement::Update { name, .. } | Statement::Rekey { name, .. } | Statement::Delete(name) => {
                    name.direction = name.direction.map(other);
                }
                Statement::AddPolicy(policy) | Statement::UpdatePolicy(policy) | Statement::DeletePolicy(policy) => {
                    policy.direction = other(policy.direction);
                }
            }
        }
        for (direction, _) in &mut mirrored.defaults {
            *direction = other(*direction);
        }
        mirrored
    }

    /// The same, with this much for a device to do, whatever the file says.
    #[must_use]
    pub fn offloaded(mut self, kind: offload_api::OffloadKind) -> KeyFile {
        for (_, statement) in &mut self.statements {
            if let Statement::Add { params, .. } = statement {
                params.offload = kind;
            }
        }
        self
    }

    /// The SAs that it adds, but for successors.
    pub fn sas(&self) -> impl Iterator<Item = &SaParams> {
        self.statements.iter().filter_map(|(_, statement)| match statement {
            Statement::Add { params, .. } => Some(params),
            _ => None,
        })
    }

    /// The SPIs of all SAs that it adds.
    pub fn spis(&self) -> impl Iterator<Item = u32> + '_ {
        self.statements.iter().filter_map(|(_, statement)| match statement {
            Statement::Add { params, .. } => Some(params.spi),
            Statement::Rekey { spi, .. } => Some(*spi),
            _ => None,
        })
    }

    /// The policies that it adds, or puts in the place of others.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.statements.iter().filter_map(|(_, statement)| match statement {
            Statement::AddPolicy(policy) | Statement::UpdatePolicy(policy) => Some(policy),
            _ => None,
        })
    }

    fn set_defaults(&self, keying: &mut dyn Keying, bypass: bool) {
        // Of what is said twice, the last counts.
        for direction in [Direction::Receive, Direction::Transmit] {
            let said = self.defaults.iter().rev().find(|(of, _)| *of == direction);
            if said.is_some_and(|(_, said)| *said == bypass) {
                keying.set_default(direction, bypass);
            }
        }
    }
}

impl Name {
    fn find(&self, line: usize, keying: &dyn Keying, local: &[IpAddr]) -> Result<SaId, ApplyError> {
        let direction = direction_of(line, self.direction, (self.source, self.destination), local)?;
        let found = keying.find_sa(direction, self.spi, self.source, self.destination);
        found.ok_or(ApplyError::Refused { line, error: KeyingError::NotFound })
    }
}

/// Which way an SA goes, if the file does not say.
fn direction_of(
    line: usize,
    said: Option<Direction>,
    (source, destination): (IpAddr, IpAddr),
    local: &[IpAddr],
) -> Result<Direction, ApplyError> {
    match said {
        Some(direction) => Ok(direction),
        None if local.contains(&destination) || destination.is_unspecified() => Ok(Direction::Receive),
        None if local.contains(&source) => Ok(Direction::Transmit),
        None => Err(ApplyError::Elsewhere { line }),
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
