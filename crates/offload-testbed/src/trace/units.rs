//! TLS records and NVMe/TCP PDUs in one direction of a TCP stream, found by their headers.
//!
//! Only lengths and types are read, which are never encrypted. Bytes are read in order; early packets wait for the gap
//! to fill, up to a bound. A stream of another protocol, or one that lost its place, is ignored.

use core::mem;
use offload_base::{Instant, Seq};
use offload_formats::nvme::PduHeader;
use offload_formats::tls::RecordHeader;
use std::collections::BTreeMap;

/// A complete unit: a record or a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamUnit {
    pub(super) layer: UnitProtocol,
    pub(super) name: &'static str,
    /// Number of earlier units in this direction.
    pub(super) number: u64,
    /// Length in bytes, header included.
    pub(super) len: u64,
    /// Time at which the first byte passed.
    pub(super) from: Instant,
}

/// The protocol of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnitProtocol {
    Tls,
    Nvme,
}

/// A follower of one direction of a stream.
#[derive(Debug)]
pub(super) struct Follower {
    next: Seq,
    protocol: Option<UnitProtocol>,
    /// Header bytes of the current unit, while the header is incomplete.
    header: Vec<u8>,
    /// Remaining bytes of the current unit, after its header is complete.
    left: u64,
    unit: Option<StreamUnit>,
    started: Instant,
    number: u64,
    /// Early packets, by their distance from the next expected byte.
    early: BTreeMap<u32, Vec<u8>>,
    lost: bool,
}

impl Follower {
    /// Creates a follower of a stream whose first byte has sequence number `next`.
    pub(super) fn new(next: Seq) -> Follower {
        Follower {
            next,
            protocol: None,
            header: Vec::new(),
            left: 0,
            unit: None,
            started: Instant::ZERO,
            number: 0,
            early: BTreeMap::new(),
            lost: false,
        }
    }

    /// Reads `len` bytes that begin at `seq`; `payload` yields the bytes in pieces. Calls `done` for each unit that
    /// ends.
    pub(super) fn pass<'a>(
        &mut self,
        now: Instant,
        seq: Seq,
        len: u32,
        payload: impl Iterator<Item = &'a [u8]>,
        done: &mut dyn FnMut(StreamUnit),
    ) {
        // A direction that lost its place stays lost: guessing a header would draw wrong units.
        if self.lost || len == 0 {
            return;
        }
        let ahead = seq.0.wrapping_sub(self.next.0);
        if ahead == 0 {
            payload.for_each(|piece| self.read(now, piece, done));
            self.advance(len);
        } else if ahead < 1 << 31 {
            self.keep(ahead, payload.flatten().copied().collect());
            self.lost = self.early.len() > MAX_EARLY;
        } else {
            // The segment is old, at least in part: only bytes that were not read before count.
            let known = ahead.wrapping_neg();
            if known >= len {
                return;
            }
            let bytes: Vec<u8> = payload.flatten().copied().skip(known as usize).collect();
            self.read(now, &bytes, done);
            self.advance(len - known);
        }
        // The gap is filled: early packets that begin at the next byte are read in turn.
        while let Some(first) = self.early.first_entry().filter(|first| *first.key() == 0) {
            let bytes = first.remove();
            self.read(now, &bytes, done);
            self.advance(bytes.len() as u32);
        }
    }

    /// Advances by `bytes`. Early packets that are covered are dropped; partly covered packets keep their rest.
    fn advance(&mut self, bytes: u32) {
        self.next += bytes;
        for (ahead, mut data) in mem::take(&mut self.early) {
            let known = bytes.saturating_sub(ahead);
            if (known as usize) < data.len() {
                data.drain(..known as usize);
                self.keep(ahead.saturating_sub(bytes), data);
            }
        }
    }

    /// Stores an early packet. Of two packets at one offset, the longer contains the shorter.
    fn keep(&mut self, ahead: u32, data: Vec<u8>) {
        let kept = self.early.entry(ahead).or_default();
        if data.len() > kept.len() {
            *kept = data;
        }
    }

    fn read(&mut self, now: Instant, mut bytes: &[u8], done: &mut dyn FnMut(StreamUnit)) {
        while !bytes.is_empty() && !self.lost {
            // Any record or PDU can be split over many pieces, so even its header is collected first.
            if self.unit.is_none() {
                if self.header.is_empty() {
                    self.started = now;
                }
                let wanted =
                    if self.protocol == Some(UnitProtocol::Tls) { RecordHeader::BYTES } else { PduHeader::BYTES };
                let taken = (wanted - self.header.len()).min(bytes.len());
                let (header, rest) = bytes.split_at(taken);
                self.header.extend_from_slice(header);
                bytes = rest;
                if self.header.len() == wanted {
                    self.begin();
                }
            }
            let taken = self.left.min(bytes.len() as u64);
            self.left -= taken;
            bytes = &bytes[taken as usize..];
            if self.left == 0
                && let Some(unit) = self.unit.take()
            {
                done(unit);
            }
        }
    }

    /// Parses a complete header. The first header decides the protocol.
    fn begin(&mut self) {
        let header = mem::take(&mut self.header);
        let found = match self.protocol {
            Some(UnitProtocol::Tls) => tls(&header),
            Some(UnitProtocol::Nvme) => nvme(&header),
            None => tls(&header).or_else(|| first_pdu(&header)),
        };
        // A valid record is at least as long as the eight bytes that were read to recognize the protocol.
        let Some((protocol, name, len)) = found.filter(|(_, _, len)| *len >= header.len() as u64) else {
            self.lost = true;
            return;
        };
        self.protocol = Some(protocol);
        self.left = len - header.len() as u64;
        self.unit = Some(StreamUnit { layer: protocol, name, number: self.number, len, from: self.started });
        self.number += 1;
    }
}

fn tls(header: &[u8]) -> Option<(UnitProtocol, &'static str, u64)> {
    let header = RecordHeader::parse(header.first_chunk()?);
    let name = match header.content_type {
        20 => "change_cipher_spec",
        21 => "alert",
        22 => "handshake",
        23 => "application_data",
        _ => return None,
    };
    (header.version >> 8 == 3).then_some((UnitProtocol::Tls, name, u64::from(header.len) + RecordHeader::BYTES as u64))
}

/// Parses the first PDU. A connection begins with ICReq or ICResp, both 128 bytes long (NVMe/TCP 3.6.2).
fn first_pdu(header: &[u8]) -> Option<(UnitProtocol, &'static str, u64)> {
    nvme(header).filter(|(_, _, len)| header[0] <= 1 && *len == 128)
}

fn nvme(header: &[u8]) -> Option<(UnitProtocol, &'static str, u64)> {
    let header = PduHeader::parse(header.first_chunk()?);
    let name = match header.kind {
        0 => "ICReq",
        1 => "ICResp",
        2 => "H2CTermReq",
        3 => "C2HTermReq",
        4 => "CapsuleCmd",
        5 => "CapsuleResp",
        6 => "H2CData",
        7 => "C2HData",
        9 => "R2T",
        _ => return None,
    };
    Some((UnitProtocol::Nvme, name, header.len.into()))
}

/// Maximum number of early packets.
const MAX_EARLY: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn units(stream: &[u8], first: u32, cuts: &[(usize, usize)]) -> Vec<(&'static str, u64, u64)> {
        let mut follower = Follower::new(Seq(first));
        let mut units = Vec::new();
        for (at, len) in cuts {
            let bytes = &stream[*at..(at + len).min(stream.len())];
            let seq = Seq(first.wrapping_add(*at as u32));
            follower.pass(Instant::ZERO, seq, bytes.len() as u32, bytes.chunks(3), &mut |unit| {
                units.push((unit.name, unit.number, unit.len));
            });
        }
        units
    }

    fn records() -> Vec<u8> {
        [&[22, 3, 1, 0, 4, 1, 2, 3, 4][..], &[23, 3, 3, 0, 3, 9, 9, 9], &[21, 3, 3, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
            .concat()
    }

    const RECORDS: [(&str, u64, u64); 3] = [("handshake", 0, 9), ("application_data", 1, 8), ("alert", 2, 14)];

    #[test]
    fn pdus_are_found_and_other_protocols_are_left_alone() {
        let mut pdus = vec![0; 128];
        pdus[..8]
            .copy_from_slice(&PduHeader { kind: 0, flags: 0, header_len: 128, data_offset: 0, len: 128 }.to_bytes());
        pdus.extend(PduHeader { kind: 4, flags: 0, header_len: 72, data_offset: 0, len: 8 }.to_bytes());
        assert_eq!(units(&pdus, 1, &[(0, 200)]), [("ICReq", 0, 128), ("CapsuleCmd", 1, 8)]);
        assert_eq!(units(b"GET / HTTP/1.1\r\n\r\n", 1, &[(0, 200)]), []);
    }

    proptest! {
        #[test]
        fn records_are_found_in_any_packet_order(
            cuts in prop::collection::vec((0usize..31, 1usize..31), 0..40),
            first in prop_oneof![Just(u32::MAX - 10), any::<u32>()],
        ) {
            let mut cuts = cuts;
            cuts.push((0, 31)); // the last cut covers the whole stream
            prop_assert_eq!(units(&records(), first, &cuts), RECORDS);
        }
    }
}
