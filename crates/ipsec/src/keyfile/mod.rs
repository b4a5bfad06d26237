//! SAs and policies as text in the syntax of `ip xfrm` (iproute2).
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
//! A file can also be applied while packets flow. Its statements then change SAs and policies in their order:
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
//! `state rekey` is not a Linux statement: it adds an SA with the parameters of an existing one, except `new-spi` and
//! key. `state update` gives an SA a new lifetime, counted from then on as in Linux; it takes only limits, at least
//! one, and `INF` means no limit. A policy is identified by its direction, selector and priority. For tunnels, three
//! words set the outer header: `dscp` (`copy` or a number; `extra-flag dont-encap-dscp` is `dscp 0`), `df` (`copy`,
//! `set`, or `clear`, which is `flag nopmtudisc`), and `flag noecn`. `flag decap-dscp` keeps the outer DSCP when a
//! packet leaves the tunnel.
//!
//! Statement words with a meaning in Linux and no effect here (`dev`, `auth-trunc`, `level use` and others) are errors, because a
//! file must not promise a feature that is missing.
//!
//! - `words`: text to statements of words; `statement`: the kind of a statement;
//! - `state`: SAs; `policy`: policies; `value`: values that both use.

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

/// SAs and policies from a file, and changes to existing ones.
///
/// ```
/// use ipsec::KeyFile;
///
/// let error = "state add src 10.0.0.1 dst 10.0.0.2 proto ah".parse::<KeyFile>().unwrap_err();
/// assert_eq!(error.to_string(), "line 1: `ah` is not a protocol that is known here; there is esp");
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyFile {
    /// The statements, each with its line number.
    statements: Vec<(usize, Statement)>,
    defaults: Vec<(Direction, bool)>,
}

#[derive(Clone, Debug)]
enum Statement {
    /// Adds an SA. `directed`: the file gives the direction; otherwise the direction in `params` is ignored.
    Add {
        params: SaParams,
        directed: bool,
    },
    Update {
        name: SaIdentity,
        lifetime: Lifetime,
    },
    Rekey {
        name: SaIdentity,
        spi: u32,
        key: EspKey,
    },
    Delete(SaIdentity),
    AddPolicy(Policy),
    UpdatePolicy(Policy),
    /// Deletes a policy; the action is ignored.
    DeletePolicy(Policy),
}

/// The identity of an SA in a statement.
#[derive(Clone, Copy, Debug)]
struct SaIdentity {
    source: IpAddr,
    destination: IpAddr,
    spi: u32,
    /// `None` if the file does not give the direction.
    direction: Option<Direction>,
}

/// An error in a text: the line and the problem.
///
/// See [`KeyFile`] for an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct KeyFileError {
    /// The line number, from 1 on.
    pub line: usize,
    /// The problem.
    pub problem: KeyFileProblem,
}

/// A problem at one place of a text. Shown words are cut to a line's length, control characters are escaped, and keys
/// are omitted.
///
/// See [`KeyFile`] for an example.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFileProblem {
    /// An unknown word.
    #[error("`{0}` is not known here")]
    Unknown(String),
    /// A word of the wrong kind.
    #[error("`{found}` is not {expected}")]
    Expected {
        /// The word in the text.
        found: String,
        /// The expected kind of word.
        expected: &'static str,
    },
    /// A wrong word that is, or may be, part of a key, and so is not shown.
    #[error("the value here is not {0}")]
    Secret(&'static str),
    /// The statement ends too early.
    #[error("the statement ends where {0} should be")]
    Missing(&'static str),
    /// A word that is allowed once occurs twice.
    #[error("`{0}` is there twice")]
    Twice(String),
    /// A quotation mark without its partner.
    #[error("a quotation mark is not closed")]
    Quote,
    /// The key has the wrong length for its algorithm.
    #[error("the key has {found} bytes, salt included, where the algorithm takes {expected}")]
    KeyLength {
        /// Bytes in the text.
        found: usize,
        /// The expected number of bytes.
        expected: &'static str,
    },
    /// Contradictory parts.
    #[error("{0}")]
    Mismatch(&'static str),
}

/// An error of [`KeyFile::apply`].
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
    /// Neither end of an SA is an address of this host.
    #[error("line {line}: neither address of the SA is an address of this host")]
    Elsewhere {
        /// The statement's line number.
        line: usize,
    },
    /// The IPsec layer refused the statement.
    #[error("line {line}: {error}")]
    Refused {
        /// The statement's line number.
        line: usize,
        /// The layer's reason.
        error: KeyingError,
    },
}

impl KeyFile {
    /// Applies the file's statements to `keying` in their order, and returns the added SAs, including successors. If an
    /// SA has no direction, it transmits if `local` contains its source and receives if `local` contains its
    /// destination. A default of `accept` takes effect at the end, because policies may be missing before; a default of
    /// `block` takes effect at the beginning.
    ///
    /// # Errors
    /// If a statement is refused. Statements before it remain in effect.
    pub fn apply(&self, now: Instant, keying: &mut dyn Keying, local: &[IpAddr]) -> Result<Vec<SaAdded>, ApplyError> {
        // Blocking defaults come first and open ones last, so that no packet passes before the file's policies are
        // complete.
        self.set_defaults(keying, false);
        let mut added = Vec::new();
        for (line, statement) in &self.statements {
            let line = *line;
            let done = match statement {
                Statement::Add { params, directed } => {
                    // Without a direction in the file, the SA's own addresses decide.
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
                    // No packet passes between the two calls.
                    let _ = keying.delete_policy(policy.direction, &policy.selector, policy.priority);
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

    /// Returns the file for the other end, with all directions reversed.
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

    /// Returns the file with this kind of offload for every SA.
    #[must_use]
    pub fn offloaded(mut self, kind: offload_api::OffloadKind) -> KeyFile {
        for (_, statement) in &mut self.statements {
            if let Statement::Add { params, .. } = statement {
                params.offload = kind;
            }
        }
        self
    }

    /// Returns the SAs that the file adds, without successors.
    pub fn sas(&self) -> impl Iterator<Item = &SaParams> {
        self.statements.iter().filter_map(|(_, statement)| match statement {
            Statement::Add { params, .. } => Some(params),
            _ => None,
        })
    }

    /// Returns the SPIs of all SAs that the file adds, including successors.
    pub fn spis(&self) -> impl Iterator<Item = u32> + '_ {
        self.statements.iter().filter_map(|(_, statement)| match statement {
            Statement::Add { params, .. } => Some(params.spi),
            Statement::Rekey { spi, .. } => Some(*spi),
            _ => None,
        })
    }

    /// Returns the policies that the file adds or updates.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.statements.iter().filter_map(|(_, statement)| match statement {
            Statement::AddPolicy(policy) | Statement::UpdatePolicy(policy) => Some(policy),
            _ => None,
        })
    }

    fn set_defaults(&self, keying: &mut dyn Keying, bypass: bool) {
        // If a default is given twice, the last one counts.
        for direction in [Direction::Receive, Direction::Transmit] {
            let said = self.defaults.iter().rev().find(|(of, _)| *of == direction);
            if said.is_some_and(|(_, said)| *said == bypass) {
                keying.set_default(direction, bypass);
            }
        }
    }
}

impl SaIdentity {
    fn find(&self, line: usize, keying: &dyn Keying, local: &[IpAddr]) -> Result<SaId, ApplyError> {
        let direction = direction_of(line, self.direction, (self.source, self.destination), local)?;
        let found = keying.find_sa(direction, self.spi, self.source, self.destination);
        found.ok_or(ApplyError::Refused { line, error: KeyingError::NotFound })
    }
}

/// Returns the direction of an SA, derived from the local addresses if the file does not give it.
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
