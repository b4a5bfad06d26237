//! A TCP header as a value (RFC 9293 3.1), with the options of RFC 7323 and RFC 2018.
//!
//! Invariant: a header that [`Segment::parse`] returns lies within the packet. Options after a malformed one are
//! ignored, as in Linux.

use bytes::BytesMut;
use offload_api::{Placements, RxMeta};
use offload_base::Seq;
use smallvec::SmallVec;
use smoltcp::wire::{TcpOption, TcpPacket, TcpSeqNumber};

/// A TCP header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) seq: Seq,
    /// The acknowledgment number, if the ACK flag is set.
    pub(crate) ack: Option<Seq>,
    pub(crate) flags: Flags,
    /// Window field of the header, unscaled.
    pub(crate) window: u16,
    pub(crate) options: Options,
    /// Whether the network marked the packet (RFC 3168 5: CE). This is not a part of the TCP header.
    pub(crate) marked: bool,
}

/// The payload of a segment.
#[derive(Debug)]
pub(crate) struct SegmentPayload {
    pub(crate) data: BytesMut,
    pub(crate) meta: RxMeta,
    /// Parts of the data that the device placed elsewhere.
    pub(crate) placed: Placements,
    /// Payload length of a segment as the peer sent it. A device may have joined several segments.
    pub(crate) segment_bytes: usize,
}

/// TCP flags except ACK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) psh: bool,
    /// RFC 3168 6.1: ECE reports congestion, CWR a reduced window.
    pub(crate) ece: bool,
    pub(crate) cwr: bool,
}

/// TCP options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) mss: Option<u16>,
    pub(crate) window_scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    pub(crate) timestamps: Option<Timestamps>,
    /// Received blocks, as (first sequence number, sequence number after the last).
    pub(crate) sack: SmallVec<[(Seq, Seq); 3]>,
}

/// The timestamps option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timestamps {
    pub(crate) value: u32,
    pub(crate) echo: u32,
}

impl Segment {
    /// Parses the header at the start of `bytes`. Returns the header and its length.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Segment, usize)> {
        let packet = TcpPacket::new_checked(bytes).ok()?;
        // Port 0 is reserved, so such a segment belongs to no connection.
        if packet.src_port() == 0 || packet.dst_port() == 0 {
            return None;
        }
        let segment = Segment {
            source_port: packet.src_port(),
            destination_port: packet.dst_port(),
            seq: Seq(packet.seq_number().0 as u32),
            ack: packet.ack().then(|| Seq(packet.ack_number().0 as u32)),
            flags: Flags {
                syn: packet.syn(),
                fin: packet.fin(),
                rst: packet.rst(),
                psh: packet.psh(),
                ece: packet.ece(),
                cwr: packet.cwr(),
            },
            window: packet.window_len(),
            options: Options::parse(packet.options()),
            marked: false,
        };
        Some((segment, usize::from(packet.header_len())))
    }

    /// Returns the length of the header with options, in bytes.
    pub(crate) fn header_bytes(&self) -> usize {
        HEADER_BYTES + self.options.bytes()
    }

    /// Writes the header, with checksum zero, to `header`, which must have [`header_bytes`](Self::header_bytes).
    pub(crate) fn emit(&self, header: &mut [u8]) {
        self.options.emit(&mut header[HEADER_BYTES..]);
        let mut packet = TcpPacket::new_unchecked(&mut header[..]);
        packet.set_src_port(self.source_port);
        packet.set_dst_port(self.destination_port);
        packet.set_seq_number(TcpSeqNumber(self.seq.0 as i32));
        packet.set_ack_number(TcpSeqNumber(self.ack.unwrap_or_default().0 as i32));
        packet.clear_flags();
        packet.set_header_len(self.header_bytes() as u8);
        packet.set_syn(self.flags.syn);
        packet.set_fin(self.flags.fin);
        packet.set_rst(self.flags.rst);
        packet.set_psh(self.flags.psh);
        packet.set_ece(self.flags.ece);
        packet.set_cwr(self.flags.cwr);
        packet.set_ack(self.ack.is_some());
        packet.set_window_len(self.window);
        packet.set_urgent_at(0);
        packet.set_checksum(0);
    }

    /// Returns the sequence space of the segment with `payload` bytes: SYN and FIN count one each (RFC 9293 3.4).
    pub(crate) fn sequence_len(&self, payload: usize) -> u32 {
        payload as u32 + u32::from(self.flags.syn) + u32::from(self.flags.fin)
    }
}

impl Options {
    fn parse(mut bytes: &[u8]) -> Options {
        let mut options = Options::default();
        // Nearly all segments carry only timestamps, in the layout that RFC 7323, appendix A, recommends.
        if let [1, 1, 8, 10, v0, v1, v2, v3, e0, e1, e2, e3] = *bytes {
            let (value, echo) = (u32::from_be_bytes([v0, v1, v2, v3]), u32::from_be_bytes([e0, e1, e2, e3]));
            options.timestamps = Some(Timestamps { value, echo });
            return options;
        }
        while !bytes.is_empty() {
            let Ok((rest, option)) = TcpOption::parse(bytes) else { break };
            match option {
                TcpOption::EndOfList => break,
                TcpOption::MaxSegmentSize(mss) => options.mss = Some(mss),
                // RFC 7323 2.3: a shift above 14 counts as 14.
                TcpOption::WindowScale(shift) => options.window_scale = Some(shift.min(14)),
                TcpOption::SackPermitted => options.sack_permitted = true,
                TcpOption::TimeStamp { tsval, tsecr } => {
                    options.timestamps = Some(Timestamps { value: tsval, echo: tsecr });
                }
                TcpOption::SackRange(blocks) => {
                    options.sack = blocks.into_iter().flatten().map(|(from, to)| (Seq(from), Seq(to))).collect();
                }
                TcpOption::NoOperation | TcpOption::Unknown { .. } => {}
            }
            bytes = rest;
        }
        options
    }

    /// Returns the length of the options with padding, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let timestamps = if self.timestamps.is_some() { TIMESTAMPS_BYTES } else { 0 };
        let sack = if self.sack.is_empty() { 0 } else { 4 + 8 * self.sack.len() };
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let permitted = if self.sack_permitted { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        timestamps + sack + mss + permitted + scale
    }

    /// Writes the options. Each one is aligned to four bytes by padding in front (RFC 7323, appendix A).
    fn emit(&self, mut buffer: &mut [u8]) {
        let mut put = |padding: usize, option: TcpOption<'_>| {
            for _ in 0..padding {
                buffer = TcpOption::NoOperation.emit(core::mem::take(&mut buffer));
            }
            buffer = option.emit(core::mem::take(&mut buffer));
        };
        if let Some(mss) = self.mss {
            put(0, TcpOption::MaxSegmentSize(mss));
        }
        if self.sack_permitted {
            put(2, TcpOption::SackPermitted);
        }
        if let Some(timestamps) = self.timestamps {
            put(2, TcpOption::TimeStamp { tsval: timestamps.value, tsecr: timestamps.echo });
        }
        if let Some(shift) = self.window_scale {
            put(1, TcpOption::WindowScale(shift));
        }
        if !self.sack.is_empty() {
            let mut blocks = [None; MAX_SACK_BLOCKS];
            for (slot, (from, to)) in blocks.iter_mut().zip(&self.sack) {
                *slot = Some((from.0, to.0));
            }
            put(2, TcpOption::SackRange(blocks));
        }
    }
}

/// Length of a TCP header without options.
pub(crate) const HEADER_BYTES: usize = 20;
/// Length of the timestamps option with padding.
pub(crate) const TIMESTAMPS_BYTES: usize = 12;
/// Maximum number of SACK blocks beside timestamps (RFC 2018 3).
pub(crate) const MAX_SACK_BLOCKS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn header_round_trips(
            seq: u32, ack: Option<u32>, flags: [bool; 6], window: u16, mss: Option<u16>, scale in proptest::option::of(0u8..=14),
            sack_permitted: bool, stamps: Option<(u32, u32)>, blocks in proptest::collection::vec(any::<(u32, u32)>(), 0..=3),
        ) {
            // SACK blocks and the options of a SYN would exceed 40 bytes together.
            let syn = mss.is_some() || scale.is_some() || sack_permitted;
            let segment = Segment {
                source_port: 1,
                destination_port: 2,
                seq: Seq(seq),
                ack: ack.map(Seq),
                flags: Flags {
                    syn: flags[0],
                    fin: flags[1],
                    rst: flags[2],
                    psh: flags[3],
                    ece: flags[4],
                    cwr: flags[5],
                },
                window,
                options: Options {
                    mss,
                    window_scale: scale,
                    sack_permitted,
                    timestamps: stamps.map(|(value, echo)| Timestamps { value, echo }),
                    sack: if syn { SmallVec::new() } else { blocks.into_iter().map(|(a, b)| (Seq(a), Seq(b))).collect() },
                },
                marked: false,
            };
            let mut header = vec![0; segment.header_bytes()];
            segment.emit(&mut header);
            prop_assert!(header.len() <= 60 && header.len().is_multiple_of(4));
            prop_assert_eq!(Segment::parse(&header), Some((segment, header.len())));
        }

        #[test]
        fn parse_accepts_any_bytes_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some((_, length)) = Segment::parse(&bytes) {
                prop_assert!((20..=bytes.len()).contains(&length));
            }
        }
    }
}
