//! The IPsec face of a device: SAs and policies that it keeps, what it is asked for, and what it says.

use super::{EspSuite, Lifetime, Limit, SaParams, Selector};
use crate::mark::{ContextEvent, PacketMark};
use crate::tx::PacketAsk;
use crate::unit::{Handle, engines};

/// Why a device would not take an SA or a policy.
///
/// ```
/// use offload_api::{EspSuite, SaRefused};
///
/// let refused = SaRefused::Suite(EspSuite::ChaCha20Poly1305);
/// assert_eq!(refused.to_string(), "the device does not know the suite ChaCha20Poly1305");
/// ```
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
    #[error("the device needs hard limits above soft limits, and neither may be zero")]
    Lifetime,
    /// ESP in UDP with a kind of offload for which the device does not have it.
    #[error("the device has ESP in UDP for packet offload only")]
    Encapsulation,
    /// A receiving SA must name both of its addresses.
    #[error("the device needs both addresses of an SA")]
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
    /// It has another lifetime, counted from now on.
    Renew(Lifetime),
    /// Numbers up to this one are the host's.
    GoOnAfter(u64),
}

/// What an ESP engine can be told about its policies.
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
/// # Ok::<(), offload_api::SaRefused>(())
/// ```
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
