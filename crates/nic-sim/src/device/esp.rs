//! ESP on its way through the device: what the engines make of it, and what is counted.

use crate::device::{Device, ETHERNET_HEADER};
use crate::dma;
use crate::engine::esp_rx::{self, Received};
use crate::engine::esp_tx::EspDrop;
use crate::packet::{ControlCompletion, IpsecCommand};
use bytes::BytesMut;
use offload_api::rx::Checksums;
use offload_api::{EspVerdict, RxMeta};
use offload_base::Instant;

/// A frame to be handed up, or none.
pub(super) enum EspOutcome {
    /// As it was on the wire, and this about it.
    Untouched(EspVerdict),
    /// In place of what was on the wire.
    Changed(BytesMut, RxMeta),
    /// The host is not to see it.
    Dropped,
}

impl Device {
    /// Carries out a command, unless it is from before the last reset.
    pub(super) fn run_ipsec(&mut self, epoch: u64, command: IpsecCommand) {
        self.dma.tx_parameters += dma::IPSEC_DESCRIPTOR;
        if epoch == self.counters.resets {
            self.esp.carry_out(command);
        }
    }

    /// Tells the host what happened to SAs, as far as there is room.
    pub(super) fn report_sa_events(&mut self, now: Instant) {
        // Answers to commands must find room.
        while self.rings.control_completions.room() > self.config.control_ring
            && let Some(event) = self.esp.pop_event()
        {
            let _room = self.report(now, ControlCompletion::Sa(event));
        }
    }

    /// The longest frame there is.
    pub(super) fn longest_frame(&self) -> usize {
        usize::from(self.config.mtu) + ETHERNET_HEADER
    }

    pub(super) fn count_esp_drop(&mut self, why: EspDrop) {
        self.counters.ipsec_tx_drop_pkts += 1;
        match why {
            EspDrop::NoState => self.counters.ipsec_tx_drop_no_state += 1,
            EspDrop::NotIp => self.counters.ipsec_tx_drop_not_ip += 1,
            EspDrop::Trailer => self.counters.ipsec_tx_drop_trailer += 1,
        }
    }

    /// Runs a received frame through the ESP engine.
    pub(super) fn receive_esp(&mut self, data: &[u8]) -> EspOutcome {
        let (frame, inner_checksums, verdict) = match esp_rx::receive(&mut self.esp, data) {
            Received::Untouched(verdict) => {
                match verdict {
                    EspVerdict::Failed => self.counters.ipsec_rx_auth_fail += 1,
                    EspVerdict::Fragment => self.counters.ipsec_rx_fragments += 1,
                    _ => {}
                }
                return EspOutcome::Untouched(verdict);
            }
            Received::Dropped => {
                self.counters.ipsec_rx_drop_pkts += 1;
                return EspOutcome::Dropped;
            }
            Received::Decrypted { frame, inner, verdict } => {
                let checksums = inner.map_or(Checksums::Unchecked, |inner| self.look_at(&inner).0);
                (frame, checksums, verdict)
            }
            // RFC 3948 3.1.2: what a translator changed under the checksum, ESP makes up for.
            Received::Unwrapped { inner, verdict, translated: true } => (inner, Checksums::Good, verdict),
            Received::Unwrapped { inner, verdict, translated: false } => {
                let checksums = self.look_at(&inner).0;
                (inner, checksums, verdict)
            }
        };
        self.counters.ipsec_rx_pkts += 1;
        self.counters.ipsec_rx_bytes += data.len() as u64;
        EspOutcome::Changed(frame, RxMeta { checksums: inner_checksums, esp: verdict, ..RxMeta::default() })
    }
}
