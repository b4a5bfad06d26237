//! TLS records and NVMe/TCP PDUs in a direction of a TCP stream, found by their headers.
//!
//! Only lengths and types are read, and those are never encrypted. Bytes are looked at in order; packets that came early
//! wait for those in between, up to a bound. A stream of another protocol, or one whose place is lost, is left alone.

use core::mem;
use offload_base::{Instant, Seq};
use offload_formats::nvme::PduHeader;
use offload_formats::tls::RecordHeader;
use std::collections::BTreeMap;

/// A unit that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) layer: Protocol,
    pub(super) name: &'static str,
    /// How many came before it in this direction.
    pub(super) number: u64,
    /// Bytes, header included.
    pub(super) len: u64,
    /// When its first byte passed.
    pub(super) from: Instant,
}

/// What a stream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Tls,
    Nvme,
}

/// Follows one direction of a stream.
#[derive(Debug)]
pub(super) struct Follower {
    next: Seq,
    protocol: Option<Protocol>,
    /// The start of the unit under way, until that is known.
    header: Vec<u8>,
    /// Bytes of it that are still to come, once its header is known.
    left: u64,
    unit: Option<Unit>,
    started: Instant,
    number: u64,
    /// By the distance from the byte that is next.
    early: BTreeMap<u32, Vec<u8>>,
    lost: bool,
}

impl Follower {
    /// From the first byte on, whose sequence number is `next`.
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

    /// The bytes from `seq` on pass. `payload` gives them, piece by piece.
    pub(super) fn pass<'a>(
        &mut self,
        now: Instant,
        seq: Seq,
        len: u32,
        payload: impl Iterator<Item = &'a [u8]>,
        done: &mut dyn FnMut(Unit),
    ) {
        if self.lost || len == 0 {
            return;
        }
        let ahead = seq.0.wrapping_sub(self.next.0);
        if ahead == 0 {
            payload.for_each(|piece| self.read(now, piece, done));
            self.advance(len);
        } else if ahead < 1 << 31 {
            self.keep(ahead, payload.flatten().copied().collect());
            self.lost = self.early.len() > MOST_EARLY;
        } else {
            let known = ahead.wrapping_neg();
            if known >= len {
                return;
            }
            let bytes: Vec<u8> = payload.flatten().copied().skip(known as usize).collect();
            self.read(now, &bytes, done);
            self.advance(len - known);
        }
        while let Some(first) = self.early.first_entry().filter(|first| *first.key() == 0) {
            let bytes = first.remove();
            self.read(now, &bytes, done);
            self.advance(bytes.len() as u32);
        }
    }

    /// Moves on; what came early and is passed now, in part or whole, keeps its rest.
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

    /// Of two pieces from one byte on, the longer one has all of the other.
    fn keep(&mut self, ahead: u32, data: Vec<u8>) {
        let kept = self.early.entry(ahead).or_default();
        if data.len() > kept.len() {
            *kept = data;
        }
    }

    fn read(&mut self, now: Instant, mut bytes: &[u8], done: &mut dyn FnMut(Unit)) {
        while !bytes.is_empty() && !self.lost {
            if self.unit.is_none() {
                if self.header.is_empty() {
                    self.started = now;
                }
                let wanted = if self.protocol == Some(Protocol::Tls) { RecordHeader::BYTES } else { PduHeader::BYTES };
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

    /// A header is complete. That of the first unit tells the protocol.
    fn begin(&mut self) {
        let header = mem::take(&mut self.header);
        let found = match self.protocol {
            Some(Protocol::Tls) => tls(&header),
            Some(Protocol::Nvme) => nvme(&header),
            None => tls(&header).or_else(|| first_pdu(&header)),
        };
        // A record is longer than its header and the three bytes that were read to tell the protocol.
        let Some((protocol, name, len)) = found.filter(|(_, _, len)| *len >= header.len() as u64) else {
            self.lost = true;
            return;
        };
        self.protocol = Some(protocol);
        self.left = len - header.len() as u64;
        self.unit = Some(Unit { layer: protocol, name, number: self.number, len, from: self.started });
        self.number += 1;
    }
}

fn tls(header: &[u8]) -> Option<(Protocol, &'static str, u64)> {
    let header = RecordHeader::parse(header.first_chunk()?);
    let name = match header.content_type {
        20 => "change_cipher_spec",
        21 => "alert",
        22 => "handshake",
        23 => "application_data",
        _ => return None,
    };
    (header.version >> 8 == 3).then_some((Protocol::Tls, name, u64::from(header.len) + RecordHeader::BYTES as u64))
}

/// A connection begins with ICReq or ICResp, both of 128 bytes (NVMe/TCP 3.6.2).
fn first_pdu(header: &[u8]) -> Option<(Protocol, &'static str, u64)> {
    nvme(header).filter(|(_, _, len)| header[0] <= 1 && *len == 128)
}

fn nvme(header: &[u8]) -> Option<(Protocol, &'static str, u64)> {
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
    Some((Protocol::Nvme, name, header.len.into()))
}

/// Packets that wait for those in between.
const MOST_EARLY: usize = 256;

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
        fn records_are_found_however_they_come(
            cuts in prop::collection::vec((0usize..31, 1usize..31), 0..40),
            first in prop_oneof![Just(u32::MAX - 10), any::<u32>()],
        ) {
            let mut cuts = cuts;
            cuts.push((0, 31)); // in the end all of it has come
            prop_assert_eq!(units(&records(), first, &cuts), RECORDS);
        }
    }
}
