//! The uplink: ESP first on receive, last on transmit.
//!
//! Invariants: a packet with a wrong ICV or number does not reach the switch; a packet that requires an SA leaves
//! protected or not at all.

use super::{FrameSource, OpenedArrival, SwitchedDevice};
use crate::queue_pair::OpenResult;
use crate::queue_pair::transmit::line_time;
use bytes::Bytes;
use nic_switch::{Frame, Vport};
use offload_api::PacketMark;
use offload_base::Instant;
use offload_formats::frame::ETHERNET_BYTES;
use offload_formats::{FragmentMemory, Headers};

offload_base::counters! {
    /// Counters of the uplink of a NIC with a switch.
    ///
    /// ```
    /// use nic_sim::{NicConfig, SwitchConfig, switched_nic};
    ///
    /// let (device, _host, _eswitch) = switched_nic(NicConfig::default(), SwitchConfig::default());
    /// assert_eq!(device.uplink_counters().rx_packets, 0);
    /// ```
    pub struct UplinkCounters {
        /// Frames from the wire.
        pub rx_packets: "rx_packets_phy",
        /// Bytes of frames from the wire.
        pub rx_bytes: "rx_bytes_phy",
        /// Frames to the wire.
        pub tx_packets: "tx_packets_phy",
        /// Bytes of frames to the wire.
        pub tx_bytes: "tx_bytes_phy",
        /// Frames dropped because of a length above the uplink's MTU.
        pub oversize: "rx_oversize_uplink",
        /// Frames from the wire that were dropped because engines were busy with too many others.
        pub uplink_full: "eswitch_drop_uplink_full",
        /// Packets that an SA opened for the switch.
        pub opened: "eswitch_ipsec_rx_pkts",
        /// Packets of an SA that do not reach the switch: replays, wrong ICVs, used-up SAs.
        pub not_opened: "eswitch_ipsec_rx_drop",
        /// Packets protected by an SA.
        pub protected: "eswitch_ipsec_tx_pkts",
        /// Packets that required protection and could not be protected.
        pub not_protected: "eswitch_ipsec_tx_drop",
        /// Frames to a port without a function.
        pub no_function: "eswitch_drop_no_function",
        /// Frames to representors that were lost because the host was slow.
        pub representor_full: "eswitch_drop_representor_full",
    }
}

/// Maximum number of frames from the wire that wait for engines, which take time if the NIC has costs.
const MAX_ARRIVING: usize = 1024;

impl SwitchedDevice {
    /// Receives a frame from the wire: policy, SA and status first, then the switch.
    pub(super) fn receive_by_uplink(&mut self, now: Instant, data: Bytes) {
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += data.len() as u64;
        if data.len() > usize::from(self.config.mtu) + ETHERNET_BYTES + TAG_BYTES {
            self.counters.oversize += 1;
            return;
        }
        // Before the engines look at the frame: a dropped frame must not move a replay window.
        if self.arriving.len() >= MAX_ARRIVING {
            self.counters.uplink_full += 1;
            return;
        }
        let headers = Headers::parse(&data);
        let (arrived, done_at) = self.host.open(now, &data, &headers);
        if self.arriving.is_empty() && done_at <= now {
            return self.take_looked_at(now, data, arrived);
        }
        // Frames stay in order: later frames wait for a frame that an engine delays.
        let due = self.arriving.back().map_or(done_at, |(before, ..)| done_at.max(*before));
        self.arriving.push_back((due, data, arrived));
    }

    /// Receives the frames whose work in engines ends by `now`.
    pub(super) fn take_arriving(&mut self, now: Instant) {
        while self.arriving.front().is_some_and(|(due, ..)| *due <= now)
            && let Some((_, data, arrived)) = self.arriving.pop_front()
        {
            self.take_looked_at(now, data, arrived);
        }
    }

    /// Receives a frame from the wire after the engines: by the switch, or as the host.
    fn take_looked_at(&mut self, now: Instant, data: Bytes, (queue, arrived): (usize, OpenResult)) {
        let (frame, arrived) = match arrived {
            OpenResult::Dropped => {
                self.counters.not_opened += 1;
                return self.host.note_dropped(&data, queue);
            }
            OpenResult::Opened(mut opened) => match opened.take_whole() {
                Some((inner, sa)) => {
                    self.counters.opened += 1;
                    // Handles are local to a queue. A handle of another queue may equal one that a network names.
                    let sa = Some(sa).filter(|_| queue == NETWORKS_QUEUE);
                    (Frame { sa, ..Frame::from(inner) }, OpenResult::Opened(opened))
                }
                // Crypto offload: the host handles headers, numbers and policies.
                None => return self.host.take_represented(now, &data, (queue, OpenResult::Opened(opened))),
            },
            OpenResult::Unopened(mark @ PacketMark::Failed { .. }) => {
                self.counters.not_opened += 1;
                return self.host.take_represented(now, &data, (queue, OpenResult::Unopened(mark)));
            }
            other => (Frame::from(data), other),
        };
        self.switch.receive(now, Vport::Uplink, frame, &mut self.out);
        self.hand_out(now, Some((queue, arrived)), FrameSource::Port(Vport::Uplink));
    }

    /// Delivers a frame to the host's own function.
    pub(super) fn take_as_host(&mut self, now: Instant, frame: Bytes, arrival: OpenedArrival) {
        let (queue, mut arrived) = arrival.unwrap_or((0, OpenResult::AsItWas));
        if let OpenResult::Opened(opened) = &mut arrived {
            opened.put_back(frame.clone());
        }
        self.host.take_represented(now, &frame, (queue, arrived));
    }

    /// Has a frame leave by the wire, under an SA if it must.
    pub(super) fn protect_and_leave(
        &mut self,
        now: Instant,
        sender: FrameSource,
        Frame { bytes, sa, inner, .. }: Frame,
    ) {
        let plain = bytes.len();
        // Frames that the switch encapsulated, at any port, and frames that look encapsulated.
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

    /// Tests whether an outgoing frame may belong to a tunnel. A UDP fragment is judged by its packet's first fragment,
    /// which shows the port. A fragment without a known first fragment may belong to a tunnel. So may a packet with the
    /// same identification as one that may, because fragments of both may still be sent.
    fn is_of_tunnel(&mut self, sender: FrameSource, frame: &[u8]) -> bool {
        let shown = self.switch.is_of_tunnel(frame);
        let fragments = self.fragments_out.entry(sender).or_insert_with(|| FragmentMemory::with_room_for(FRAGMENTED));
        let of_first = |before| before == Some(true) || shown.unwrap_or(true);
        fragments.look_up(frame, |_, _, before| Some(of_first(before))).or(shown).unwrap_or(true)
    }

    /// Queues a frame for the wire unchanged. The frame leaves at `at` or later.
    pub(super) fn leave(&mut self, at: Instant, frame: Bytes) {
        self.leaving.push_back((at, frame));
    }

    /// Returns the next frame for the wire and accounts its line time.
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

/// Maximum number of fragmented outgoing packets per sender that are tracked at a time.
const FRAGMENTED: usize = 256;
/// The queue of the host's function that has the SAs of protected networks.
pub(super) const NETWORKS_QUEUE: usize = 0;
/// Length of a VLAN tag, which an MTU does not include.
const TAG_BYTES: usize = 4;
