//! IPsec in plain types: security associations, policies, who keys them, and the IPsec face of a device.
//!
//! Two traits meet here. [`Keying`] is what a keying daemon, or a file of keys, sees: it adds and deletes security
//! associations (SAs) and policies and hears when one is used up. [`IpsecDevice`] is what an IPsec layer sees of a NIC
//! that takes part of the work (`OffloadKind::Crypto`) or all of it (`OffloadKind::Packet`).
//!
//! Terms: RFC 4301 (architecture), RFC 4303 (ESP).

use crate::mark::{ContextEvent, PacketMark};
use crate::tls::Direction;
use crate::tx::PacketAsk;
use crate::unit::{Handle, engines};
use core::fmt;
use core::net::IpAddr;
use core::time::Duration;
use offload_base::Instant;
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

/// What of a packet an SA wraps.
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
    /// What of a packet it wraps.
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

/// Addresses that share their first bits.
///
/// ```
/// use offload_api::Prefix;
///
/// let net = Prefix::new("10.1.0.0".parse().unwrap(), 16).unwrap();
/// assert!(net.contains("10.1.2.3".parse().unwrap()) && !net.contains("10.2.0.0".parse().unwrap()));
/// assert!(Prefix::new("10.1.0.0".parse().unwrap(), 33).is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

impl Prefix {
    /// The addresses whose first `bits` bits are those of `address`. `None` if it has not so many.
    pub fn new(address: IpAddr, bits: u8) -> Option<Prefix> {
        let longest = if address.is_ipv4() { 32 } else { 128 };
        (bits <= longest).then(|| Prefix { address: masked(address, bits), bits })
    }

    /// This address alone.
    pub fn host(address: IpAddr) -> Prefix {
        Prefix { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// The first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits all share.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether `address` is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4() && masked(address, self.bits) == self.address
    }
}

/// `address` with all bits behind the first `bits` cleared.
pub fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

/// What a policy looks at in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol of the transport layer.
    pub protocol: u8,
    /// Source and destination port, where the protocol has them and they are in this packet.
    pub ports: Option<(u16, u16)>,
}

/// Which packets a policy is about. Source and destination are the packet's own, whichever way it goes.
///
/// ```
/// use offload_api::Selector;
/// use offload_api::ipsec::Packet;
///
/// let web = Selector { protocol: Some(6), destination_port: Some(443), ..Selector::ANY };
/// let packet = Packet {
///     source: "10.0.0.1".parse().unwrap(), destination: "10.0.0.2".parse().unwrap(), protocol: 6, ports: Some((5000, 443)),
/// };
/// assert!(web.matches(&packet) && !web.matches(&Packet { ports: None, ..packet }));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector {
    /// Source addresses; `None`: any, of either family.
    pub source: Option<Prefix>,
    /// Destination addresses.
    pub destination: Option<Prefix>,
    /// Protocol number.
    pub protocol: Option<u8>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
}

impl Selector {
    /// Every packet.
    pub const ANY: Selector =
        Selector { source: None, destination: None, protocol: None, source_port: None, destination_port: None };

    /// Whether it is about `packet`. A selector with ports is not about a packet that shows none, such as a fragment.
    pub fn matches(&self, packet: &Packet) -> bool {
        let ports = |wanted: Option<u16>, seen: Option<u16>| wanted.is_none() || wanted == seen;
        self.source.is_none_or(|prefix| prefix.contains(packet.source))
            && self.destination.is_none_or(|prefix| prefix.contains(packet.destination))
            && self.protocol.is_none_or(|protocol| protocol == packet.protocol)
            && ports(self.source_port, packet.ports.map(|(source, _)| source))
            && ports(self.destination_port, packet.ports.map(|(_, destination)| destination))
    }

    /// The same packets' answers: source and destination exchanged.
    #[must_use]
    pub fn reversed(self) -> Selector {
        Selector {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }
}

/// Which SAs a policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Template {
    /// Their mode.
    pub mode: EspMode,
    /// Source of a tunnel; `None`, as always in transport mode: the packet's own.
    pub source: Option<IpAddr>,
    /// Destination of a tunnel.
    pub destination: Option<IpAddr>,
    /// Their reqid; 0: any.
    pub reqid: u32,
}

impl Template {
    /// Transport mode SAs of this reqid.
    pub const fn transport(reqid: u32) -> Template {
        Template { mode: EspMode::Transport, source: None, destination: None, reqid }
    }

    /// Tunnels between these two, of this reqid.
    pub const fn tunnel(source: IpAddr, destination: IpAddr, reqid: u32) -> Template {
        Template { mode: EspMode::Tunnel, source: Some(source), destination: Some(destination), reqid }
    }
}

/// What a policy does with a packet (RFC 4301 4.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Drops it.
    Discard,
    /// Lets it pass as it is.
    Bypass,
    /// Has it protected by an SA, or drops it.
    Protect(Template),
}

/// A policy.
///
/// ```
/// use offload_api::{Action, Direction, Policy, Selector, Template};
///
/// let all = Policy {
///     direction: Direction::Transmit, selector: Selector::ANY, priority: 0, action: Action::Protect(Template::transport(1)),
/// };
/// assert_ne!(all, Policy { action: Action::Bypass, ..all });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// About packets sent, or about packets received.
    pub direction: Direction,
    /// Which packets.
    pub selector: Selector,
    /// Lower goes before higher, as in Linux; among equals, the more specific goes first.
    pub priority: u32,
    /// What is done.
    pub action: Action,
}

/// Names an SA from when it is added to when it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaId(pub Handle);

/// What came of adding an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaAdded {
    /// Its name.
    pub sa: SaId,
    /// Its SPI.
    pub spi: u32,
    /// Why no device does what was asked of it; the SA works in software then. For want of space that is for the time
    /// being: the device gets it when others have left.
    pub refused: Option<SaRefused>,
}

/// Why a device would not take an SA or a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaRefused {
    /// There is no device with an IPsec face, or not for this kind of offload.
    #[error("no device takes this kind of IPsec offload")]
    NoDevice,
    /// The suite is not one of the device's.
    #[error("the device does not know the suite {0:?}")]
    Suite(EspSuite),
    /// The device's replay windows have other sizes.
    #[error("the device has no replay window of {0} packets")]
    ReplayWindow(u32),
    /// A hard limit that is zero or not above the soft one.
    #[error("the device wants hard limits above soft ones, and neither zero")]
    Lifetime,
    /// ESP in UDP in a mode for which the device does not have it.
    #[error("the device has ESP in UDP for packet offload in transport mode only")]
    Encapsulation,
    /// A receiving SA must name both of its addresses.
    #[error("the device wants both addresses of an SA")]
    Wildcard,
    /// No entry is free.
    #[error("the device has no room for one more SA or policy")]
    NoSpace,
    /// The control ring is full at the moment.
    #[error("the control ring is full")]
    Busy,
    /// The SA that a policy names is not in the device.
    #[error("the device does not know this SA")]
    UnknownSa,
}

/// What was wrong with a request to [`Keying`]: the caller's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyingError {
    /// There is such an SA or policy already.
    #[error("there is one already")]
    Exists,
    /// There is no such SA or policy.
    #[error("there is none")]
    NotFound,
    /// SPIs below 256 are reserved.
    #[error("the SPI {0} is reserved")]
    Spi(u32),
    /// The window is not between 32 and 4096 packets.
    #[error("a replay window of {0} packets, where 32 to 4096 is possible")]
    ReplayWindow(u32),
    /// Source and destination are of two families, or unspecified where they must not be.
    #[error("source and destination do not go together")]
    Addresses,
    /// The first number would be beyond the last that the SA can have.
    #[error("the number {0} is beyond what the SA can count to")]
    Number(u64),
    /// ESP in UDP comes to port 4500 (RFC 3948 2.1), where it is told from other datagrams; nothing is sent to port 0.
    #[error("ESP in UDP is received on port 4500, and sent to any but 0")]
    EncapsulationPort(u16),
    /// A hard limit was reached, or all numbers are used: only a new SA helps.
    #[error("the SA is used up")]
    UsedUp,
    /// Keep-alives without end.
    #[error("there must be time between keep-alives")]
    KeepAlive,
    /// An SA counts from the start again: under a key that was used for sending, it would use nonces twice. They are the
    /// same whatever the SPI. A successor that receives needs another key as well, for its peer does.
    #[error("this key and salt were used before: an SA needs some that no other had")]
    KeyReused,
    /// Each end would count from one under the same key, and nonces be used twice.
    #[error("an SA of the other direction has this key and salt: each direction needs its own")]
    KeyOfOtherDirection,
    /// So many keys were used for sending that no more can be remembered, and of another there is no telling whether it was
    /// one of them.
    #[error("{0} keys were used for sending, as many as are remembered: restart the program to use others")]
    TooManyKeys(usize),
}

/// What happened to SAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SaEvent {
    /// A soft limit was reached: time for a successor.
    SoftLimit {
        /// Whose.
        sa: SaId,
        /// Which one.
        limit: Limit,
    },
    /// A hard limit was reached: the SA is dead.
    HardLimit {
        /// Whose.
        sa: SaId,
        /// Which one.
        limit: Limit,
    },
    /// All sequence numbers are used: the SA is dead.
    SequenceExhausted {
        /// Whose.
        sa: SaId,
    },
    /// The device's sequence number crossed 2^31 or 2^32, modulo 2^32: the number, as it stood then.
    Crossed {
        /// Whose.
        sa: SaId,
        /// The number.
        number: u64,
    },
    /// A packet wants an SA that does not exist.
    Acquire {
        /// Which one.
        template: Template,
        /// The packet.
        packet: Packet,
    },
    /// The device lost the SA, or would not take it in the end, having had no time for it before; it goes on in software.
    OffloadLost {
        /// Which one.
        sa: SaId,
    },
}

/// What an SA has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaUse {
    /// Bytes protected, as [`Limits::bytes`] counts them.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// The number sent last, or received highest.
    pub number: u64,
}

/// Where SAs and policies come from: what a keying daemon talks to.
pub trait Keying {
    /// Adds an SA. A transmitting one takes over at once from older ones that fit the same policies; those stay until
    /// they are deleted.
    ///
    /// # Errors
    /// If there is one with this SPI and these addresses, or the parameters do not go together. A transmitting one may have
    /// no key and salt that one had before, be that deleted or not, whatever the number that it begins with; and no two that
    /// are there have one key and salt for both directions.
    fn add_sa(&mut self, now: Instant, sa: SaParams) -> Result<SaAdded, KeyingError>;

    /// Gives an SA another lifetime, counted from now on.
    ///
    /// # Errors
    /// If there is no such SA, or it is used up.
    fn update_sa(&mut self, now: Instant, sa: SaId, lifetime: Lifetime) -> Result<(), KeyingError>;

    /// Adds a successor to an SA: the same but for SPI, key and what was counted. A transmitting one takes over at once. The
    /// older one stays until it is deleted, so that what is on its way under its SPI arrives: so first the receiver gets a
    /// successor, then the sender, and then both delete what they had.
    ///
    /// # Errors
    /// If there is no such SA, its successor is there already, or has the same key; of a transmitting one, as in
    /// [`add_sa`](Self::add_sa).
    fn rekey_sa(&mut self, now: Instant, sa: SaId, spi: u32, key: EspKey) -> Result<SaAdded, KeyingError>;

    /// Deletes an SA. What was handed to the device before is still sent.
    ///
    /// # Errors
    /// If there is no such SA.
    fn delete_sa(&mut self, sa: SaId) -> Result<(), KeyingError>;

    /// The SA that was added with these, if it is not deleted.
    fn find_sa(&self, direction: Direction, spi: u32, source: IpAddr, destination: IpAddr) -> Option<SaId>;

    /// What an SA has done.
    fn sa_use(&self, sa: SaId) -> Option<SaUse>;

    /// Adds a policy.
    ///
    /// # Errors
    /// If there is one of this direction, selector and priority.
    fn add_policy(&mut self, policy: Policy) -> Result<(), KeyingError>;

    /// Deletes the policy of this direction, selector and priority.
    ///
    /// # Errors
    /// If there is none.
    fn delete_policy(&mut self, direction: Direction, selector: &Selector, priority: u32) -> Result<(), KeyingError>;

    /// What becomes of packets that no policy is about: discarded unless told otherwise.
    fn set_default(&mut self, direction: Direction, bypass: bool);

    /// The next event.
    fn poll_sa_event(&mut self) -> Option<SaEvent>;

    /// Has the numbers of all SAs written down as they are by now, where they outlive the process. They are written ahead
    /// else, and those up to there are lost to the next process. Packets may follow, at the cost of another write.
    fn write_numbers(&mut self);
}

/// A packet with an ESP header, which the device is to finish, or a plain one that it is to protect all by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspAsk {
    /// Crypto offload: the packet's headers hold an ESP header and IV, behind which everything is to be padded,
    /// encrypted and authenticated. Of segments, the first gets `number`, each further one the next.
    Finish {
        /// The device's SA.
        sa: Handle,
        /// Where the ESP header starts in the packet's headers.
        at: u16,
        /// Sequence number of the first packet.
        number: u64,
        /// What is behind the IV.
        next_header: u8,
    },
    /// Packet offload: must not leave but protected by this SA, to which the device's policies must lead it too. Of a
    /// fragment that shows no ports, the device takes the host's word.
    Protect {
        /// The device's SA.
        sa: Handle,
    },
}

impl From<EspAsk> for PacketAsk {
    fn from(ask: EspAsk) -> PacketAsk {
        match ask {
            EspAsk::Finish { sa, at, number, next_header } => {
                let args = FINISH | u64::from(at) << 8 | u64::from(next_header);
                PacketAsk { context: sa, number, args }
            }
            EspAsk::Protect { sa } => PacketAsk { context: sa, number: 0, args: 0 },
        }
    }
}

impl From<PacketAsk> for EspAsk {
    /// Of an ask that names an SA.
    ///
    /// ```
    /// use offload_api::{EspAsk, Handle, PacketAsk};
    ///
    /// let sa = Handle { index: 1 << 24, generation: 3 };
    /// for ask in [EspAsk::Protect { sa }, EspAsk::Finish { sa, at: 0x1234, number: 1 << 40, next_header: 255 }] {
    ///     assert_eq!(EspAsk::from(PacketAsk::from(ask)), ask);
    /// }
    /// ```
    fn from(PacketAsk { context: sa, number, args }: PacketAsk) -> EspAsk {
        match args & FINISH {
            0 => EspAsk::Protect { sa },
            _ => EspAsk::Finish { sa, at: (args >> 8) as u16, number, next_header: args as u8 },
        }
    }
}

/// In the arguments of an ask: the ESP header is there.
const FINISH: u64 = 1 << 24;

/// What a device did about ESP in a received packet. A packet in which anything failed is untouched; so is one whose
/// IPv4 header has a wrong checksum, for nobody could tell from what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EspVerdict {
    /// Nothing: no ESP, or no SA for it.
    #[default]
    None,
    /// Crypto offload: what is behind the IV is plaintext, and its ICV was right.
    Decrypted {
        /// The device's SA.
        sa: Handle,
        /// The whole sequence number; of several that were joined, of the first.
        number: u64,
        /// Packets of consecutive numbers that this one was joined of, which have one trailer left; 1: it was not.
        packets: u16,
    },
    /// Packet offload: this is the inner packet. It was authentic, one of its SA's, and no replay of another that the
    /// device opened.
    Unwrapped {
        /// The device's SA.
        sa: Handle,
        /// The whole sequence number; of several that were joined, of the first.
        number: u64,
        /// Packets of consecutive numbers that this one was joined of; 1: it was not.
        packets: u16,
    },
    /// The ICV is wrong, or the packet makes no sense.
    Failed,
    /// A fragment, which the device cannot work on.
    Fragment,
}

impl EspVerdict {
    /// How [`PacketMark::Opened`] says that a packet was unwrapped, not just decrypted where it is.
    pub const UNWRAPPED: u8 = 1;
}

impl From<PacketMark> for EspVerdict {
    fn from(mark: PacketMark) -> EspVerdict {
        match mark {
            PacketMark::Opened { context, number, packets, code } if context.engine() == engines::ESP => match code {
                EspVerdict::UNWRAPPED => EspVerdict::Unwrapped { sa: context, number, packets },
                _ => EspVerdict::Decrypted { sa: context, number, packets },
            },
            PacketMark::Failed { context } if context.engine() == engines::ESP => EspVerdict::Failed,
            PacketMark::Fragment { engine: engines::ESP } => EspVerdict::Fragment,
            _ => EspVerdict::None,
        }
    }
}

/// Something that happened to an SA in a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceSaEvent {
    /// A receiving SA works from now on.
    Ready(Handle),
    /// The SA is gone.
    Removed(Handle),
    /// The SA is gone, with policies that name it: the device was reset.
    Lost(Handle),
    /// A soft limit was reached.
    SoftLimit(Handle, Limit),
    /// A hard limit was reached: its packets are dropped.
    HardLimit(Handle, Limit),
    /// All sequence numbers are used: its packets are dropped.
    SequenceExhausted(Handle),
    /// The sequence number crossed 2^31 or 2^32, modulo 2^32.
    Crossed(Handle, u64),
}

impl DeviceSaEvent {
    /// How an engine tells of it; `None`: it is nothing that an engine tells.
    ///
    /// ```
    /// use offload_api::ipsec::DeviceSaEvent;
    /// use offload_api::{Handle, Limit};
    ///
    /// let sa = Handle { index: 1 << 24, generation: 3 };
    /// let event = DeviceSaEvent::HardLimit(sa, Limit::Packets);
    /// assert_eq!(event.to_context_event().and_then(DeviceSaEvent::of_context_event), Some(event));
    /// ```
    pub const fn to_context_event(self) -> Option<ContextEvent> {
        Some(match self {
            DeviceSaEvent::SoftLimit(context, limit) => ContextEvent { context, code: 0, value: limit as u64 },
            DeviceSaEvent::HardLimit(context, limit) => ContextEvent { context, code: 1, value: limit as u64 },
            DeviceSaEvent::SequenceExhausted(context) => ContextEvent { context, code: 2, value: 0 },
            DeviceSaEvent::Crossed(context, value) => ContextEvent { context, code: 3, value },
            DeviceSaEvent::Ready(_) | DeviceSaEvent::Removed(_) | DeviceSaEvent::Lost(_) => return None,
        })
    }

    /// What an engine told; `None`: no engine of this version does.
    pub const fn of_context_event(ContextEvent { context, code, value }: ContextEvent) -> Option<DeviceSaEvent> {
        let limit = match value {
            0 => Limit::Bytes,
            1 => Limit::Packets,
            _ => Limit::Time,
        };
        Some(match code {
            0 => DeviceSaEvent::SoftLimit(context, limit),
            1 => DeviceSaEvent::HardLimit(context, limit),
            2 => DeviceSaEvent::SequenceExhausted(context),
            3 => DeviceSaEvent::Crossed(context, value),
            _ => return None,
        })
    }
}

/// What an ESP engine can be told about an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaCommand {
    /// It has another lifetime, counted from now on.
    Renew(Lifetime),
    /// Numbers up to this one are the host's.
    GoOnAfter(u64),
}

/// What an ESP engine can be told about its policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyChange {
    /// Protect the packets of a selector by an SA.
    Set {
        /// Which packets.
        selector: Selector,
        /// Lower goes before higher.
        rank: u64,
        /// The SA.
        sa: Handle,
    },
    /// Give up a policy.
    Remove {
        /// Its selector.
        selector: Selector,
        /// Its rank.
        rank: u64,
    },
}

/// What an IPsec layer may ask of a device. Nothing here blocks. Commands and packets take effect in the order given.
pub trait IpsecDevice {
    /// Has the device keep an SA. A transmitting one may be used at once; a receiving one works from
    /// [`Ready`](DeviceSaEvent::Ready) on. In packet offload it takes each number of the window that ends at `last_number`
    /// once: which of them came before, the host knows.
    ///
    /// # Errors
    /// Whatever the device cannot take.
    fn add_sa(&mut self, sa: &SaParams) -> Result<Handle, SaRefused>;

    /// Gives an SA another lifetime, counted from now on.
    fn update_sa(&mut self, sa: Handle, lifetime: Lifetime);

    /// Packet offload: the host sends packets of a transmitting SA by itself, under numbers up to `last`; the device goes on
    /// behind them.
    ///
    /// # Errors
    /// If the device does not know it, or has no time: it may use those numbers then.
    fn advance_sa(&mut self, sa: Handle, last: u64) -> Result<(), SaRefused>;

    /// Gives up an SA after everything that was posted before.
    fn remove_sa(&mut self, sa: Handle);

    /// Has packets that match `selector` protected by `sa`, in place of the SA it named before, if it is there already.
    /// Of several that match, the one of the lowest `rank` counts: it is for the host to rank them as its own policies are.
    ///
    /// # Errors
    /// Whatever the device cannot take.
    fn set_policy(&mut self, selector: &Selector, rank: u64, sa: Handle) -> Result<(), SaRefused>;

    /// Takes a policy back.
    fn remove_policy(&mut self, selector: &Selector, rank: u64);

    /// The next event.
    fn poll_sa_event(&mut self) -> Option<DeviceSaEvent>;
}
