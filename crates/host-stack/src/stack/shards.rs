//! A host of several shards, each with a queue of the device: what one receives and another has to do with.
//!
//! A device sends a flow's packets to one queue, but not always to the shard that knows the flow: fragments have no ports
//! to go by, an indirection table may change while flows are alive, a socket may be open on one shard only. So a packet
//! whose flow a shard does not know goes on to the next, until it has been everywhere; the last one answers as any stack
//! answers strangers. A SYN that may belong to a flow that is alive elsewhere looks for that first, and for a listener on
//! a second round: a listener may stand on every shard, and would begin the flow anew. ARP and ICMP concern all: the
//! shard that receives them answers, the others listen.
//!
//! Invariants: a packet is handed on less than twice as often as there are shards. What a device has changed for a flow
//! that is gone is handed to nobody, and no verdict of a queue's context leaves its shard.

use super::Stack;
use crate::config::Config;
use crate::network::{Arrival, Parsed, concerns_all_shards};
use bytes::BytesMut;
use core::net::SocketAddr;
use core::ops::Range;
use offload_api::rx::{NvmeVerdict, TlsVerdict};
use offload_api::{NetDevice, RxMeta, RxPacket};
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
    Datagram {
        port: u16,
        from: SocketAddr,
        payload: Range<usize>,
    },
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
        let secrets = config.seed;
        let seed = if index == 0 { secrets } else { secrets.derive(&format!("shard {index}")) };
        let max_connections = config.max_connections.div_ceil(usize::from(shards));
        let mut stack = Stack::with_secrets(Config { seed, max_connections, ..config }, secrets);
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
            What::Datagram { port, from, payload } => self.on_datagram(now, (port, from, payload), packet, Some(left)),
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
    pub(super) fn shards_to_ask(&self, opens: bool, is_served_here: bool) -> u16 {
        let Some(place) = &self.place else { return 0 };
        let rounds = if opens && (place.flows_moved || !is_served_here) { 2 } else { 1 };
        rounds * place.shards - 1
    }

    /// Whether a SYN that has so many shards left to ask may open a connection: its flow is not alive elsewhere.
    pub(super) fn is_last_round(&self, left: u16) -> bool {
        self.place.as_ref().is_none_or(|place| left < place.shards)
    }

    pub(super) fn pass_segment_on(&mut self, parsed: Parsed, packet: RxPacket, left: u16) {
        self.pass_on(What::Segment(Box::new(parsed)), packet, left);
    }

    pub(super) fn pass_datagram_on(
        &mut self,
        (port, from, payload): (u16, SocketAddr, Range<usize>),
        packet: RxPacket,
        left: u16,
    ) {
        self.pass_on(What::Datagram { port, from, payload }, packet, left);
    }

    fn pass_on(&mut self, what: What, mut packet: RxPacket, left: u16) {
        let Some(place) = &mut self.place else { return };
        if packet.meta.tls == TlsVerdict::Decrypted || !packet.placed.is_empty() {
            self.counters.shard_drops += 1;
            return;
        }
        let meta =
            RxMeta { tls: TlsVerdict::NotDecrypted, context: None, nvme: NvmeVerdict::NotChecked, ..packet.meta };
        packet.meta = meta;
        self.counters.shard_passed += 1;
        place.outgoing.push(Passed { what, packet, left: left - 1 });
    }
}

/// Whether a UDP port that nobody asked for by number may be this shard's: no two choose the same.
pub(super) fn may_choose(place: Option<&Place>, port: u16) -> bool {
    place.is_none_or(|place| port % place.shards == place.index)
}
