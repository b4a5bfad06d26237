//! A host of several shards, each with a queue of the device: what one receives and another has to do with.
//!
//! A device sends a flow's packets to one queue, but not always to the shard that knows the flow: fragments have no ports
//! to go by, an indirection table may change while flows are alive, a socket may be open on one shard only. So a packet
//! whose flow a shard does not know goes on to the next, until it has been everywhere; the last one answers as any stack
//! answers strangers. A SYN that may belong to a flow that is alive elsewhere looks for that first, and for a listener on
//! a second round: a listener may stand on every shard, and would begin the flow anew. So does what may acknowledge a
//! cookie. ARP and ICMP concern all: the shard that receives them answers, the others listen.
//!
//! Invariants: a packet is handed on less than twice as often as there are shards. What a device has changed for a flow
//! that is gone is handed to nobody, and no verdict of a queue's context leaves its shard.

use super::Stack;
use crate::config::{Config, TcpConfig};
use crate::network::{Arrival, Parsed, ParsedDatagram, concerns_all_shards};
use bytes::BytesMut;
use offload_api::{Marks, NetDevice, RxPacket};
use offload_base::Instant;

/// A stack's place among the shards of its host.
#[derive(Debug)]
pub(super) struct Place {
    shards: u16,
    index: u16,
    /// The table by which the device spreads packets is not the one it began with, or was not.
    flows_moved: bool,
    outgoing: Vec<Passed>,
}

/// A packet for another shard.
#[derive(Debug)]
pub(crate) struct Passed {
    what: What,
    packet: RxPacket,
    /// How many shards more may be asked.
    pub(crate) left: u16,
}

#[derive(Debug)]
enum What {
    Segment(Box<Parsed>),
    Datagram(ParsedDatagram),
    /// It was answered; the rest is for everybody.
    Overheard,
}

impl Passed {
    /// Whether it is for every shard, not for the next that has to do with it.
    pub(crate) fn is_for_all(&self) -> bool {
        matches!(self.what, What::Overheard)
    }

    /// Another one, for another shard.
    pub(crate) fn copy_for_all(&self) -> Passed {
        let packet = RxPacket::new(BytesMut::from(&self.packet.frame[..]), self.packet.meta);
        Passed { what: What::Overheard, packet, left: 0 }
    }
}

impl Stack {
    /// A stack that is shard `index` of `shards`. All have the same secrets; connections are shared out among them.
    pub(crate) fn of_shard(config: Config, index: u16, shards: u16) -> Stack {
        let secrets = config.random.clone();
        let random = if index == 0 { secrets.clone() } else { secrets.derive(&format!("shard {index}")) };
        let max_connections = config.max_connections.div_ceil(usize::from(shards));
        let memory = Some(config.tcp.memory_bounds().shared_by(shards.into()));
        let tcp = TcpConfig { memory, ..config.tcp };
        let mut stack = Stack::with_secrets(Config { random, max_connections, tcp, ..config }, &secrets);
        stack.place = (shards > 1).then(|| Place { shards, index, flows_moved: false, outgoing: Vec::new() });
        stack
    }

    /// From now on flows may be known to other shards than those whose queues their packets come to.
    pub(crate) fn note_flows_moved(&mut self) {
        self.place.iter_mut().for_each(|place| place.flows_moved = true);
    }

    /// Takes in what another shard has handed on.
    pub(crate) fn receive_passed(&mut self, now: Instant, passed: Passed, device: &mut dyn NetDevice) {
        let Passed { what, mut packet, left } = passed;
        match what {
            What::Segment(parsed) => self.on_segment(now, *parsed, packet, Some(left), device),
            What::Datagram(parsed) => self.on_datagram(now, parsed, packet, Some(left)),
            What::Overheard => {
                if let Some(Arrival::Undelivered(undelivered)) = self.network.overhear(now, &mut packet) {
                    // Whoever received it has counted it, if it is nobody's.
                    let strays = self.counters.stray_icmp_errors;
                    self.on_undelivered(now, &undelivered);
                    self.counters.stray_icmp_errors = strays;
                }
            }
        }
    }

    /// What is to be handed to other shards.
    pub(crate) fn take_passed(&mut self) -> Vec<Passed> {
        self.place.as_mut().map(|place| core::mem::take(&mut place.outgoing)).unwrap_or_default()
    }

    /// So many found no room where they were handed to.
    pub(crate) fn note_shard_drops(&mut self, packets: u64) {
        self.counters.shard_drops += packets;
    }

    /// Lets the other shards know of a packet that is for all of them.
    pub(super) fn share(&mut self, packet: &RxPacket) {
        if let Some(place) = &mut self.place
            && concerns_all_shards(&packet.frame)
        {
            let packet = RxPacket::new(BytesMut::from(&packet.frame[..]), packet.meta);
            place.outgoing.push(Passed { what: What::Overheard, packet, left: 0 });
        }
    }

    /// How many shards may be asked about a packet that this one was the first to receive.
    pub(super) fn shards_to_ask(&self, may_open: bool, is_served_here: bool) -> u16 {
        let Some(place) = &self.place else { return 0 };
        let rounds = if may_open && (place.flows_moved || !is_served_here) { 2 } else { 1 };
        rounds * place.shards - 1
    }

    /// Whether a segment that has so many shards left to ask may open a connection: its flow is not alive elsewhere.
    pub(super) fn is_last_round(&self, left: u16) -> bool {
        self.place.as_ref().is_none_or(|place| left < place.shards)
    }

    pub(super) fn pass_segment_on(&mut self, parsed: Parsed, packet: RxPacket, left: u16) {
        self.pass_on(What::Segment(Box::new(parsed)), packet, left);
    }

    pub(super) fn pass_datagram_on(&mut self, parsed: ParsedDatagram, packet: RxPacket, left: u16) {
        self.pass_on(What::Datagram(parsed), packet, left);
    }

    fn pass_on(&mut self, what: What, mut packet: RxPacket, left: u16) {
        let Some(place) = &mut self.place else { return };
        if packet.meta.is_changed() || !packet.placed.is_empty() {
            self.counters.shard_drops += 1;
            return;
        }
        packet.meta.marks = Marks::default();
        self.counters.shard_passed += 1;
        place.outgoing.push(Passed { what, packet, left: left - 1 });
    }
}

/// Whether a UDP port that nobody asked for by number may be this shard's: no two choose the same.
pub(super) fn may_choose(place: Option<&Place>, port: u16) -> bool {
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
    /// Where TCP begins in a frame.
    const TCP: usize = 34;

    /// A SYN of a client's, or an acknowledgment, that the device found right.
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

    /// Asks for a connection, and returns the cookie that is the answer.
    fn cookie(stack: &mut Stack, port: u16) -> Seq {
        let mut device = MockDevice::default();
        stack.receive(at(300), segment(port, 5, None), &mut device);
        let sent = device.take_sent();
        let [answer] = &sent[..] else { panic!("one answer, not {}", sent.len()) };
        Segment::parse(&answer.header[TCP..]).expect("a SYN-ACK").0.seq
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_cookie_opens_a_connection_only_if_no_shard_has_one() {
        let config = Config::new([10, 0, 0, 1].into(), MAC, Seed(1)).with_neighbour([10, 0, 0, 2].into(), [2; 6]);
        let mut shards = [0, 1].map(|index| Stack::of_shard(config.clone(), index, 2));
        let mut device = MockDevice::default();
        for shard in &mut shards {
            shard.listen(80, 1).expect("a free port");
            // One that stays half open, and one too many, for longer than a burst lasts.
            shard.receive(at(0), segment(1, 5, None), &mut device);
            shard.receive(at(0), segment(2, 5, None), &mut device);
        }
        let [first, second] = [3, 4].map(|port| cookie(&mut shards[0], port));
        let _it_takes_cookies_too = cookie(&mut shards[1], 5);
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
        assert_eq!(shards.each_ref().map(Stack::connections), [2, 1], "it is the same connection");
        assert!(shards[0].take_passed().is_empty());

        shards[1].receive(at(302), segment(4, 6, Some(second + 1)), &mut device);
        pass(&mut shards, 1, &mut device);
        pass(&mut shards, 0, &mut device);
        assert_eq!(shards.each_ref().map(Stack::connections), [2, 2], "nobody knew it");
    }

    /// Of a flow that is another shard's, or nobody's any more; whatever engine followed it.
    #[test]
    fn what_an_engine_has_made_of_a_flow_is_handed_to_nobody() {
        let config = Config::new([10, 0, 0, 1].into(), MAC, Seed(1)).with_neighbour([10, 0, 0, 2].into(), [2; 6]);
        for (engine, verdict, passed) in [
            (engines::TLS, Verdict::Done, false),
            (engines::TLS, Verdict::Failed, true),
            (engines::STANDARD, Verdict::Done, false),
            (engines::STANDARD, Verdict::Untouched, true),
            // Its digests are right. What it placed is told by where that is.
            (engines::NVME_TCP, Verdict::Done, true),
        ] {
            let mut shard = Stack::of_shard(config.clone(), 0, 2);
            let mut packet = segment(3, 6, Some(Seq(7)));
            let context = Handle { index: Handle::indices(engine, 1).start, generation: 0 };
            packet.meta.marks.set(context, verdict);
            shard.receive(at(0), packet, &mut MockDevice::default());
            assert_eq!(shard.take_passed().len(), usize::from(passed), "{engine} {verdict:?}");
            assert_eq!(shard.counters().shard_drops, u64::from(!passed), "{engine} {verdict:?}");
        }
    }

    #[test]
    fn what_came_in_fragments_is_no_advertisement_for_other_shards_either() {
        let six = Ipv6Config::unassigned().with_router_discovery();
        let config = Config::new([10, 0, 0, 1].into(), MAC, Seed(1)).with_ipv6(six);
        let mut shard = Stack::of_shard(config, 0, 2);
        // A router's advertisement, whole and as an atomic fragment (RFC 6946).
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
