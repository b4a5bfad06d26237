//! What a stack sees of a NIC.

use crate::contexts::Contexts;
use crate::ipsec::IpsecDevice;
use crate::rss::RssDevice;
use crate::rx::RxPacket;
use crate::source::RecordSource;
use crate::tx::{Sent, TxPacket};
use crate::unit::Handle;
use core::any::Any;
use core::task::Waker;
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seq};
use offload_formats::FlowKey;

/// What a path through a device can do.
///
/// ```
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{FlowKey, NetDevice, PathCaps};
///
/// let (_device, driver) = nic(NicConfig { mtu: 9000, ..NicConfig::default() });
/// let flow = FlowKey::tcp("10.0.0.1:443".parse().unwrap(), "10.0.0.2:5000".parse().unwrap());
/// let caps: PathCaps = driver.path(&flow);
/// assert!(caps.mtu == 9000 && caps.checksum && caps.tso_max_bytes > 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathCaps {
    /// Moves when anything else here may have changed: a security association, a device reset.
    pub epoch: u64,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// The device fills in and checks the checksums of IPv4 headers, TCP and UDP, the latter over both IPs.
    pub checksum: bool,
    /// Most payload bytes in a packet that the device cuts into segments; 0 if it cuts none. If they are more than 64 KiB,
    /// it takes TCP packets that are longer than an IP header tells: the length there is zero then.
    pub tso_max_bytes: u32,
    /// It cuts UDP payload into datagrams as well, under the same bound.
    pub udp_segmentation: bool,
    /// The device sends a flow's frames no faster than a packet asks ([`TxAsk::rate`](crate::TxAsk::rate)).
    pub pacing: bool,
}

/// Something that happened in a device, for one flow or for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The context now works on what arrives.
    Ready {
        /// The flow it follows.
        flow: FlowKey,
        /// The context.
        handle: Handle,
    },
    /// The context is gone; nothing posted with it is under way any more.
    Removed {
        /// The flow it followed.
        flow: FlowKey,
        /// The context.
        handle: Handle,
    },
    /// The device lost its place and asks whether a record header starts at `header`. (Linux names a header by its last
    /// byte there, this by its first.)
    ResyncRequested {
        /// The flow it follows.
        flow: FlowKey,
        /// The context.
        handle: Handle,
        /// Where the device thinks a header starts.
        header: Seq,
    },
    /// The device lost its place, and will ask about one of the headers from `from` to `to`: those are to be noted as
    /// they come. (Only with [`ResyncMode::Asynchronous`](crate::ResyncMode).)
    ResyncStarted {
        /// The flow it follows.
        flow: FlowKey,
        /// The context.
        handle: Handle,
        /// The first byte of the packet that started it.
        from: Seq,
        /// The byte after its last.
        to: Seq,
    },
    /// Nothing will be asked about what was noted.
    ResyncCancelled {
        /// The flow it follows.
        flow: FlowKey,
        /// The context.
        handle: Handle,
    },
    /// What a transmit context was to send needs a key that the device does not have, or that is another's: it gave the context up,
    /// and [`Removed`](Self::Removed) follows. Software does what is queued for it.
    KeyMissing {
        /// The flow it followed.
        flow: FlowKey,
        /// The context.
        handle: Handle,
        /// The context that the key is, or was.
        key: Handle,
    },
    /// The device was reset: every context is gone, for every flow.
    Reset,
}

impl DeviceEvent {
    /// The flow it is about; `None`: all of them.
    pub fn flow(&self) -> Option<&FlowKey> {
        match self {
            DeviceEvent::Ready { flow, .. }
            | DeviceEvent::Removed { flow, .. }
            | DeviceEvent::ResyncStarted { flow, .. }
            | DeviceEvent::ResyncCancelled { flow, .. }
            | DeviceEvent::KeyMissing { flow, .. }
            | DeviceEvent::ResyncRequested { flow, .. } => Some(flow),
            DeviceEvent::Reset => None,
        }
    }
}

/// What lies between a stack and the driver of one queue pair. Sans-IO: the shell around both wakes the stack
/// when the device interrupts and at [`next_event`](Self::next_event).
///
/// Nothing here has a default: a device around a device would forget it, and nobody would notice.
pub trait NetDevice: Send {
    /// What the path of `flow` can do at the moment.
    fn path(&self, flow: &FlowKey) -> PathCaps;

    /// How many packets of `flow` can be handed over now, whatever they need (a resync included).
    /// After a zero, the shell is woken when there is room again.
    fn room(&self, flow: &FlowKey) -> usize;

    /// The same for packets that ask for a rate: they wait in the device for their time, so a flow has only as many of
    /// them there as it takes to keep going. Another flow's do not count.
    fn room_paced(&self, flow: &FlowKey) -> usize;

    /// Hands over a packet; `source` answers for the stream it is from. Asked for [`room`](Self::room) first,
    /// it cannot fail for lack of space.
    fn transmit(&mut self, now: Instant, packet: TxPacket, source: &dyn RecordSource) -> Sent;

    /// Rings the doorbell for all packets handed over since the last time.
    fn flush(&mut self, now: Instant);

    /// The next received packet, if there is one.
    fn receive(&mut self, now: Instant) -> Option<RxPacket>;

    /// The next event, if there is one.
    fn poll_event(&mut self) -> Option<DeviceEvent>;

    /// Whether packets of `flow` come to this queue, by the table the device began with. Local ports are chosen so, and
    /// no two queues choose the same. To one queue, all do.
    fn serves(&self, flow: &FlowKey) -> bool;

    /// Asks for an interrupt, which wakes `waker`, at the next completion (and when room returns after a
    /// [`room`](Self::room) of zero). False: something is there already, so look again.
    fn arm(&mut self, waker: &Waker) -> bool;

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    fn next_event(&self) -> Option<Instant>;

    /// Does what is due at `now`.
    fn handle_timeout(&mut self, now: Instant);

    /// Adds what the driver and whatever it wraps have counted to `set`.
    fn count(&self, set: &mut CounterSet);

    /// The IPsec face, if the device has one.
    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice>;

    /// The face that spreads packets over queues, if this is one of several.
    fn rss(&mut self) -> Option<&mut dyn RssDevice>;

    /// The contexts of its engines, if it has any and the path to them is free.
    fn contexts(&mut self) -> Option<&mut dyn Contexts>;

    /// This device as its own type, for the crate that knows the type: `ipsec` finds the keys of its layer this way. A
    /// wrapper that only watches returns the device below.
    fn as_any(&mut self) -> &mut dyn Any;
}
