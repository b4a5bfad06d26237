//! Security associations: keys, modes, lifetimes.

use crate::direction::Direction;
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The cipher suite of an SA. All suites have an explicit IV of 8 bytes, a salt of 4 and an ICV of 16.
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
    /// Returns the key length without the salt.
    pub const fn key_len(self) -> usize {
        match self {
            EspSuite::Aes128Gcm | EspSuite::Aes128Gmac => 16,
            EspSuite::Aes256Gcm | EspSuite::ChaCha20Poly1305 | EspSuite::Aes256Gmac => 32,
        }
    }

    /// Tests whether the suite encrypts the payload and not only authenticates it.
    pub const fn encrypts(self) -> bool {
        !matches!(self, EspSuite::Aes128Gmac | EspSuite::Aes256Gmac)
    }

    /// Returns the protection that the suite gives to a packet.
    pub const fn protection(self) -> Protection {
        if self.encrypts() { Protection::Secret } else { Protection::Authentic }
    }
}

/// A level of protection by ESP. Stronger levels are greater.
///
/// ```
/// use offload_api::{EspSuite, Protection};
///
/// assert!(EspSuite::Aes128Gcm.protection() > EspSuite::Aes128Gmac.protection());
/// assert_eq!(Protection::default(), Protection::None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protection {
    /// Neither authenticated nor encrypted.
    #[default]
    None,
    /// Authenticated.
    Authentic,
    /// Authenticated and encrypted.
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
    /// Makes a key from keying material: the cipher's key, then the salt (RFC 4106 8.1, RFC 7634 2). Returns `None` if
    /// the length does not match the suite.
    pub fn new(suite: EspSuite, material: &[u8]) -> Option<EspKey> {
        if material.len() != suite.key_len() + 4 {
            return None;
        }
        // IKE delivers key and salt as one block (RFC 4106 8.1).
        let (key_bytes, salt_bytes) = material.split_at(suite.key_len());
        let (mut key, mut salt) = ([0; 32], [0; 4]);
        key[..key_bytes.len()].copy_from_slice(key_bytes);
        salt.copy_from_slice(salt_bytes);
        Some(EspKey { suite, key, salt })
    }

    /// Returns the algorithm.
    pub fn suite(&self) -> EspSuite {
        self.suite
    }

    /// Returns the cipher's key.
    pub fn key(&self) -> &[u8] {
        &self.key[..self.suite.key_len()]
    }

    /// Returns the salt, the first bytes of every nonce.
    pub fn salt(&self) -> &[u8; 4] {
        &self.salt
    }

    /// Tests whether both keys produce the same nonces under the same cipher key, regardless of the suite: a GMAC tag
    /// and a GCM tag under one nonce leak as much as two GCM tags. The comparison is not constant-time, so do not use
    /// it on secrets that an attacker may choose.
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

/// The part of a packet that an SA protects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EspMode {
    /// The payload after the IP header, between two hosts.
    Transport,
    /// The whole packet, after a new IP header.
    Tunnel,
}

/// ESP in UDP, to traverse NATs (RFC 3948).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpEncapsulation {
    /// Source port; usually 4500.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

/// The don't-fragment bit in the outer header of a tunnel (RFC 4301 8.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DontFragment {
    /// Copied from the inner packet; set if the inner packet is IPv6.
    #[default]
    Copy,
    /// Always set.
    Set,
    /// Always clear: routers may fragment the outer packet.
    Clear,
}

/// The usage limits of an SA. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes protected by ESP: the payload after the IP header in transport mode, whole packets in tunnel mode.
    pub bytes: Option<u64>,
    /// Packets.
    pub packets: Option<u64>,
    /// Time since the SA was added.
    pub time: Option<Duration>,
}

/// The soft and hard limits of an SA.
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
    /// Limits that cause one event, which asks for a successor; the SA continues.
    pub soft: Limits,
    /// Limits that cause one event and end the SA: its packets are dropped.
    pub hard: Limits,
}

/// The kind of a limit in [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Bytes.
    Bytes,
    /// Packets.
    Packets,
    /// Time.
    Time,
}

/// The share of a device in the work of an SA.
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
    /// The host does all of the work.
    #[default]
    None,
    /// The device pads, encrypts and computes the ICV; on receive, it decrypts and gives a verdict. The host does the
    /// rest.
    Crypto,
    /// The device does all of the work: selectors, headers, numbers, replay window, lifetimes.
    Packet,
}

/// The parameters of a new security association.
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
    /// Transmit SAs wrap packets, receive SAs unwrap packets.
    pub direction: Direction,
    /// Security parameters index; 1 to 255 are reserved, 0 is never used on a wire (RFC 4303 2.1).
    pub spi: u32,
    /// Source address of the ESP packets. On receive, an unspecified address (`0.0.0.0`, `::`) matches any.
    pub source: IpAddr,
    /// Destination address of the ESP packets. On receive, an unspecified address matches any.
    pub destination: IpAddr,
    /// The protected part of a packet.
    pub mode: EspMode,
    /// The id by which policies find the SA.
    pub reqid: u32,
    /// Algorithm and key.
    pub key: EspKey,
    /// Extended sequence numbers: 64 bits, of which 32 are sent (RFC 4303 2.2.1).
    pub esn: bool,
    /// Size of the replay window in packets: 32 to 4096.
    pub replay_window: u32,
    /// ESP in UDP.
    pub encapsulation: Option<UdpEncapsulation>,
    /// Idle time after which a transmitting SA in UDP sends a NAT keep-alive (RFC 3948 4 proposes 20 s). `None` sends
    /// no keep-alives, for paths without a NAT.
    pub keep_alive: Option<Duration>,
    /// Soft and hard limits.
    pub lifetime: Lifetime,
    /// Outer don't-fragment bit of a tunnel.
    pub dont_fragment: DontFragment,
    /// Outer DSCP of a tunnel; `None` copies the inner DSCP.
    pub dscp: Option<u8>,
    /// Copies the outer DSCP to packets that leave a tunnel (RFC 2983 3.1).
    pub dscp_out: bool,
    /// Propagates ECN through a tunnel (RFC 6040 normal mode). If false, as with Linux's `noecn`, ECN is cleared in the
    /// outer header (compatibility mode) and left unchanged on exit.
    pub ecn: bool,
    /// Last number sent, or highest number received, before the SA starts. 0 for a new SA.
    pub last_number: u64,
    /// Share of the device in the work.
    pub offload: OffloadKind,
}

impl SaParams {
    /// Makes a transport mode SA in software, with a replay window of 64 and default options.
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
