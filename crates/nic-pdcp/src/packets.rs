//! The packet engine: protects outgoing PDUs in GTP-U and opens arriving ones.
//!
//! Invariants: with an integrity key, a COUNT advances only for a PDU with a valid MAC-I. A PDU that was not opened is
//! unchanged. A PDU to be protected never leaves in clear.

use bytes::BytesMut;
use core::convert::Infallible;
use core::ops::Range;
use nic_engine::{Context, Engine, FrameLookup, Headers, ImageReader, ImageWriter, OpenedFrame, PacketEngine};
use offload_api::{Direction, PacketAsk, PacketMark, Protocol, TxPacket};
use offload_esp::ReplayWindow;
use offload_formats::{Gtpu, GtpuMessage, TransportHeader};
use pdcp::device::{PACKETS, PdcpContext, REMEMBERED, tunnel_key};
use pdcp::{BearerKind, Config, Security};

offload_base::counters! {
    /// Counters of [`PdcpPackets`].
    ///
    /// ```
    /// use nic_pdcp::PdcpCounters;
    ///
    /// assert_eq!(PdcpCounters::default().protected, 0);
    /// ```
    #[non_exhaustive]
    pub struct PdcpCounters {
        /// PDUs protected.
        pub protected: "pdcp_tx_pdus",
        /// Packets dropped because they could not be protected: no PDU in GTP-U, or a COUNT other than the requested
        /// one.
        pub not_protected: "pdcp_tx_drop_pdus",
        /// PDUs opened.
        pub opened: "pdcp_rx_pdus",
        /// PDUs with an invalid MAC-I, passed on unchanged.
        pub failed: "pdcp_rx_integrity_fail",
        /// PDUs without a possible COUNT, control PDUs, and PDUs that are too short, passed on unchanged.
        pub passed: "pdcp_rx_passed",
        /// PDUs dropped as duplicates.
        pub duplicates: "pdcp_rx_drop_duplicates",
    }
}

/// The packet engine [`PACKETS`].
///
/// ```
/// use nic_pdcp::{PdcpCounters, PdcpPackets};
/// use nic_sim::NicConfig;
///
/// let (device, _driver) = nic_sim::nic_with(NicConfig::default(), |engines| engines.add_packet(PdcpPackets, 1000));
/// assert_eq!(device.engine_counters::<PdcpCounters>().protected, 0);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PdcpPackets;

/// The state of one direction of a bearer.
///
/// See [`PdcpPackets`] for an example.
#[derive(Debug)]
pub enum PdcpState {
    /// Sending: the host gives each COUNT.
    Transmit,
    /// Receiving.
    Receive {
        /// The highest opened COUNT plus one.
        next: u64,
        /// The window for duplicate detection, if enabled. Its numbers are COUNTs plus one.
        window: Option<ReplayWindow>,
    },
}

/// Configuration and keys of one direction of a bearer.
///
/// See [`PdcpPackets`] for an example.
#[derive(Debug)]
pub struct PdcpKeys {
    config: Config,
    security: Security,
}

impl PdcpKeys {
    /// Returns the length of the shortest PDU.
    fn min_pdu_len(&self) -> usize {
        self.config.clear_bytes() + self.security.mac_len()
    }
}

impl Engine for PdcpPackets {
    const NAME: &'static str = PACKETS;
    type Spec = PdcpContext;
    type Command = Infallible;
    type Change = Infallible;
    type State = PdcpState;
    type Objects = PdcpKeys;
    type Counters = PdcpCounters;

    fn create(&mut self, direction: Direction, context: PdcpContext) -> Option<(PdcpState, PdcpKeys)> {
        let PdcpContext { config, security, next, drops_duplicates } = context;
        config.check().ok()?;
        let state = match direction {
            Direction::Transmit => PdcpState::Transmit,
            Direction::Receive => {
                let window = || ReplayWindow::without_history(REMEMBERED, true, next);
                PdcpState::Receive { next, window: drops_duplicates.then(window) }
            }
        };
        Some((state, PdcpKeys { config, security }))
    }

    fn save(state: &PdcpState, image: &mut ImageWriter<'_>) {
        match state {
            PdcpState::Transmit => image.put_u8(TRANSMIT),
            PdcpState::Receive { next, window } => {
                // The first byte gives the kind of state.
                image.put_u8(if window.is_some() { REMEMBERS } else { RECEIVE });
                image.put_u64(*next);
                let mut bytes = Vec::new();
                window.iter().for_each(|window| window.save(&mut bytes));
                image.put(&bytes);
            }
        }
    }

    fn load(image: &mut ImageReader<'_>) -> Option<PdcpState> {
        match image.take_u8()? {
            TRANSMIT => Some(PdcpState::Transmit),
            RECEIVE => Some(PdcpState::Receive { next: image.take_u64()?, window: None }),
            REMEMBERS => {
                let next = image.take_u64()?;
                Some(PdcpState::Receive { next, window: Some(ReplayWindow::restore(image.rest())?.0) })
            }
            _ => None,
        }
    }
}

/// The place of a PDU in its frame.
///
/// See [`PdcpPackets`] for an example.
#[derive(Clone, Debug)]
pub struct PdcpPacketView {
    transport: TransportHeader,
    pdu: Range<usize>,
    message: GtpuMessage,
}

/// The state of protecting the PDUs of one packet.
///
/// See [`PdcpPackets`] for an example.
#[derive(Debug)]
pub struct PdcpProtection {
    transport: TransportHeader,
    /// The COUNT of the next PDU.
    count: u64,
    /// Whether checksums must be filled in after protection.
    checksum: bool,
}

impl PacketEngine for PdcpPackets {
    type Facts = PdcpPacketView;
    type Encapsulation = PdcpProtection;

    fn look(&self, frame: &[u8], headers: &Headers) -> FrameLookup<PdcpPacketView> {
        let found = || {
            let transport = headers.transport().filter(|transport| transport.protocol == Protocol::Udp)?;
            let port = u16::from_be_bytes(*frame.get(transport.header + 2..)?.first_chunk()?);
            let header = (port == Gtpu::PORT).then(|| Gtpu::parse(&frame[transport.payload..transport.end]))??;
            let Range { start, end } = header.payload();
            let pdu = transport.payload + start..transport.payload + end;
            // An end marker must arrive at the same queue as the PDUs before it.
            let is_of_bearer = matches!(header.message, GtpuMessage::Data | GtpuMessage::EndMarker);
            is_of_bearer.then_some((header.tunnel, PdcpPacketView { transport, pdu, message: header.message }))
        };
        match found() {
            Some((tunnel, seen)) => FrameLookup::Key(tunnel_key(tunnel), seen),
            None => FrameLookup::Nothing,
        }
    }

    fn open(
        &mut self,
        Context { handle: context, state, held }: Context<'_, PdcpPackets>,
        frame: &[u8],
        seen: &PdcpPacketView,
        counters: &mut PdcpCounters,
    ) -> OpenedFrame {
        let PdcpState::Receive { next, window } = state else { return OpenedFrame::Untouched(PacketMark::None) };
        if seen.message != GtpuMessage::Data {
            return OpenedFrame::Untouched(PacketMark::None);
        }
        let pdu = &frame[seen.pdu.clone()];
        let is_control =
            held.config.kind != BearerKind::Signalling && pdu.first().is_none_or(|first| first & DATA == 0);
        // Without a checksum (RFC 768), only the MAC-I detects corruption.
        let is_spoilt = seen.transport.are_checksums_right(frame) == Some(false);
        let count = held.config.sn.count_near(*next, pdu).filter(|_| !is_control && !is_spoilt);
        let Some(count) = count.filter(|_| pdu.len() >= held.min_pdu_len()) else {
            counters.passed += 1;
            return OpenedFrame::Untouched(PacketMark::None);
        };
        let number = u64::from(count) + 1;
        if let Some(window) = window
            // COUNTs below the window may be new, so only the host can decide about them.
            && number + u64::from(REMEMBERED) > window.top()
            && !window.is_new(number)
        {
            counters.duplicates += 1;
            return OpenedFrame::Dropped;
        }
        // A copy, so that a PDU with an invalid MAC-I can be passed on unchanged.
        let mut inner = BytesMut::from(frame);
        let mut tail = inner.split_off(seen.pdu.start);
        let padding = tail.split_off(seen.pdu.len());
        let mut pdus = [(count, tail)];
        let authentic = held.security.open(held.config.clear_bytes(), &mut pdus)[0];
        if !authentic {
            counters.failed += 1;
            return OpenedFrame::Untouched(PacketMark::Failed { context });
        }
        let [(_, tail)] = pdus;
        inner.unsplit(tail);
        inner.unsplit(padding);
        // Only authentic PDUs move the COUNT, so that forged ones cannot.
        *next = (*next).max(number);
        if let Some(window) = window {
            window.accept(number);
        }
        counters.opened += 1;
        let mark = PacketMark::Opened { context, number: count.into(), packets: 1, code: 0 };
        OpenedFrame::Another { inner, mark, vouched: true }
    }

    fn begin(
        &mut self,
        context: Context<'_, PdcpPackets>,
        ask: PacketAsk,
        packet: &mut TxPacket,
        counters: &mut PdcpCounters,
    ) -> Option<PdcpProtection> {
        let transport = Headers::parse_unfinished(&packet.header).transport();
        let transport = transport.filter(|transport| transport.protocol == Protocol::Udp);
        // A receive context cannot protect packets.
        let transport = transport.filter(|_| matches!(context.state, PdcpState::Transmit));
        if transport.is_none() {
            counters.not_protected += 1;
        }
        // The checksum must cover the protected packet, so it is filled in later.
        let checksum = core::mem::take(&mut packet.ask.checksum);
        Some(PdcpProtection { transport: transport?, count: ask.number, checksum })
    }

    fn wrap(
        &mut self,
        Context { held, .. }: Context<'_, PdcpPackets>,
        protecting: &mut PdcpProtection,
        plain: &[u8],
        _: usize,
        counters: &mut PdcpCounters,
    ) -> Option<BytesMut> {
        let frame = protecting.wrap(held, plain);
        match &frame {
            Some(_) => counters.protected += 1,
            None => counters.not_protected += 1,
        }
        frame
    }
}

impl PdcpProtection {
    fn wrap(&mut self, held: &PdcpKeys, plain: &[u8]) -> Option<BytesMut> {
        let count = u32::try_from(self.count).ok()?;
        let datagram = plain.get(self.transport.payload..)?;
        let header = Gtpu::parse(datagram).filter(|header| header.message == GtpuMessage::Data)?;
        let pdu = header.payload();
        // The PDU must fill the datagram and carry the requested COUNT.
        let fits = pdu.end == datagram.len() && pdu.len() >= held.min_pdu_len();
        if !fits || held.config.sn.count_near(self.count, &datagram[pdu.clone()]) != Some(count) {
            return None;
        }
        let mut frame = BytesMut::from(plain);
        let tail = frame.split_off(self.transport.payload + pdu.start);
        let mut pdus = [(count, tail)];
        held.security.protect(held.config.clear_bytes(), &mut pdus);
        let [(_, tail)] = pdus;
        // The parts are adjacent in memory, so joining does not copy.
        frame.unsplit(tail);
        if self.checksum {
            TransportHeader { end: frame.len(), ..self.transport }.fill_checksums(&mut frame);
        }
        self.count += 1;
        Some(frame)
    }
}

const TRANSMIT: u8 = 0;
const RECEIVE: u8 = 1;
const REMEMBERS: u8 = 2;
/// The D/C bit of data PDUs.
const DATA: u8 = 0x80;
