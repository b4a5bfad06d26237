//! Reassembly of received fragments, and fragmentation of sent packets.
//!
//! Invariant: all fragments of a packet had the same ESP protection, which therefore is the packet's protection.

use super::icmp::UndeliverableReason;
use super::{ETHERNET_BYTES, NetworkLayer};
use crate::counters::{HostCounters, IpCounter};
use bytes::BytesMut;
use offload_api::fragmentation::fragment;
use offload_api::{Protection, TxPacket};
use offload_base::time::earliest;
use offload_base::{Instant, Rng};
use offload_formats::reassembly::{FragmentOutcome, Reassembler, ReassemblyLimits};
use offload_formats::{HeaderProblem, IpHeaders, IpVersion, ReportRule};

/// Incomplete packets of both IP versions.
#[derive(Debug)]
pub(super) struct IpFragments {
    four: Reassembler,
    six: Reassembler,
    /// Identifications of sent IPv6 fragments, which must be unpredictable (RFC 7739).
    identifications: Rng,
}

impl IpFragments {
    pub(super) fn new(identifications: Rng) -> IpFragments {
        let of = |version| Reassembler::new(ReassemblyLimits::for_version(version));
        IpFragments { four: of(IpVersion::V4), six: of(IpVersion::V6), identifications }
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        earliest(self.four.next_event(), self.six.next_event())
    }

    fn reassembler(&mut self, version: IpVersion) -> &mut Reassembler {
        match version {
            IpVersion::V4 => &mut self.four,
            IpVersion::V6 => &mut self.six,
        }
    }
}

impl NetworkLayer {
    /// Processes a fragment. Returns the reassembled frame if the fragment was the last missing one. `reply` is as for
    /// [`report_undeliverable`](Self::refuse).
    pub(super) fn on_fragment(
        &mut self,
        now: Instant,
        frame: &[u8],
        version: IpVersion,
        (came, reply): (Protection, Option<Protection>),
        counters: &mut HostCounters,
    ) -> Option<BytesMut> {
        counters.count(version, IpCounter::ReassemblyRequests);
        let reassembler = self.fragments.reassembler(version);
        // Fragments with different protection never join, or cleartext could be mixed into a protected packet.
        let taken = reassembler.insert_among(now, frame, ETHERNET_BYTES, came as u64);
        counters.count_many(version, IpCounter::ReassemblyFails, reassembler.take_evicted());
        match taken {
            FragmentOutcome::Whole(whole) => {
                counters.count(version, IpCounter::ReassemblyOks);
                return Some(whole);
            }
            FragmentOutcome::Kept | FragmentOutcome::Duplicate => {}
            FragmentOutcome::Refused(refusal) => {
                counters.count(version, IpCounter::ReassemblyFails);
                match refusal {
                    offload_formats::reassembly::FragmentError::Overlap => counters.reassembly_overlaps += 1,
                    offload_formats::reassembly::FragmentError::Impossible(problem) => {
                        self.report_problem(now, &frame[ETHERNET_BYTES..], problem, false, reply, counters);
                    }
                    _ => {}
                }
            }
        }
        None
    }

    /// Reports an invalid IPv6 header to the packet's sender, if it may be reported.
    pub(super) fn report_problem(
        &mut self,
        now: Instant,
        packet: &[u8],
        problem: HeaderProblem,
        for_many: bool,
        reply: Option<Protection>,
        counters: &mut HostCounters,
    ) {
        let HeaderProblem { code, pointer, report } = problem;
        let wanted = match report {
            ReportRule::Never => false,
            ReportRule::UnlessMulticast => !for_many,
            // RFC 4443 2.4 (e.3): about a multicast packet, only an option that requires it is reported.
            ReportRule::Always => !for_many || code == 2,
        };
        if wanted {
            self.report_undeliverable(now, packet, UndeliverableReason::Problem { code, pointer }, reply, counters);
        }
    }

    /// Drops the packets with fragments still missing at their timeout, and reports this to the senders.
    pub(super) fn expire_fragments(&mut self, now: Instant, counters: &mut HostCounters) {
        for version in [IpVersion::V4, IpVersion::V6] {
            while let Some(expired) = self.fragments.reassembler(version).expire(now) {
                counters.count(version, IpCounter::ReassemblyTimeouts);
                counters.count(version, IpCounter::ReassemblyFails);
                if let Some(first) = expired.first {
                    let came = came_among(expired.among);
                    self.report_undeliverable(
                        now,
                        &first[ETHERNET_BYTES..],
                        UndeliverableReason::Incomplete,
                        Some(came),
                        counters,
                    );
                }
            }
        }
    }

    /// Takes the next packet for a device with an MTU of `mtu` bytes. A packet that exceeds the path MTU is fragmented.
    pub(crate) fn next_packet(&mut self, now: Instant, mtu: u16, counters: &mut HostCounters) -> Option<TxPacket> {
        loop {
            let packet = self.outbox.pop_front()?;
            let Some((version, takes)) = self.is_too_long(now, &packet, mtu) else { return Some(packet) };
            let identification = match version {
                IpVersion::V4 => u32::from(u16::from_be_bytes([packet.header[18], packet.header[19]])),
                IpVersion::V6 => self.fragments.identifications.next_u32(),
            };
            // The pieces go back to the front of the outbox, so that the packet keeps its place.
            let Ok(pieces) = fragment(packet, ETHERNET_BYTES, takes, identification) else {
                counters.count(version, IpCounter::FragmentationFails);
                continue;
            };
            counters.count(version, IpCounter::FragmentationOks);
            counters.count_many(version, IpCounter::FragmentsCreated, pieces.len() as u64);
            for piece in pieces.into_iter().rev() {
                self.outbox.push_front(piece);
            }
        }
    }

    /// Returns the IP version and the path MTU of a packet that exceeds the path MTU. Only a complete packet can be
    /// fragmented. A packet with work for the device was built to fit.
    fn is_too_long(&self, now: Instant, packet: &TxPacket, mtu: u16) -> Option<(IpVersion, u16)> {
        let bytes = (packet.header.len() + packet.payload_len()).saturating_sub(ETHERNET_BYTES);
        if !packet.ask.is_nothing() || bytes <= MIN_PATH_MTU {
            return None;
        }
        let ip = packet.header.get(ETHERNET_BYTES..)?;
        let headers = IpHeaders::walk(ip).ok()?;
        let takes = self.datagram_path_mtu(now, headers.destination(ip), mtu);
        (bytes > usize::from(takes)).then_some((headers.version, takes))
    }
}

/// Returns the protection of fragments with the reassembly group `among`.
fn came_among(among: u64) -> Protection {
    let all = [Protection::None, Protection::Authentic, Protection::Secret];
    all.into_iter().find(|came| *came as u64 == among).unwrap_or(Protection::Secret)
}

/// Packet length that fits every path: Linux's min_pmtu, below which no path MTU is accepted.
const MIN_PATH_MTU: usize = 552;
