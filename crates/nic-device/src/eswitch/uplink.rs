//! The uplink: ESP first on the way in, last on the way out.
//!
//! Invariants: nothing of a packet whose ICV or number was wrong reaches the switch; a packet that an SA is to protect leaves
//! under it or not at all.

use super::{Arrival, Sender, SwitchedDevice};
use crate::queue_pair::Arrived;
use crate::queue_pair::transmit::line_time;
use bytes::Bytes;
use nic_switch::{Frame, Vport};
use offload_api::PacketMark;
use offload_base::Instant;
use offload_formats::frame::ETHERNET_BYTES;
use offload_formats::{FragmentMemory, Headers};

offload_base::counters! {
    /// What is counted at the uplink of a NIC with a switch.
    ///
    /// ```
    /// use nic_sim::{NicConfig, SwitchConfig, switched_nic};
    ///
    /// let (device, _host, _eswitch) = switched_nic(NicConfig::default(), SwitchConfig::default());
    /// assert_eq!(device.uplink_counters().rx_packets, 0);
    /// ```
    pub struct UplinkCounters {
        /// Frames that the wire brought.
        pub rx_packets: "rx_packets_phy",
        /// Bytes of those frames.
        pub rx_bytes: "rx_bytes_phy",
        /// Frames for the wire.
        pub tx_packets: "tx_packets_phy",
        /// Bytes of those frames.
        pub tx_bytes: "tx_bytes_phy",
        /// Frames longer than the uplink's MTU, which are dropped.
        pub oversize: "rx_oversize_uplink",
        /// Packets opened by an SA, for the switch.
        pub opened: "eswitch_ipsec_rx_pkts",
        /// Packets of an SA that the switch does not see: replays, wrong ICVs, SAs that are used up.
        pub not_opened: "eswitch_ipsec_rx_drop",
        /// Packets protected by an SA.
        pub protected: "eswitch_ipsec_tx_pkts",
        /// Packets that were to be protected, and could not be.
        pub not_protected: "eswitch_ipsec_tx_drop",
        /// Frames to a function that is not plugged in.
        pub no_function: "eswitch_drop_no_function",
        /// Frames to representors that the host did not take in time.
        pub representor_full: "eswitch_drop_representor_full",
    }
}

impl SwitchedDevice {
    /// A frame comes in by the wire: policy, SA and status, then the switch.
    pub(super) fn receive_by_uplink(&mut self, now: Instant, data: Bytes) {
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += data.len() as u64;
        if data.len() > usize::from(self.config.mtu) + ETHERNET_BYTES + TAG_BYTES {
            self.counters.oversize += 1;
            return;
        }
        let headers = Headers::parse(&data);
        let (arrived, done_at) = self.host.open(now, &data, &headers);
        if self.arriving.is_empty() && done_at <= now {
            return self.take_looked_at(now, data, arrived);
        }
        // Frames stay in order: those behind one that takes its time wait for it.
        let due = self.arriving.back().map_or(done_at, |(before, ..)| done_at.max(*before));
        self.arriving.push_back((due, data, arrived));
    }

    /// Takes the frames that engines are done with by `now`.
    pub(super) fn take_arriving(&mut self, now: Instant) {
        while self.arriving.front().is_some_and(|(due, ..)| *due <= now)
            && let Some((_, data, arrived)) = self.arriving.pop_front()
        {
            self.take_looked_at(now, data, arrived);
        }
    }

    /// Takes a frame from the wire that engines are done with, by the switch or as the host.
    fn take_looked_at(&mut self, now: Instant, data: Bytes, (queue, arrived): (usize, Arrived)) {
        let (frame, arrived) = match arrived {
            Arrived::Dropped => {
                self.counters.not_opened += 1;
                return self.host.note_dropped(&data, queue);
            }
            Arrived::Opened(mut opened) => match opened.take_whole() {
                Some((inner, sa)) => {
                    self.counters.opened += 1;
                    // Queues have handles of their own: those of others may look like those that networks name.
                    let sa = Some(sa).filter(|_| queue == NETWORKS_QUEUE);
                    (Frame { sa, ..Frame::from(inner) }, Arrived::Opened(opened))
                }
                // Crypto offload: headers, numbers and policies are the host's.
                None => return self.host.take_represented(now, &data, (queue, Arrived::Opened(opened))),
            },
            Arrived::Unopened(mark @ PacketMark::Failed { .. }) => {
                self.counters.not_opened += 1;
                return self.host.take_represented(now, &data, (queue, Arrived::Unopened(mark)));
            }
            other => (Frame::from(data), other),
        };
        self.switch.receive(now, Vport::Uplink, frame, &mut self.out);
        self.hand_out(now, Some((queue, arrived)), Sender::Port(Vport::Uplink));
    }

    /// Hands a frame to the host's own function.
    pub(super) fn take_as_host(&mut self, now: Instant, frame: Bytes, arrival: Arrival) {
        let (queue, mut arrived) = arrival.unwrap_or((0, Arrived::AsItWas));
        if let Arrived::Opened(opened) = &mut arrived {
            opened.put_back(frame.clone());
        }
        self.host.take_represented(now, &frame, (queue, arrived));
    }

    /// Has a frame leave by the wire, under an SA if it must.
    pub(super) fn protect_and_leave(&mut self, now: Instant, sender: Sender, Frame { bytes, sa, inner, .. }: Frame) {
        let plain = bytes.len();
        // What the switch has wrapped, at whatever port, and what looks wrapped.
        let must = self.switch.protects_all() && (inner != 0 || self.is_of_tunnel(sender, &bytes));
        match self.host.wrap(now, bytes, sa) {
            Ok((frame, _)) if must && frame.len() == plain => self.counters.not_protected += 1,
            Ok((frame, done_at)) => {
                self.counters.protected += u64::from(frame.len() != plain);
                self.leave(done_at, frame);
            }
            Err(_refused) => self.counters.not_protected += 1,
        }
    }

    /// Whether a frame that is to leave looks like a tunnel's. A fragment of UDP is what its packet's first fragment was, which shows the port.
    /// One whose first did not come before it may be a tunnel's. So may a packet of the same name as one that may be: as long as that is
    /// remembered, parts of both may still come.
    fn is_of_tunnel(&mut self, sender: Sender, frame: &[u8]) -> bool {
        let shown = self.switch.is_of_tunnel(frame);
        let fragments = self.fragments_out.entry(sender).or_insert_with(|| FragmentMemory::with_room_for(FRAGMENTED));
        let of_first = |before| before == Some(true) || shown.unwrap_or(true);
        fragments.look_up(frame, |_, _, before| Some(of_first(before))).or(shown).unwrap_or(true)
    }

    /// Has a frame leave by the wire as it is, from `at` on.
    pub(super) fn leave(&mut self, at: Instant, frame: Bytes) {
        self.leaving.push_back((at, frame));
    }

    /// The next frame for the wire, whose time is taken up.
    pub(super) fn send_by_uplink(&mut self, now: Instant) -> Option<offload_wire::frame::Frame> {
        self.leaving.front().filter(|(at, _)| *at <= now)?;
        let (_, frame) = self.leaving.pop_front()?;
        let frame = offload_wire::frame::Frame::new(frame);
        self.port_free_at = self.port_free_at.max(now) + line_time(&frame, self.config.line_rate);
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += frame.len() as u64;
        Some(frame)
    }
}

/// Packets of one sender that leave in fragments at a time.
const FRAGMENTED: usize = 256;
/// The queue of the host's function that has the SAs of protected networks.
pub(super) const NETWORKS_QUEUE: usize = 0;
/// Bytes of a VLAN tag, which no MTU counts.
const TAG_BYTES: usize = 4;
