//! Where SAs and policies come from.

use crate::device::{SecureDevice, SecureQueue};
use core::net::IpAddr;
use offload_api::ipsec::Packet;
use offload_api::{
    Direction, EspKey, Handle, Lifetime, Limit, NetDevice, Policy, SaParams, SaRefusal, Selector, Template,
};
use offload_base::Instant;

/// Names an SA from when it is added to when it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaId(pub Handle);

/// What came of adding an SA.
///
/// ```
/// use ipsec::{SaAdded, SaId};
/// use offload_api::{Handle, SaRefusal};
///
/// let sa = SaId(Handle { index: 3, generation: 0 });
/// let added = SaAdded { sa, spi: 0x1001, refused: Some(SaRefusal::NoSpace) };
/// assert_eq!(added.refused.unwrap().to_string(), "the device has no room for one more SA or policy");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaAdded {
    /// Its name.
    pub sa: SaId,
    /// Its SPI.
    pub spi: u32,
    /// Why no device does what was asked of it; the SA works in software then. For want of space that is for the time
    /// being: the device gets it when others have left.
    pub refused: Option<SaRefusal>,
}

/// What was wrong with a request to [`Keying`]: the caller's fault.
///
/// ```
/// use ipsec::KeyingError;
///
/// assert_eq!(KeyingError::Spi(7).to_string(), "the SPI 7 is reserved");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyingError {
    /// There is such an SA or policy already.
    #[error("this SA or policy exists already: delete it first")]
    Exists,
    /// There is no such SA or policy.
    #[error("there is no SA or policy with these identifiers")]
    NotFound,
    /// SPIs below 256 are reserved.
    #[error("the SPI {0} is reserved")]
    Spi(u32),
    /// The window is not between 32 and 4096 packets.
    #[error("a replay window of {0} packets was asked for: 32 to 4096 are possible")]
    ReplayWindow(u32),
    /// Source and destination are of two families, or unspecified where they must not be.
    #[error("source and destination do not go together")]
    Addresses,
    /// The first number would be beyond the last that the SA can have.
    #[error("the number {0} is beyond what the SA can count to")]
    Number(u64),
    /// ESP in UDP comes to port 4500 (RFC 3948 2.1), where it is told from other datagrams; nothing is sent to port 0.
    #[error("ESP in UDP must be received on port 4500, and sent to a port other than 0")]
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
    /// Another process uses the key, and would send under the same numbers.
    #[error("another process uses this key and salt: end it, or give the SA new ones")]
    KeyInUse,
    /// A mark of numbers, which are to outlive the process, could not be written down.
    #[error("what is kept of the SA's numbers cannot be written: see to the disk")]
    NotWritten,
}

/// An event of an SA, for the keying daemon.
///
/// ```
/// use ipsec::{SaEvent, SaId};
/// use offload_api::{Handle, Limit};
///
/// /// The SA that a keying daemon has to replace.
/// fn to_replace(event: &SaEvent) -> Option<SaId> {
///     match event {
///         SaEvent::SoftLimit { sa, .. } | SaEvent::HardLimit { sa, .. } | SaEvent::SequenceExhausted { sa } => Some(*sa),
///         _ => None,
///     }
/// }
///
/// let sa = SaId(Handle { index: 3, generation: 0 });
/// assert_eq!(to_replace(&SaEvent::SoftLimit { sa, limit: Limit::Time }), Some(sa));
/// assert_eq!(to_replace(&SaEvent::OffloadLost { sa }), None);
/// ```
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
///
/// ```
/// use ipsec::SaUse;
///
/// let (before, now) = (SaUse::default(), SaUse { bytes: 1400, packets: 1, number: 1 });
/// assert_eq!((now.packets - before.packets, now.bytes - before.bytes), (1, 1400));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaUse {
    /// Bytes protected, as [`Limits::bytes`](offload_api::ipsec::Limits::bytes) counts them.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// The number sent last, or received highest.
    pub number: u64,
}

/// Where SAs and policies come from: what a keying daemon talks to.
///
/// ```
/// use core::net::IpAddr;
/// use ipsec::{Keying, KeyingError};
/// use offload_api::Direction;
///
/// /// Deletes the SA that receives under `spi`.
/// fn retire(keying: &mut dyn Keying, spi: u32, peer: IpAddr, here: IpAddr) -> Result<(), KeyingError> {
///     let sa = keying.find_sa(Direction::Receive, spi, peer, here).ok_or(KeyingError::NotFound)?;
///     keying.delete_sa(sa)
/// }
/// ```
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

    /// What a device calls those SAs of a direction and a `reqid` that it does all of, in the order they were added: for somebody who
    /// has the device work by them without this layer, such as the host of a NIC's switch. From then on the device alone counts
    /// their numbers: an SA that the device loses is used up, and a process that starts after this one may not send under its key.
    /// What policies want protected by them, the device protects, from any sender: of SAs between the same ends, by the one that was lent last.
    ///
    /// An SA whose numbers an earlier process has used up is not lent; [`SaEvent::SoftLimit`] tells that it needs a successor.
    ///
    /// # Errors
    /// If none is lent: the numbers of one are used up, or what is kept of them cannot be written.
    fn lend_sas(&mut self, direction: Direction, reqid: u32) -> Result<Vec<Handle>, KeyingError>;

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

    /// The policies of a direction.
    fn policies(&self, direction: Direction) -> Vec<Policy>;

    /// What becomes of packets that no policy is about: discarded unless told otherwise.
    fn set_default(&mut self, direction: Direction, bypass: bool);

    /// The next event.
    fn poll_sa_event(&mut self) -> Option<SaEvent>;

    /// Has the numbers of all SAs written down as they are by now, where they outlive the process. They are written ahead
    /// else, and those up to there are lost to the next process. Packets may follow, at the cost of another write.
    fn write_numbers(&mut self);
}

/// The keying of a device that is an IPsec layer.
///
/// ```
/// use ipsec::{KeyedDevice, SecureDevice};
/// use nic_sim::{NicConfig, nic};
///
/// let (_device, mut driver) = nic(NicConfig::default());
/// assert!(driver.keying().is_none());
/// let mut secure = SecureDevice::new(Box::new(driver));
/// assert!(secure.keying().is_some());
/// ```
pub trait KeyedDevice {
    /// Returns the keying. `None` if the device is no IPsec layer.
    fn keying(&mut self) -> Option<&mut dyn Keying>;
}

impl<D: NetDevice + ?Sized> KeyedDevice for D {
    fn keying(&mut self) -> Option<&mut dyn Keying> {
        let device = self.as_any();
        if device.is::<SecureQueue>() {
            return device.downcast_mut::<SecureQueue>().map(|queue| queue as _);
        }
        device.downcast_mut::<SecureDevice>().map(|layer| layer as _)
    }
}
