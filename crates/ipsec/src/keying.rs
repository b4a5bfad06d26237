//! The interface of a keying daemon: SAs, policies and events.

use crate::device::{SecureDevice, SecureQueue};
use core::net::IpAddr;
use offload_api::ipsec::Packet;
use offload_api::{
    Direction, EspKey, Handle, Lifetime, Limit, NetDevice, Policy, SaParams, SaRefusal, Selector, Template,
};
use offload_base::Instant;

/// The identifier of an SA, valid from its addition until its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SaId(pub Handle);

/// The result of adding an SA.
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
    /// The SA's identifier.
    pub sa: SaId,
    /// The SA's SPI.
    pub spi: u32,
    /// Reason why the device does not work on the SA, which is then handled in software. After [`SaRefusal::NoSpace`],
    /// the device gets the SA as soon as it has room. `None` if the device took the SA, or if no offload was requested.
    pub refused: Option<SaRefusal>,
}

/// An error in a request to [`Keying`].
///
/// ```
/// use ipsec::KeyingError;
///
/// assert_eq!(KeyingError::Spi(7).to_string(), "the SPI 7 is reserved");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyingError {
    /// The SA or policy exists already.
    #[error("this SA or policy exists already: delete it first")]
    Exists,
    /// No such SA or policy exists.
    #[error("there is no SA or policy with these identifiers")]
    NotFound,
    /// The SPI is reserved, because it is below 256.
    #[error("the SPI {0} is reserved")]
    Spi(u32),
    /// The replay window is not between 32 and 4096 packets.
    #[error("the replay window of {0} packets is not between 32 and 4096")]
    ReplayWindow(u32),
    /// Source and destination are of different families, or one of them is unspecified where an address is required.
    #[error("source and destination do not go together")]
    Addresses,
    /// The first sequence number is beyond the SA's last one.
    #[error("the number {0} is beyond what the SA can count to")]
    Number(u64),
    /// ESP in UDP is not received on port 4500, where packets can be told apart from IKE (RFC 3948 2.1), or is sent to
    /// port 0.
    #[error("ESP in UDP must be received on port 4500, and sent to a port other than 0")]
    EncapsulationPort(u16),
    /// A hard limit was reached, or all sequence numbers are used. Only a new SA helps.
    #[error("the SA is used up")]
    UsedUp,
    /// The interval between keep-alives is zero.
    #[error("there must be time between keep-alives")]
    KeepAlive,
    /// The key and salt were used for sending before, so an SA that counts from the start again would repeat nonces.
    /// The SPI is not part of a nonce. The successor of a receiving SA needs a new key as well, because its peer sends
    /// with that key.
    #[error("this key and salt were used before: an SA needs some that no other had")]
    KeyReused,
    /// An SA of the other direction has the same key and salt. Both ends count from one, so nonces would be used twice.
    #[error("an SA of the other direction has this key and salt: each direction needs its own")]
    KeyOfOtherDirection,
    /// The memory of used keys is full, so a used key could no longer be told apart from a new one.
    #[error("{0} keys were used for sending, as many as are remembered: restart the program to use others")]
    TooManyKeys(usize),
    /// Another process uses the key, so that both would send under the same numbers.
    #[error("another process uses this key and salt: end it, or give the SA new ones")]
    KeyInUse,
    /// The SA's sequence numbers must outlive the process and could not be written to the store.
    #[error("the SA's sequence numbers cannot be written to their store: check the disk")]
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
    /// A soft limit was reached: the SA needs a successor.
    SoftLimit {
        /// The SA.
        sa: SaId,
        /// The limit that was reached.
        limit: Limit,
    },
    /// A hard limit was reached: the SA no longer carries packets.
    HardLimit {
        /// The SA.
        sa: SaId,
        /// The limit that was reached.
        limit: Limit,
    },
    /// All sequence numbers are used: the SA no longer carries packets.
    SequenceExhausted {
        /// The SA.
        sa: SaId,
    },
    /// The device's sequence number crossed 2^31 or 2^32, modulo 2^32.
    Crossed {
        /// The SA.
        sa: SaId,
        /// The sequence number after the crossing.
        number: u64,
    },
    /// A packet needs an SA that does not exist.
    Acquire {
        /// The template of the policy that protects the packet.
        template: Template,
        /// The packet.
        packet: Packet,
    },
    /// The device lost the SA, or refused an SA that it had deferred. The SA goes on in software.
    OffloadLost {
        /// The SA.
        sa: SaId,
    },
}

/// Usage of an SA so far.
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
    /// Packets sent or received.
    pub packets: u64,
    /// The last number sent, or the highest received.
    pub number: u64,
}

/// The interface of a keying daemon, which adds and changes SAs and policies.
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
    /// Adds an SA. A transmitting SA immediately takes over from older ones that fit the same policies. The older ones
    /// stay until they are deleted.
    ///
    /// # Errors
    /// If an SA with this SPI and these addresses exists, or the parameters contradict each other. A transmitting SA is
    /// refused if its key and salt were used for sending before, even if the earlier SA is deleted and whatever the
    /// first number is. No two SAs of different directions may have the same key and salt.
    fn add_sa(&mut self, now: Instant, sa: SaParams) -> Result<SaAdded, KeyingError>;

    /// Gives an SA a new lifetime, counted from now on.
    ///
    /// # Errors
    /// If no such SA exists, or it is used up.
    fn update_sa(&mut self, now: Instant, sa: SaId, lifetime: Lifetime) -> Result<(), KeyingError>;

    /// Adds a successor to an SA, with the same parameters except SPI and key, and with fresh counts. A transmitting
    /// successor takes over at once. The older SA stays until it is deleted, so that packets under way under its SPI
    /// are still accepted. To rekey without loss, add the receiver's successor first, then the sender's, and then
    /// delete both old SAs.
    ///
    /// # Errors
    /// If no such SA exists, or its successor exists already or has the same key; for a transmitting SA also as in
    /// [`add_sa`](Self::add_sa).
    fn rekey_sa(&mut self, now: Instant, sa: SaId, spi: u32, key: EspKey) -> Result<SaAdded, KeyingError>;

    /// Deletes an SA. Packets that the device has already are still sent.
    ///
    /// # Errors
    /// If no such SA exists.
    fn delete_sa(&mut self, sa: SaId) -> Result<(), KeyingError>;

    /// Returns the SA that was added with this SPI and these addresses, unless it is deleted.
    fn find_sa(&self, direction: Direction, spi: u32, source: IpAddr, destination: IpAddr) -> Option<SaId>;

    /// Returns the usage of an SA.
    fn sa_use(&self, sa: SaId) -> Option<SaUse>;

    /// Lends the fully offloaded (packet offload) SAs of a direction and `reqid`, and returns their device handles in
    /// the order they were added. The borrower, such as the host of a NIC's switch, then has the device use the SAs
    /// without this layer.
    ///
    /// From then on, the device alone counts the SAs' sequence numbers. If the device loses a lent SA, the SA is used
    /// up, and no later process may send under its key. If a policy protects packets by a lent SA, the device protects
    /// these packets from any sender; of several SAs between the same ends, the one lent last is used.
    ///
    /// An SA is not lent if an earlier process lent it, because all its numbers count as used. [`SaEvent::SoftLimit`]
    /// then asks for a successor.
    ///
    /// # Errors
    /// If no SA is lent because its numbers are used up or cannot be written to the store.
    fn lend_sas(&mut self, direction: Direction, reqid: u32) -> Result<Vec<Handle>, KeyingError>;

    /// Adds a policy.
    ///
    /// # Errors
    /// If a policy of this direction, selector and priority exists.
    fn add_policy(&mut self, policy: Policy) -> Result<(), KeyingError>;

    /// Deletes the policy of this direction, selector and priority.
    ///
    /// # Errors
    /// If no such policy exists.
    fn delete_policy(&mut self, direction: Direction, selector: &Selector, priority: u32) -> Result<(), KeyingError>;

    /// Returns the policies of a direction.
    fn policies(&self, direction: Direction) -> Vec<Policy>;

    /// Sets whether packets that match no policy pass. Such packets are discarded by default.
    fn set_default(&mut self, direction: Direction, bypass: bool);

    /// Returns the next event.
    fn poll_sa_event(&mut self) -> Option<SaEvent>;

    /// Writes the exact numbers of all SAs to their store. Usually the store is ahead of the numbers, and the next
    /// process loses the numbers in between. Packets may follow, at the cost of another write.
    fn write_numbers(&mut self);
}

/// A device that may be an IPsec layer.
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
    /// Returns the keying interface. `None` if the device is not an IPsec layer.
    fn keying(&mut self) -> Option<&mut dyn Keying>;
}

impl<D: NetDevice + ?Sized> KeyedDevice for D {
    fn keying(&mut self) -> Option<&mut dyn Keying> {
        let device = self.as_any();
        // `is` comes first, because returning the result of `downcast_mut` would keep `device` borrowed in all branches.
        if device.is::<SecureQueue>() {
            return device.downcast_mut::<SecureQueue>().map(|queue| queue as _);
        }
        device.downcast_mut::<SecureDevice>().map(|layer| layer as _)
    }
}
