//! Transmit contexts that do not stand where a packet begins.
//!
//! - **DUMP** rebuilds the context at the packet: static parameters (skipped when the record number is the one the device
//!   counts from already), progress parameters, a fence, DUMPs with the record's bytes before the packet, all on the ring
//!   that the packet goes to.
//! - **Next record** leaves what is behind the context, or in the middle of a record, to software, and begins afresh where
//!   a packet ahead of it begins a record: parameters and a fence. Nothing is read twice. A record that software sealed
//!   stays sealed in the send queue, so however often it is sent again, that is done once.
//!
//! A device that tells its packets by sequence numbers passes on, untouched, those from before a context's start
//! (`tx_tls_skip_no_sync_data` in Linux), and has to refuse one that straddles it. Neither occurs here: each range of the
//! send queue carries its context, a packet is of one, and what was queued before asks for none. A transport that says
//! otherwise has its packet dropped, for what asks to be encrypted never leaves without.
//!
//! Invariant: the driver's shadow of the context moves when all is posted, and not when the packet is for software.

use crate::config::{NicConfig, TransmitResync};
use crate::driver::Driver;
use crate::packet::SendDescriptor;
use bytes::Bytes;
use offload_api::{DropReason, Handle, Layer, Lookup, RecordSource, Sent, Unit, engines};
use offload_base::Seq;

impl Driver {
    /// A packet whose context is not of use to it: its unit has to be sealed in software.
    pub(super) fn send_back(&mut self, handle: Handle, seq: Seq, source: &dyn RecordSource) -> Sent {
        match source.unit_at(Layer::Tls, seq) {
            Lookup::In(unit) => {
                self.counters.tx_tls_needs_software += of_tls(handle);
                Sent::NeedsSoftware(unit)
            }
            lookup => {
                self.count_unit_missing(handle, lookup);
                Sent::Dropped(DropReason::DeviceGone)
            }
        }
    }

    fn count_unit_missing(&mut self, handle: Handle, lookup: Lookup) {
        match lookup {
            Lookup::Released => self.counters.tx_tls_drop_no_sync_data += of_tls(handle),
            _ => self.counters.tx_tls_drop_bypass_req += of_tls(handle),
        }
    }

    /// The record that a context has to come back to for a packet at `seq`.
    ///
    /// # Errors
    /// What becomes of the packet otherwise.
    pub(super) fn record_to_restore(
        &mut self,
        handle: Handle,
        seq: Seq,
        source: &dyn RecordSource,
    ) -> Result<Unit, Sent> {
        let unit = match source.unit_at(Layer::Tls, seq) {
            Lookup::In(unit) => unit,
            lookup => {
                self.count_unit_missing(handle, lookup);
                return Err(Sent::Dropped(DropReason::NoSyncData));
            }
        };
        if self.config.tls_transmit_resync == TransmitResync::NextRecord {
            let ahead = self.contexts.expected(handle).is_none_or(|expected| seq.after(expected));
            if !ahead || seq != unit.start {
                self.counters.tx_tls_ooo += of_tls(handle);
                return Err(self.send_back(handle, seq, source));
            }
        }
        Ok(unit)
    }

    /// Brings the device's context to `seq`, in the record `unit`; what is before that in the record goes through the
    /// digest context `through` first.
    ///
    /// # Errors
    /// What becomes of the packet otherwise.
    pub(super) fn resync(
        &mut self,
        handle: Handle,
        unit: Unit,
        seq: Seq,
        bytes: u32,
        through: Option<Handle>,
        source: &dyn RecordSource,
    ) -> Result<(), Sent> {
        let begun = self.contexts.has_sent(handle);
        if self.config.tls_transmit_resync == TransmitResync::NextRecord {
            self.counters.tx_tls_next_record += if begun { of_tls(handle) } else { 0 };
            self.post_parameters(handle, unit);
            return Ok(());
        }
        let Some(dumps) = self.dumps_of(handle, unit, seq, through, source) else {
            return Err(self.send_back(handle, seq, source));
        };
        self.counters.tx_tls_dump_packets += dumps.len() as u64 * of_tls(handle);
        self.counters.tx_tls_dump_bytes += u64::from(seq.distance_from(unit.start)) * of_tls(handle);
        if begun {
            self.counters.tx_tls_ooo += of_tls(handle);
            self.counters.tx_tls_resync_bytes += u64::from(bytes) * of_tls(handle);
        }
        self.post_parameters(handle, unit);
        for dump in dumps {
            self.post(dump);
        }
        Ok(())
    }

    /// Puts the context at the first byte of `unit`.
    fn post_parameters(&mut self, handle: Handle, unit: Unit) {
        if self.contexts.counts_from(handle) != Some(unit.number) {
            self.post(SendDescriptor::StaticParameters { handle, number: unit.number });
            self.contexts.note_counts_from(handle, unit.number);
        }
        self.post(SendDescriptor::ProgressParameters { handle, start: unit.start });
        self.post(SendDescriptor::Fence);
    }

    /// The bytes of `unit` before `seq`, each DUMP at most an MTU of them; what needs digests of the context `through` goes
    /// through that first. `None`: it takes too many.
    pub(super) fn dumps_of(
        &self,
        handle: Handle,
        unit: Unit,
        seq: Seq,
        through: Option<Handle>,
        source: &dyn RecordSource,
    ) -> Option<Vec<SendDescriptor>> {
        let (mut dumps, mut at) = (Vec::new(), unit.start);
        let (most, dumps_at_most) = (usize::from(self.config.mtu), dumps_at_most(&self.config));
        if seq.distance_from(unit.start) as usize > dumps_at_most * most {
            return None;
        }
        source.pieces(unit.layer, unit.start, seq, &mut |mut bytes: Bytes, tag| {
            let digests = tag.digests.filter(|context| Some(*context) == through);
            while !bytes.is_empty() {
                let piece = bytes.split_to(bytes.len().min(most));
                let piece_seq = at;
                at += piece.len() as u32;
                dumps.push(SendDescriptor::Dump { handle, seq: piece_seq, bytes: piece, digests });
            }
        });
        if at != seq || dumps.len() > dumps_at_most {
            return None;
        }
        Some(dumps)
    }
}

/// What one context of TLS counts for among what is counted of TLS; others are not.
pub(super) fn of_tls(handle: Handle) -> u64 {
    u64::from(handle.engine() == engines::TLS)
}

/// Descriptors that a packet and what it may need before it take.
pub(super) fn descriptors_at_most(config: &NicConfig) -> usize {
    PARAMETERS + dumps_at_most(config) + 1
}

/// DUMPs are cut at the MTU and at the ends of what was queued. A record comes as header, payload and trailer;
/// its payload may be of several pieces, and what has more of them than this is cheaper to seal in software. (PDUs of
/// NVMe/TCP may be longer: what comes late in them is software's.)
pub(super) fn dumps_at_most(config: &NicConfig) -> usize {
    match config.tls_transmit_resync {
        TransmitResync::Dump => LONGEST_UNIT.div_ceil(usize::from(config.mtu)) + PIECES_OF_A_UNIT,
        TransmitResync::NextRecord => 0,
    }
}

/// Static parameters, progress parameters, fence.
const PARAMETERS: usize = 3;
/// A TLS record with header, longest ciphertext and all: RFC 8446 5.2.
const LONGEST_UNIT: usize = 5 + (1 << 14) + 256;
const PIECES_OF_A_UNIT: usize = 16;

#[cfg(test)]
mod tests;
