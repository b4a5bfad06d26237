//! Packets in pieces: received ones put together, sent ones cut to what their path takes.
//!
//! Invariant: a packet is put together of fragments that came equally protected by ESP, so it came as they did.

use super::icmp::Refusal;
use super::{ETHERNET_BYTES, Network};
use crate::counters::{HostCounters, Ip};
use bytes::BytesMut;
use offload_api::fragmentation::fragment;
use offload_api::{Protection, TxPacket};
use offload_base::time::earliest;
use offload_base::{Instant, Rng};
use offload_formats::reassembly::{FragmentOutcome, Reassembler, ReassemblyLimits};
use offload_formats::{HeaderProblem, IpHeaders, IpVersion, ReportRule};

/// What waits for the rest of its packet, of each IP.
#[derive(Debug)]
pub(super) struct Fragments {
    four: Reassembler,
    six: Reassembler,
    /// Identifications of IPv6 packets cut here (RFC 7739: not to be guessed).
    identifications: Rng,
}

impl Fragments {
    pub(super) fn new(identifications: Rng) -> Fragments {
        let of = |version| Reassembler::new(ReassemblyLimits::for_version(version));
        Fragments { four: of(IpVersion::V4), six: of(IpVersion::V6), identifications }
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        earliest(self.four.next_event(), self.six.next_event())
    }

    fn of(&mut self, version: IpVersion) -> &mut Reassembler {
        match version {
            IpVersion::V4 => &mut self.four,
            IpVersion::V6 => &mut self.six,
        }
    }
}

impl Network {
    /// Takes a fragment in; the frame as it would have come whole, if it is the last that was missing. `reply`: as of
    /// [`refuse`](Self::refuse).
    pub(super) fn on_fragment(
        &mut self,
        now: Instant,
        frame: &[u8],
        version: IpVersion,
        (came, reply): (Protection, Option<Protection>),
        counters: &mut HostCounters,
    ) -> Option<BytesMut> {
        counters.count(version, Ip::ReassemblyRequests);
        let reassembler = self.fragments.of(version);
        let taken = reassembler.insert_among(now, frame, ETHERNET_BYTES, came as u64);
        counters.count_many(version, Ip::ReassemblyFails, reassembler.take_evicted());
        match taken {
            FragmentOutcome::Whole(whole) => {
                counters.count(version, Ip::ReassemblyOks);
                return Some(whole);
            }
            FragmentOutcome::Kept | FragmentOutcome::Duplicate => {}
            FragmentOutcome::Refused(refusal) => {
                counters.count(version, Ip::ReassemblyFails);
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

    /// Tells the sender of an IPv6 packet, if it is to know, what in its headers is not acceptable.
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
            // RFC 4443 2.4 (e.3): of what goes to many, only an option that asks for it is reported.
            ReportRule::Always => !for_many || code == 2,
        };
        if wanted {
            self.refuse(now, packet, Refusal::Problem { code, pointer }, reply, counters);
        }
    }

    /// Gives up packets of which not all came in time, and tells their senders.
    pub(super) fn expire_fragments(&mut self, now: Instant, counters: &mut HostCounters) {
        for version in [IpVersion::V4, IpVersion::V6] {
            while let Some(expired) = self.fragments.of(version).expire(now) {
                counters.count(version, Ip::ReassemblyTimeouts);
                counters.count(version, Ip::ReassemblyFails);
                if let Some(first) = expired.first {
                    let came = came_among(expired.among);
                    self.refuse(now, &first[ETHERNET_BYTES..], Refusal::Incomplete, Some(came), counters);
                }
            }
        }
    }

    /// The next packet for a device that takes `mtu` bytes, cut if it is longer than its path takes.
    pub(crate) fn next_mail(&mut self, now: Instant, mtu: u16, counters: &mut HostCounters) -> Option<TxPacket> {
        loop {
            let packet = self.outbox.pop_front()?;
            let Some((version, takes)) = self.is_too_long(now, &packet, mtu) else { return Some(packet) };
            let identification = match version {
                IpVersion::V4 => u32::from(u16::from_be_bytes([packet.header[18], packet.header[19]])),
                IpVersion::V6 => self.fragments.identifications.next_u32(),
            };
            let Ok(pieces) = fragment(packet, ETHERNET_BYTES, takes, identification) else {
                counters.count(version, Ip::FragmentationFails);
                continue;
            };
            counters.count(version, Ip::FragmentationOks);
            counters.count_many(version, Ip::FragmentsCreated, pieces.len() as u64);
            for piece in pieces.into_iter().rev() {
                self.outbox.push_front(piece);
            }
        }
    }

    /// The IP of a packet that is longer than its path takes, and what that takes. Only what is complete can be cut:
    /// a packet that the device is still to work on was made to fit.
    fn is_too_long(&self, now: Instant, packet: &TxPacket, mtu: u16) -> Option<(IpVersion, u16)> {
        let bytes = (packet.header.len() + packet.payload_len()).saturating_sub(ETHERNET_BYTES);
        if !packet.ask.is_nothing() || bytes <= FITS_EVERYWHERE {
            return None;
        }
        let ip = packet.header.get(ETHERNET_BYTES..)?;
        let headers = IpHeaders::walk(ip).ok()?;
        let takes = self.path_mtu_of_datagrams(now, headers.destination(ip), mtu);
        (bytes > usize::from(takes)).then_some((headers.version, takes))
    }
}

/// How fragments came that are kept apart from others by this.
fn came_among(among: u64) -> Protection {
    let all = [Protection::None, Protection::Authentic, Protection::Secret];
    all.into_iter().find(|came| *came as u64 == among).unwrap_or(Protection::Secret)
}

/// Linux's min_pmtu: no path is believed to take less.
const FITS_EVERYWHERE: usize = 552;
