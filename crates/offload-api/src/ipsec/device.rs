//! The IPsec interface of a device: SAs, policies, requests and verdicts.

use super::{EspSuite, Lifetime, Limit, SaParams, Selector};
use crate::mark::{ContextEvent, PacketMark};
use crate::tx::PacketAsk;
use crate::unit::{Handle, engines};

/// The reasons for which a device refuses an SA or a policy.
///
/// ```
/// use offload_api::{EspSuite, SaRefusal};
///
/// let refused = SaRefusal::Suite(EspSuite::ChaCha20Poly1305);
/// assert_eq!(refused.to_string(), "the device does not know the suite ChaCha20Poly1305");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaRefusal {
    /// The device has no IPsec interface, or does not support this kind of offload.
    #[error("no device takes this kind of IPsec offload")]
    NoDevice,
    /// The device does not support the suite.
    #[error("the device does not know the suite {0:?}")]
    Suite(EspSuite),
    /// The device does not support this size of the replay window.
    #[error("the device has no replay window of {0} packets")]
    ReplayWindow(u32),
    /// A hard limit is zero or not above the soft limit.
    #[error("the device needs hard limits above soft limits, and neither may be zero")]
    Lifetime,
    /// The device does not support ESP in UDP with this kind of offload.
    #[error("the device has ESP in UDP for packet offload only")]
    Encapsulation,
    /// A receiving SA lacks one of its addresses.
    #[error("the device needs both addresses of an SA")]
    Wildcard,
    /// No entry is free.
    #[error("the device has no room for one more SA or policy")]
    NoSpace,
    /// The control ring is full at the moment.
    #[error("the control ring is full")]
    Busy,
    /// The policy names an SA that the device does not have.
    #[error("the device does not know this SA")]
    UnknownSa,
}

/// A request for ESP: finish a packet with an ESP header, or protect a plain packet completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspAsk {
    /// Crypto offload: the packet's headers contain an ESP header and IV. The device pads, encrypts and authenticates
    /// all bytes after the IV. The first segment gets `number`, each further segment the next.
    Finish {
        /// The device's SA.
        sa: Handle,
        /// Offset of the ESP header in the packet's headers.
        at: u16,
        /// Sequence number of the first packet.
        number: u64,
        /// Protocol of the payload after the IV.
        next_header: u8,
    },
    /// Packet offload: the packet must leave protected by this SA or not at all. The device's policies must select the
    /// same SA, except for a fragment without ports, where the device trusts the host.
    Protect {
        /// The device's SA.
        sa: Handle,
    },
}

impl From<EspAsk> for PacketAsk {
    fn from(ask: EspAsk) -> PacketAsk {
        match ask {
            EspAsk::Finish { sa, at, number, next_header } => {
                // Layout of `args`: the flag, the offset of the ESP header in 16 bits, the next header in 8 bits.
                let args = FINISH | u64::from(at) << 8 | u64::from(next_header);
                PacketAsk { context: sa, number, args }
            }
            EspAsk::Protect { sa } => PacketAsk { context: sa, number: 0, args: 0 },
        }
    }
}

impl From<PacketAsk> for EspAsk {
    /// Decodes a request to the ESP engine.
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

/// Flag in the arguments of a request: the packet has an ESP header.
const FINISH: u64 = 1 << 24;

/// The verdict of the ESP engine on a received packet. A packet is unchanged if any check failed, or if its IPv4 header
/// has a wrong checksum, because the host could not see that after the headers are removed.
///
/// ```
/// use offload_api::{EspVerdict, Handle, PacketMark, RxMeta, engines};
///
/// let context = Handle { index: Handle::indices(engines::ESP, 1).start, generation: 0 };
/// let mut meta = RxMeta::default();
/// assert_eq!(meta.esp(), EspVerdict::None);
/// meta.marks.set_packet(PacketMark::Failed { context });
/// assert_ne!(meta.esp(), EspVerdict::None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EspVerdict {
    /// The packet is not ESP, or no SA matched.
    #[default]
    None,
    /// Crypto offload: the bytes after the IV are plaintext, and the ICV was correct.
    Decrypted {
        /// The device's SA.
        sa: Handle,
        /// Full sequence number; the first one if several packets were joined.
        number: u64,
        /// Number of joined packets with consecutive numbers and one trailer left. 1 if the packet was not joined.
        packets: u16,
    },
    /// Packet offload: the inner packet. The device authenticated it and checked it against the SA and the replay
    /// window.
    Unwrapped {
        /// The device's SA.
        sa: Handle,
        /// Full sequence number; the first one if several packets were joined.
        number: u64,
        /// Number of joined packets with consecutive numbers. 1 if the packet was not joined.
        packets: u16,
    },
    /// The ICV is wrong, or the packet is malformed.
    Failed,
    /// A fragment. The device cannot work on fragments.
    Fragment,
}

impl EspVerdict {
    /// The code in [`PacketMark::Opened`] for an unwrapped packet. Other codes mean decrypted in place.
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

/// An event of an SA in a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceSaEvent {
    /// A receiving SA works from now on.
    Ready(Handle),
    /// The SA is removed.
    Removed(Handle),
    /// The device was reset: the SA and the policies that name it are gone.
    Lost(Handle),
    /// A soft limit was reached.
    SoftLimit(Handle, Limit),
    /// A hard limit was reached; the device drops the SA's packets.
    HardLimit(Handle, Limit),
    /// All sequence numbers are used; the device drops the SA's packets.
    SequenceExhausted(Handle),
    /// The sequence number crossed 2^31 or 2^32, modulo 2^32.
    Crossed(Handle, u64),
}

impl DeviceSaEvent {
    /// Encodes the event for the engine interface; `None` for events that engines do not report.
    ///
    /// ```
    /// use offload_api::ipsec::DeviceSaEvent;
    /// use offload_api::{Handle, Limit};
    ///
    /// let sa = Handle { index: 1 << 24, generation: 3 };
    /// let event = DeviceSaEvent::HardLimit(sa, Limit::Packets);
    /// assert_eq!(event.to_context_event().and_then(DeviceSaEvent::from_context_event), Some(event));
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

    /// Decodes an engine's event; `None` if the code is unknown.
    pub const fn from_context_event(ContextEvent { context, code, value }: ContextEvent) -> Option<DeviceSaEvent> {
        // The value is a limit only for the first two codes.
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

/// A command to an SA in the ESP engine.
///
/// ```
/// use offload_api::ipsec::SaCommand;
/// use offload_api::{Lifetime, Limits};
///
/// let hour = Limits { packets: Some(1 << 30), ..Limits::default() };
/// let renewed = SaCommand::Renew(Lifetime { hard: hour, ..Lifetime::default() });
/// assert_ne!(renewed, SaCommand::GoOnAfter(1 << 30));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaCommand {
    /// Replaces the lifetime, counted from now on.
    Renew(Lifetime),
    /// Reserves all numbers up to this number for the host.
    GoOnAfter(u64),
}

/// A change of the ESP engine's policies.
///
/// ```
/// use offload_api::ipsec::PolicyChange;
/// use offload_api::{Handle, Selector};
///
/// let (selector, sa) = (Selector { protocol: Some(17), ..Selector::ANY }, Handle { index: 1 << 24, generation: 3 });
/// let PolicyChange::Set { rank, .. } = (PolicyChange::Set { selector, rank: 7, sa }) else { panic!("it was set") };
/// assert_ne!(PolicyChange::Remove { selector, rank }, PolicyChange::Set { selector, rank, sa });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyChange {
    /// Protects the packets of a selector by an SA.
    Set {
        /// Packets of the policy.
        selector: Selector,
        /// Order of the policies: lower ranks match first.
        rank: u64,
        /// The SA.
        sa: Handle,
    },
    /// Removes a policy.
    Remove {
        /// Selector of the policy.
        selector: Selector,
        /// Rank of the policy.
        rank: u64,
    },
}

/// The IPsec interface of a device. No method blocks. Commands and packets take effect in the order of the calls.
///
/// ```
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{Direction, EspKey, EspSuite, IpsecDevice, NetDevice, OffloadKind, SaParams};
///
/// let (_device, mut driver) = nic(NicConfig::default());
/// let ipsec: &mut dyn IpsecDevice = driver.ipsec().unwrap();
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let sa = SaParams {
///     offload: OffloadKind::Crypto,
///     ..SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key)
/// };
/// let handle = ipsec.add_sa(&sa)?;
/// ipsec.remove_sa(handle); // after everything that was posted before
/// # Ok::<(), offload_api::SaRefusal>(())
/// ```
pub trait IpsecDevice {
    /// Adds an SA. A transmitting SA may be used at once; a receiving SA works after [`Ready`](DeviceSaEvent::Ready).
    /// In packet offload the device accepts each number of the window that ends at `last_number` once, because only the
    /// host knows which of these arrived earlier.
    ///
    /// # Errors
    /// If the device refuses.
    fn add_sa(&mut self, sa: &SaParams) -> Result<Handle, SaRefusal>;

    /// Replaces the lifetime of an SA, counted from now on.
    fn update_sa(&mut self, sa: Handle, lifetime: Lifetime);

    /// Packet offload: tells the device that the host itself sends packets of a transmitting SA with numbers up to
    /// `last`. The device continues after `last`.
    ///
    /// # Errors
    /// If the device does not know the SA or is busy. The device may then use these numbers itself.
    fn advance_sa(&mut self, sa: Handle, last: u64) -> Result<(), SaRefusal>;

    /// Removes an SA after all work posted before.
    fn remove_sa(&mut self, sa: Handle);

    /// Protects packets that match `selector` by `sa`. An existing policy with this selector and rank is replaced. If
    /// several policies match, the lowest `rank` applies; the host ranks them in the order of its own policies.
    ///
    /// # Errors
    /// If the device refuses.
    fn set_policy(&mut self, selector: &Selector, rank: u64, sa: Handle) -> Result<(), SaRefusal>;

    /// Removes a policy.
    fn remove_policy(&mut self, selector: &Selector, rank: u64);

    /// Returns the next event.
    fn poll_sa_event(&mut self) -> Option<DeviceSaEvent>;
}
