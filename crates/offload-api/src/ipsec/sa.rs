//! Security associations: keys, modes, lifetimes.

use crate::direction::Direction;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// What protects the packets of an SA. All have an explicit IV of 8 bytes, a salt of 4 and an ICV of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EspSuite {
    /// AES-128-GCM (RFC 4106).
    Aes128Gcm,
    /// AES-256-GCM (RFC 4106).
    Aes256Gcm,
    /// ChaCha20-Poly1305 (RFC 7634).
    ChaCha20Poly1305,
    /// AES-128-GMAC (RFC 4543): authenticates, does not encrypt.
    Aes128Gmac,
    /// AES-256-GMAC (RFC 4543): authenticates, does not encrypt.
    Aes256Gmac,
}

impl EspSuite {
    /// Bytes of its key, the salt not counted.
    pub const fn key_len(self) -> usize {
        match self {
            EspSuite::Aes128Gcm | EspSuite::Aes128Gmac => 16,
            EspSuite::Aes256Gcm | EspSuite::ChaCha20Poly1305 | EspSuite::Aes256Gmac => 32,
        }
    }

    /// Whether the payload is hidden as well as authenticated.
    pub const fn encrypts(self) -> bool {
        !matches!(self, EspSuite::Aes128Gmac | EspSuite::Aes256Gmac)
    }

    /// What it does for a packet.
    pub const fn protection(self) -> Protection {
        if self.encrypts() { Protection::Secret } else { Protection::Authentic }
    }
}

/// What ESP does for a packet; what does more is greater.
///
/// ```
/// use offload_api::{EspSuite, Protection};
///
/// assert!(EspSuite::Aes128Gcm.protection() > EspSuite::Aes128Gmac.protection());
/// assert_eq!(Protection::default(), Protection::None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protection {
    /// Nothing: it is there for all to see.
    #[default]
    None,
    /// Nobody changes it.
    Authentic,
    /// Nobody reads it, either.
    Secret,
}

/// The key of an SA. Never printed; overwritten when dropped.
///
/// ```
/// use offload_api::{EspKey, EspSuite};
///
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// assert_eq!((key.key().len(), key.salt()), (16, &[7; 4]));
/// assert!(!format!("{key:?}").contains('7'));
/// assert!(EspKey::new(EspSuite::Aes256Gcm, &[7; 20]).is_none(), "too short");
/// ```
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct EspKey {
    #[zeroize(skip)]
    suite: EspSuite,
    key: [u8; 32],
    salt: [u8; 4],
}

impl EspKey {
    /// A key from its keying material: the cipher's key, then the salt (RFC 4106 8.1, RFC 7634 2). `None` if it is
    /// not as long as the suite wants.
    pub fn new(suite: EspSuite, material: &[u8]) -> Option<EspKey> {
        if material.len() != suite.key_len() + 4 {
            return None;
        }
        let (key_bytes, salt_bytes) = material.split_at(suite.key_len());
        let (mut key, mut salt) = ([0; 32], [0; 4]);
        key[..key_bytes.len()].copy_from_slice(key_bytes);
        salt.copy_from_slice(salt_bytes);
        Some(EspKey { suite, key, salt })
    }

    /// The algorithm.
    pub fn suite(&self) -> EspSuite {
        self.suite
    }

    /// The cipher's key.
    pub fn key(&self) -> &[u8] {
        &self.key[..self.suite.key_len()]
    }

    /// The first bytes of every nonce.
    pub fn salt(&self) -> &[u8; 4] {
        &self.salt
    }

    /// Whether both give the same nonces under the same key, by whatever suite: two tags of GMAC and GCM under one nonce
    /// give as much away as two of GCM. Not for secrets that an attacker may choose: it takes as long as they are alike.
    ///
    /// ```
    /// use offload_api::{EspKey, EspSuite};
    ///
    /// let key = |suite, material| EspKey::new(suite, material).unwrap();
    /// let gcm = key(EspSuite::Aes128Gcm, &[7; 20]);
    /// assert!(gcm.is_same_as(&key(EspSuite::Aes128Gmac, &[7; 20])));
    /// assert!(!gcm.is_same_as(&key(EspSuite::Aes256Gcm, &[7; 36])));
    /// let salted = [[7; 16].as_slice(), &[8; 4]].concat();
    /// assert!(!gcm.is_same_as(&key(EspSuite::Aes128Gcm, &salted)));
    /// ```
    pub fn is_same_as(&self, other: &EspKey) -> bool {
        self.key() == other.key() && self.salt == other.salt
    }
}

impl fmt::Debug for EspKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EspKey({:?}, redacted)", self.suite)
    }
}

/// The part of a packet that an SA wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EspMode {
    /// What is behind the IP header, between two hosts.
    Transport,
    /// The whole packet, behind a new IP header.
    Tunnel,
}

/// ESP in UDP, to pass address translators (RFC 3948).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpEncapsulation {
    /// Source port; 4500 unless there is a reason.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

/// What becomes of the don't-fragment bit in the outer header of a tunnel (RFC 4301 8.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DontFragment {
    /// As in the inner packet; set if that is IPv6.
    #[default]
    Copy,
    /// Set.
    Set,
    /// Clear: routers may fragment what the tunnel makes.
    Clear,
}

/// What an SA may be used for before it is used up: `None` knows no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that ESP protects: what follows the IP header in transport mode, whole packets in tunnel mode.
    pub bytes: Option<u64>,
    /// Packets.
    pub packets: Option<u64>,
    /// Time since the SA was added.
    pub time: Option<Duration>,
}

/// When to ask for a successor, and when to stop.
///
/// ```
/// use core::time::Duration;
/// use offload_api::{Lifetime, ipsec::Limits};
///
/// // A successor is asked for after an hour; the SA ends after 70 minutes, or a terabyte.
/// let hour = Duration::from_secs(3600);
/// let lifetime = Lifetime {
///     soft: Limits { time: Some(hour), ..Limits::default() },
///     hard: Limits { time: Some(hour + hour / 6), bytes: Some(1 << 40), ..Limits::default() },
/// };
/// assert!(lifetime.soft.packets.is_none());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Reached: an event, once; the SA goes on.
    pub soft: Limits,
    /// Reached: an event, once; the SA is dead and its packets are dropped.
    pub hard: Limits,
}

/// Which of the [`Limits`] was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
    /// Time.
    Time,
}

/// How much of the work a device is to do for an SA.
///
/// ```
/// use offload_api::{Direction, DontFragment, EspKey, EspSuite, OffloadKind, SaParams, UdpEncapsulation};
///
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let sa = SaParams {
///     offload: OffloadKind::Crypto,
///     encapsulation: Some(UdpEncapsulation { source_port: 4500, destination_port: 4500 }),
///     dont_fragment: DontFragment::Set,
///     ..SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key)
/// };
/// assert_ne!(sa.offload, OffloadKind::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OffloadKind {
    /// None.
    #[default]
    None,
    /// Padding, trailer, encryption and ICV; decryption and verdict. Everything else is the host's.
    Crypto,
    /// All of it: selectors, headers, numbers, replay window, lifetimes.
    Packet,
}

/// A security association to be.
///
/// ```
/// use offload_api::{Direction, EspKey, EspMode, EspSuite, SaParams};
///
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let (here, there) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
/// let sa = SaParams { esn: true, ..SaParams::new(Direction::Transmit, 0x1001, here, there, key) };
/// assert_eq!((sa.mode, sa.replay_window), (EspMode::Transport, 64));
/// ```
#[derive(Clone, Debug)]
pub struct SaParams {
    /// Whether it wraps or unwraps.
    pub direction: Direction,
    /// Security parameters index; 1 to 255 are reserved, 0 is never used on a wire (RFC 4303 2.1).
    pub spi: u32,
    /// Source of its packets on the wire. Receiving, an unspecified address (`0.0.0.0`, `::`) stands for any.
    pub source: IpAddr,
    /// Their destination. Receiving, an unspecified address stands for any.
    pub destination: IpAddr,
    /// The part of a packet that it wraps.
    pub mode: EspMode,
    /// By which policies find it.
    pub reqid: u32,
    /// Algorithm and key.
    pub key: EspKey,
    /// Sequence numbers of 64 bits, of which 32 are sent (RFC 4303 2.2.1).
    pub esn: bool,
    /// How far behind the highest number received a packet may be: 32 to 4096.
    pub replay_window: u32,
    /// ESP in UDP.
    pub encapsulation: Option<UdpEncapsulation>,
    /// After how long a silence a transmitting SA in UDP sends a NAT keep-alive (RFC 3948 4, which proposes 20 s); `None`:
    /// never, where no translator is in between.
    pub keep_alive: Option<Duration>,
    /// When it is used up.
    pub lifetime: Lifetime,
    /// The outer don't-fragment bit of a tunnel.
    pub dont_fragment: DontFragment,
    /// The outer DSCP of a tunnel; `None`: the inner packet's.
    pub dscp: Option<u8>,
    /// Whether what leaves a tunnel gets the DSCP of the outer packet (RFC 2983 3.1), in place of its own.
    pub dscp_out: bool,
    /// Whether a tunnel passes ECN on (RFC 6040 normal mode) or hides it, as Linux's `noecn` does: clear in what goes in
    /// (compatibility mode), and untouched in what comes out.
    pub ecn: bool,
    /// The number before the first: sent last, or received highest. 0 in a new SA.
    pub last_number: u64,
    /// What a device is to do.
    pub offload: OffloadKind,
}

impl SaParams {
    /// A transport mode SA without anything special, in software, with a replay window of 64.
    pub fn new(direction: Direction, spi: u32, source: IpAddr, destination: IpAddr, key: EspKey) -> SaParams {
        SaParams {
            direction,
            spi,
            source,
            destination,
            mode: EspMode::Transport,
            reqid: 0,
            key,
            esn: false,
            replay_window: 64,
            encapsulation: None,
            keep_alive: None,
            lifetime: Lifetime::default(),
            dont_fragment: DontFragment::default(),
            dscp: None,
            dscp_out: false,
            ecn: true,
            last_number: 0,
            offload: OffloadKind::None,
        }
    }
}
