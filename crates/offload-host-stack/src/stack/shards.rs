//! A host of several shards, each with one queue of the device, and the packets that one shard passes to another.
//!
//! A device sends all packets of a flow to one queue, but not always to the shard that has the connection. Fragments
//! have no ports, an indirection table may change during the life of a flow, and a socket may be open on one shard
//! only. A shard therefore passes a packet of an unknown flow on, until each shard has seen the packet. The last shard
//! answers as a single stack would.
//!
//! A SYN first looks for an existing flow on all shards. Only in a second round may a listener take the SYN, because
//! every shard may have a listener on the port, and the first one would open the flow again. An ACK that may carry a
//! cookie also makes two rounds. ARP and ICMP packets go to all shards: the receiving shard answers, and the others
//! only learn.
//!
//! Invariants:
//! - A packet is passed on less than twice as often as there are shards.
//! - A packet that a device has changed for a flow that is gone is passed to no shard.
//! - A verdict of a queue's context does not leave its shard.

use super::Stack;
use crate::config::{Config, TcpConfig};
use crate::network::{ParsedDatagram, ParsedSegment, ReceivedContent, concerns_all_shards};
use bytes::BytesMut;
use offload_api::{Marks, NetDevice, RxPacket};
use offload_base::Instant;

/// The position of a stack among the shards of its host.
#[derive(Debug)]
pub(super) struct ShardPosition {
    shards: u16,
    index: u16,
    /// Whether the device's indirection table differs, or once differed, from the initial one.
    flows_moved: bool,
    outgoing: Vec<PassedPacket>,
}

/// A packet passed to another shard.
#[derive(Debug)]
pub(crate) struct PassedPacket {
    what: PassedContent,
    packet: RxPacket,
    /// Number of shards that may still be asked.
    pub(crate) left: u16,
}

#[derive(Debug)]
enum PassedContent {
    Segment(Box<ParsedSegment>),
    Datagram(ParsedDatagram),
    /// A packet for all shards, which the receiving shard has answered.
    Overheard,
}

impl PassedPacket {
    /// Returns whether the packet goes to every shard, instead of the next shard that knows its flow.
    pub(crate) fn is_for_all(&self) -> bool {
        matches!(self.what, PassedContent::Overheard)
    }

    /// Returns a copy for another shard.
    pub(crate) fn copy_for_all(&self) -> PassedPacket {
        let packet = RxPacket::new(BytesMut::from(&self.packet.frame[..]), self.packet.meta);
        PassedPacket { what: PassedContent::Overheard, packet, left: 0 }
    }
}

impl Stack {
    /// Returns the stack of shard `index` of `shards`. All shards have the same secrets, and divide the connection and
    /// memory limits equally.
    pub(crate) fn for_shard(config: Config, index: u16, shards: u16) -> Stack {
        let secrets = config.random.clone();
        // Secrets are shared, but each shard needs its own random stream, or two shards would choose equal ports.
        let random = if index == 0 { secrets.clone() } else { secrets.derive(&format!("shard {index}")) };
        let max_connections = config.max_connections.div_ceil(usize::from(shards));
        let memory = Some(config.tcp.memory_bounds().shared_by(shards.into()));
        let tcp = TcpConfig { memory, ..config.tcp };
        let mut stack = Stack::with_secrets(Config { random, max_connections, tcp, ..config }, &secrets);
        stack.place = (shards > 1).then(|| ShardPosition { shards, index, flows_moved: false, outgoing: Vec::new() });
        stack
    }

    /// Records that flows may be known to other shards than the ones that receive their packets.
    pub(crate) fn note_flows_moved(&mut self) {
        self.place.iter_mut().for_each(|place| place.flows_moved = true);
    }

    /// Processes a packet that another shard has passed on.
    pub(crate) fn receive_passed(&mut self, now: Instant, passed: PassedPacket, device: &mut dyn NetDevice) {
        let PassedPacket { what, mut packet, left } = passed;
        match what {
            PassedContent::Segment(parsed) => self.on_segment(now, *parsed, packet, Some(left), device),
            PassedContent::Datagram(parsed) => self.on_datagram(now, parsed, packet, Some(left)),
            PassedContent::Overheard => {
                if let Some(ReceivedContent::Undelivered(undelivered)) = self.network.overhear(now, &mut packet) {
                    // The shard that received the error has counted a stray one.
                    let strays = self.counters.stray_icmp_errors;
                    self.on_undelivered(now, &undelivered);
                    self.counters.stray_icmp_errors = strays;
                }
            }
        }
    }

    /// Takes the packets for other shards.
    pub(crate) fn take_passed(&mut self) -> Vec<PassedPacket> {
        self.place.as_mut().map(|place| core::mem::take(&mut place.outgoing)).unwrap_or_default()
    }

    /// Counts packets dropped because another shard's mailbox was full.
    pub(crate) fn note_shard_drops(&mut self, packets: u64) {
        self.counters.shard_drops += packets;
    }

    /// Passes a copy of a packet that concerns all shards to the other shards.
    pub(super) fn share_with_shards(&mut self, packet: &RxPacket) {
        if let Some(place) = &mut self.place
            && concerns_all_shards(&packet.frame)
        {
            let packet = RxPacket::new(BytesMut::from(&packet.frame[..]), packet.meta);
            place.outgoing.push(PassedPacket { what: PassedContent::Overheard, packet, left: 0 });
        }
    }

    /// Returns how many more shards may be asked about a packet that this shard received first.
    pub(super) fn shards_to_ask(&self, may_open: bool, is_served_here: bool) -> u16 {
        let Some(place) = &self.place else { return 0 };
        // If no flow was moved and the device steers this flow here, no other shard can have it, so one round is
        // enough.
        let rounds = if may_open && (place.flows_moved || !is_served_here) { 2 } else { 1 };
        rounds * place.shards - 1
    }

    /// Returns whether a segment with `left` shards left may open a connection, because all shards were asked for its
    /// flow.
    pub(super) fn is_last_round(&self, left: u16) -> bool {
        self.place.as_ref().is_none_or(|place| left < place.shards)
    }

    pub(super) fn pass_segment_on(&mut self, parsed: ParsedSegment, packet: RxPacket, left: u16) {
        self.pass_on(PassedContent::Segment(Box::new(parsed)), packet, left);
    }

    pub(super) fn pass_datagram_on(&mut self, parsed: ParsedDatagram, packet: RxPacket, left: u16) {
        self.pass_on(PassedContent::Datagram(parsed), packet, left);
    }

    fn pass_on(&mut self, what: PassedContent, mut packet: RxPacket, left: u16) {
        let Some(place) = &mut self.place else { return };
        // Another shard cannot undo the changes that the device made for this shard's context.
        if packet.meta.is_changed() || !packet.placed.is_empty() {
            self.counters.shard_drops += 1;
            return;
        }
        // The marks name contexts of this queue, which mean nothing to another shard.
        packet.meta.marks = Marks::default();
        self.counters.shard_passed += 1;
        place.outgoing.push(PassedPacket { what, packet, left: left - 1 });
    }
}

/// Returns whether this shard may choose the UDP port for a socket without a fixed port. No two shards choose the same.
pub(super) fn may_choose(place: Option<&ShardPosition>, port: u16) -> bool {
    place.is_none_or(|place| port % place.shards == place.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Ipv6Config;
    use crate::tcp::segment::{Flags, Options, Segment};
    use core::net::Ipv6Addr;
    use core::time::Duration;
    use offload_api::mock::MockDevice;
    use offload_api::rx::Checksums;
    use offload_api::{Handle, RxMeta, Verdict, engines};
    use offload_base::{Seed, Seq};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    /// Offset of the TCP header in a frame.
    const TCP: usize = 34;

    /// Returns a client's SYN, or an ACK if `ack` is given, with a checksum verified by the device.
    fn segment(port: u16, seq: u32, ack: Option<Seq>) -> RxPacket {
        let segment = Segment {
            source_port: port,
            destination_port: 80,
            seq: Seq(seq),
            ack,
            flags: Flags { syn: ack.is_none(), ..Flags::default() },
            window: 1000,
            options: Options { mss: ack.is_none().then_some(1460), ..Options::default() },
            marked: false,
        };
        let mut frame = BytesMut::zeroed(TCP + segment.header_bytes());
        frame[..6].copy_from_slice(&MAC);
        let ip_bytes = (frame.len() - 14) as u8;
        frame[12..TCP]
            .copy_from_slice(&[8, 0, 0x45, 0, 0, ip_bytes, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        segment.emit(&mut frame[TCP..]);
        RxPacket::new(frame, RxMeta { checksums: Checksums::Good, ..RxMeta::default() })
    }

    /// Sends a SYN and returns the cookie in the answer.
    fn cookie(stack: &mut Stack, port: u16) -> Seq {
        let mut device = MockDevice::default();
        stack.receive(at(300), segment(port, 5, None), &mut device);
        let sent = device.take_sent();
        let [answer] = &sent[..] else { panic!("expected one answer, got {}", sent.len()) };
        Segment::parse(&answer.header[TCP..]).expect("a SYN-ACK").0.seq
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn cookie_opens_no_connection_known_to_another_shard() {
        let config = Config::new([10, 0, 0, 1].into(), MAC, Seed(1)).with_neighbour([10, 0, 0, 2].into(), [2; 6]);
        let mut shards = [0, 1].map(|index| Stack::for_shard(config.clone(), index, 2));
        let mut device = MockDevice::default();
        for shard in &mut shards {
            shard.listen(80, 1).expect("a free port");
            // One connection that stays half open, and another SYN that stays refused for longer than the grace time.
            shard.receive(at(0), segment(1, 5, None), &mut device);
            shard.receive(at(0), segment(2, 5, None), &mut device);
        }
        let [first, second] = [3, 4].map(|port| cookie(&mut shards[0], port));
        let _ = cookie(&mut shards[1], 5);
        let ack = || segment(3, 6, Some(first + 1));
        shards[0].receive(at(301), ack(), &mut device);
        assert_eq!(shards.each_ref().map(Stack::connections), [2, 1]);

        shards.iter_mut().for_each(Stack::note_flows_moved);
        let pass = |shards: &mut [Stack; 2], from: usize, device: &mut MockDevice| {
            let mut passed = shards[from].take_passed();
            assert_eq!(passed.len(), 1, "the other shard is asked");
            shards[1 - from].receive_passed(at(302), passed.remove(0), device);
        };
        shards[1].receive(at(302), ack(), &mut device);
        pass(&mut shards, 1, &mut device);
        assert_eq!(shards.each_ref().map(Stack::connections), [2, 1], "the connection is opened once");
        assert!(shards[0].take_passed().is_empty());

        shards[1].receive(at(302), segment(4, 6, Some(second + 1)), &mut device);
        pass(&mut shards, 1, &mut device);
        pass(&mut shards, 0, &mut device);
        assert_eq!(shards.each_ref().map(Stack::connections), [2, 2], "no shard knew the flow");
    }

    /// The flow belongs to another shard or is gone. The rule holds for every engine.
    #[test]
    fn changed_packets_are_not_passed_to_other_shards() {
        let config = Config::new([10, 0, 0, 1].into(), MAC, Seed(1)).with_neighbour([10, 0, 0, 2].into(), [2; 6]);
        for (engine, verdict, passed) in [
            (engines::TLS, Verdict::Done, false),
            (engines::TLS, Verdict::Failed, true),
            (engines::STANDARD, Verdict::Done, false),
            (engines::STANDARD, Verdict::Untouched, true),
            // The digests were verified and the bytes are unchanged; placed data are visible in `placed`.
            (engines::NVME_TCP, Verdict::Done, true),
        ] {
            let mut shard = Stack::for_shard(config.clone(), 0, 2);
            let mut packet = segment(3, 6, Some(Seq(7)));
            let context = Handle { index: Handle::indices(engine, 1).start, generation: 0 };
            packet.meta.marks.set(context, verdict);
            shard.receive(at(0), packet, &mut MockDevice::default());
            assert_eq!(shard.take_passed().len(), usize::from(passed), "{engine} {verdict:?}");
            assert_eq!(shard.counters().shard_drops, u64::from(!passed), "{engine} {verdict:?}");
        }
    }

    #[test]
    fn fragmented_advertisement_is_not_passed_to_other_shards() {
        let six = Ipv6Config::unassigned().with_router_discovery();
        let config = Config::new([10, 0, 0, 1].into(), MAC, Seed(1)).with_ipv6(six);
        let mut shard = Stack::for_shard(config, 0, 2);
        // A router advertisement, first whole, then as an atomic fragment (RFC 6946).
        for (extension, passed) in [(&[][..], 1), (&[58, 0, 0, 0, 0, 0, 0, 7], 0)] {
            let mut frame = BytesMut::zeroed(14);
            frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            let next = if extension.is_empty() { 58 } else { 44 };
            frame.extend_from_slice(&[0x60, 0, 0, 0, 0, extension.len() as u8 + 16, next, 255]);
            frame.extend_from_slice(&Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets());
            frame.extend_from_slice(&Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets());
            frame.extend_from_slice(extension);
            frame.extend_from_slice(&[134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
            let meta = RxMeta { checksums: Checksums::Good, ..RxMeta::default() };
            shard.receive(at(0), RxPacket::new(frame, meta), &mut MockDevice::default());
            assert_eq!(shard.take_passed().len(), passed);
        }
        assert_eq!(shard.counters().ndp_in_errors, 1);
    }
}
