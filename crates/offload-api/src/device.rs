//! The interface of a NIC to a network stack.

use crate::contexts::Contexts;
use crate::ipsec::IpsecDevice;
use crate::rss::RssDevice;
use crate::rx::RxPacket;
use crate::source::RecordSource;
use crate::tx::{TransmitResult, TxPacket};
use crate::unit::Handle;
use core::any::Any;
use core::task::Waker;
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seq};
use offload_formats::FlowKey;

/// The capabilities of a path through a device.
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
    /// Changes when any other field may have changed, for example after an SA was added or the device was reset.
    pub epoch: u64,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// The device fills in and checks the checksums of IPv4 headers, TCP and UDP, for UDP over IPv4 and IPv6.
    pub checksum: bool,
    /// Maximum payload of a packet that the device cuts into segments; 0 if the device cuts no TCP packets. Above
    /// 64 KiB the device accepts TCP packets that are longer than an IP header can express; the IP length is then zero.
    pub tso_max_bytes: u32,
    /// The device also cuts UDP payload into datagrams, with the same maximum.
    pub udp_segmentation: bool,
    /// The device limits a flow's rate as a packet requests ([`TxAsk::rate`](crate::TxAsk::rate)).
    pub pacing: bool,
}

/// An event of a device, for one flow or for all flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The context now works on received packets.
    Ready {
        /// The flow of the context.
        flow: FlowKey,
        /// The context.
        handle: Handle,
    },
    /// The context is removed, and no posted packet uses it any more.
    Removed {
        /// The flow of the context.
        flow: FlowKey,
        /// The context.
        handle: Handle,
    },
    /// The device lost its position and asks whether a record header starts at `header`. (Linux identifies a header by
    /// its last byte, this interface by its first byte.)
    ResyncRequested {
        /// The flow of the context.
        flow: FlowKey,
        /// The context.
        handle: Handle,
        /// Sequence number of the candidate header.
        header: Seq,
    },
    /// The device lost its position and will ask about one header in `from..to`. Software records the headers in this
    /// range as they arrive. (Only with [`ResyncMode::Asynchronous`](crate::ResyncMode).)
    ResyncStarted {
        /// The flow of the context.
        flow: FlowKey,
        /// The context.
        handle: Handle,
        /// Sequence number of the first byte of the packet that started the search.
        from: Seq,
        /// Sequence number after the packet's last byte.
        to: Seq,
    },
    /// The device will not ask about the recorded headers.
    ResyncCancelled {
        /// The flow of the context.
        flow: FlowKey,
        /// The context.
        handle: Handle,
    },
    /// A transmit context needs a key that the device does not have or that belongs to another tenant or volume. The
    /// device removed the context, and [`Removed`](Self::Removed) follows. Software seals the queued data.
    KeyMissing {
        /// The flow of the context.
        flow: FlowKey,
        /// The context.
        handle: Handle,
        /// The context of the missing key.
        key: Handle,
    },
    /// The device was reset: all contexts of all flows are gone.
    Reset,
}

impl DeviceEvent {
    /// Returns the flow of the event; `None` if the event concerns all flows.
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

/// The interface between a stack and the driver of one queue pair. Sans-IO: the shell around stack and driver wakes the
/// stack on device interrupts and at [`next_event`](Self::next_event).
///
/// No method has a default, because a device that wraps another device could then forget to forward the method.
pub trait NetDevice: Send {
    /// Returns the current capabilities of the path of `flow`.
    fn path(&self, flow: &FlowKey) -> PathCaps;

    /// Returns the number of packets of `flow` that can be sent now, including a resync for each of them. After a
    /// result of 0, the shell is woken when there is space again.
    fn room(&self, flow: &FlowKey) -> usize;

    /// Returns the same for paced packets. They wait in the device until they are due, so the device bounds the number
    /// of waiting packets per flow; packets of other flows do not count.
    fn room_paced(&self, flow: &FlowKey) -> usize;

    /// Sends a packet; `source` gives access to the packet's stream. The call cannot fail for lack of space if
    /// [`room`](Self::room) was checked first.
    fn transmit(&mut self, now: Instant, packet: TxPacket, source: &dyn RecordSource) -> TransmitResult;

    /// Rings the doorbell for all packets since the last call.
    fn flush(&mut self, now: Instant);

    /// Returns the next received packet.
    fn receive(&mut self, now: Instant) -> Option<RxPacket>;

    /// Returns the next event.
    fn poll_event(&mut self) -> Option<DeviceEvent>;

    /// Tests whether the initial RSS table steers packets of `flow` to this queue. Stacks choose local ports by this
    /// test, so that no two queues choose the same port. With one queue, the result is always true.
    fn serves(&self, flow: &FlowKey) -> bool;

    /// Requests an interrupt that wakes `waker` at the next completion (and when space returns after a
    /// [`room`](Self::room) of 0). Returns false if a completion is ready now; the caller must then poll again.
    fn arm(&mut self, waker: &Waker) -> bool;

    /// Returns the time of the next call of [`handle_timeout`](Self::handle_timeout).
    fn next_event(&self) -> Option<Instant>;

    /// Performs the work that is due at `now`.
    fn handle_timeout(&mut self, now: Instant);

    /// Adds the counters of the driver and of wrapped devices to `set`.
    fn count(&self, set: &mut CounterSet);

    /// Returns the IPsec interface, if the device has one.
    fn ipsec(&mut self) -> Option<&mut dyn IpsecDevice>;

    /// Returns the RSS interface, if the device has several queues.
    fn rss(&mut self) -> Option<&mut dyn RssDevice>;

    /// Returns the contexts of the device's engines; `None` if there are no engines, or if a layer below hides the
    /// streams.
    fn contexts(&mut self) -> Option<&mut dyn Contexts>;

    /// Returns the device as its concrete type. `ipsec` finds the keys of its layer with this method. A wrapper that
    /// only observes returns the wrapped device.
    fn as_any(&mut self) -> &mut dyn Any;
}
