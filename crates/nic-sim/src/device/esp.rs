//! ESP on its way through the device: what the engines make of it, and what is counted.

use crate::device::Device;
use crate::dma;
use crate::engine::Engine;
use crate::engine::coalesce::Within;
use crate::engine::esp::receive::{self, Received, Why};
use crate::engine::esp::transmit::EspDrop;
use crate::engine::esp::{Esp, Sas};
use crate::packet::{ControlCompletion, IpsecCommand};
use crate::steering::KeyBytes;
use bytes::BytesMut;
use core::net::IpAddr;
use offload_api::rx::Checksums;
use offload_api::{Marks, PacketMark, RxMeta};
use offload_base::Instant;
use offload_formats::frame::ETHERNET_BYTES;
use offload_formats::{Headers, Transport};

/// A frame to be handed up, or none.
pub(super) enum EspOutcome {
    /// As it was on the wire, and this about it.
    Untouched(PacketMark),
    /// As it was on the wire: a part of a packet of UDP, which may be ESP.
    UdpFragment,
    /// In place of what was on the wire.
    Opened(Opened),
    /// The host is not to see it.
    Dropped,
}

/// What the engine made of a packet.
pub(super) struct Opened {
    /// What the host is shown, if nothing joins it.
    pub(super) frame: BytesMut,
    pub(super) meta: RxMeta,
    /// In crypto offload, the packet in the frame, as it would be without ESP.
    pub(super) inner: Option<(BytesMut, Within)>,
    /// Of the packet without ESP, if others may join it: its checksums are right.
    pub(super) transport: Option<Transport>,
}

impl Opened {
    /// The packet without ESP.
    pub(super) fn plain(&self) -> &[u8] {
        self.inner.as_ref().map_or(&self.frame, |(inner, _)| inner)
    }
}

impl Device {
    /// Carries out a command, unless it is from before the last reset.
    pub(super) fn run_ipsec(&mut self, epoch: u64, command: IpsecCommand) {
        self.dma.tx_parameters += dma::IPSEC_DESCRIPTOR;
        if epoch == self.counters.resets {
            self.sas().carry_out(command);
        }
    }

    /// Whether it has the SA that a received packet came by.
    pub(super) fn opens(&self, spi: u32, source: IpAddr, destination: IpAddr) -> bool {
        let key = KeyBytes::of_addresses(spi, source, destination);
        self.steering.opener(Esp::ID, key).is_some()
    }

    /// Whether it has no SA for received packets.
    pub(super) fn opens_nothing(&self) -> bool {
        self.steering.opens_nothing()
    }

    /// What the ESP engines work with.
    pub(super) fn sas(&mut self) -> Sas<'_> {
        let Device { esp: table, contexts, steering, dma, .. } = self;
        Sas { table, contexts, steering, dma }
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
        usize::from(self.config.mtu) + ETHERNET_BYTES
    }

    pub(super) fn count_esp_drop(&mut self, why: EspDrop) {
        self.counters.ipsec_tx_drop_pkts += 1;
        match why {
            EspDrop::NoState | EspDrop::Expired | EspDrop::Exhausted => {
                self.counters.ipsec_tx_drop_no_state += 1;
                *match why {
                    EspDrop::Expired => &mut self.counters.xfrm_out_state_expired,
                    EspDrop::Exhausted => &mut self.counters.xfrm_out_state_seq_error,
                    _ => &mut self.counters.xfrm_out_no_states,
                } += 1;
            }
            EspDrop::NotIp => self.counters.ipsec_tx_drop_not_ip += 1,
            EspDrop::Trailer => self.counters.ipsec_tx_drop_trailer += 1,
        }
    }

    /// Runs a received frame through the ESP engine.
    pub(super) fn receive_esp(&mut self, data: &[u8]) -> EspOutcome {
        let received = receive::receive(&mut self.sas(), data);
        match &received {
            Received::Decrypted { .. } | Received::Unwrapped { .. } => {
                self.counters.ipsec_rx_pkts += 1;
                self.counters.ipsec_rx_bytes += data.len() as u64;
            }
            Received::Untouched(PacketMark::Failed { .. }) => self.counters.ipsec_rx_auth_fail += 1,
            Received::Untouched(PacketMark::Fragment { .. }) => self.counters.ipsec_rx_fragments += 1,
            Received::Untouched(_) | Received::UdpFragment => {}
            Received::Dropped(why) => {
                self.counters.ipsec_rx_drop_pkts += 1;
                *match why {
                    Why::Replay => &mut self.counters.xfrm_in_state_seq_error,
                    Why::Expired => &mut self.counters.xfrm_in_state_expired,
                    Why::Mode => &mut self.counters.xfrm_in_state_mode_error,
                    Why::Dummy => &mut self.counters.ipsec_rx_dummy,
                } += 1;
            }
        }
        let (frame, inner, verdict, (checksums, transport)) = match received {
            Received::Untouched(verdict) => return EspOutcome::Untouched(verdict),
            Received::UdpFragment => return EspOutcome::UdpFragment,
            Received::Dropped(_) => return EspOutcome::Dropped,
            Received::Decrypted { frame, inner, verdict, new } => {
                let looked = inner.as_ref().map(|(inner, _)| self.look_at(inner));
                let (checksums, transport) = looked.unwrap_or((Checksums::Unchecked, None));
                // Joined, what the host will refuse would take others with it.
                (frame, inner, verdict, (checksums, transport.filter(|_| new)))
            }
            Received::Unwrapped { inner, verdict, translated } => {
                // RFC 3948 3.1.2: what a translator changed under the checksum, ESP makes up for.
                let looked = match translated {
                    true => (Checksums::Good, Headers::parse(&inner).transport()),
                    false => self.look_at(&inner),
                };
                (inner, None, verdict, looked)
            }
        };
        let mut marks = Marks::default();
        marks.set_packet(verdict);
        let meta = RxMeta { checksums, marks, ..RxMeta::default() };
        EspOutcome::Opened(Opened { frame, meta, inner, transport })
    }
}
