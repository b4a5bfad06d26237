//! An IPsec layer, a driver and a device: packets in, frames out, and the reverse. Time stands still.

use bytes::Bytes;
use core::net::IpAddr;
use ipsec::{KeyMemory, KeyedDevice, Keying, SaAdded, SaEvent, SecureDevice};
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use nic_sim::{Delays, Device, NicConfig, nic};
use offload_api::fragmentation::fragment;
use offload_api::{
    Action, Direction, DontFragment, EspKey, EspMode, EspSuite, NetDevice, NoRecords, OffloadKind, Policy, SaParams,
    Selector, Template, TransmitResult, TxAsk, TxPacket,
};
use offload_base::counters::CounterSet;
use offload_base::{Instant, Seq};

pub(crate) const NOW: Instant = Instant::ZERO;

/// One host's IPsec layer and device.
pub(crate) struct SecureEnd {
    pub(crate) device: Device,
    pub(crate) secure: SecureDevice,
}

impl SecureEnd {
    pub(crate) fn new(number: u8) -> SecureEnd {
        SecureEnd::with(number, NicConfig::default())
    }

    pub(crate) fn with(number: u8, config: NicConfig) -> SecureEnd {
        SecureEnd::remembering(number, config, KeyMemory::new())
    }

    /// Creates an end with a memory of used keys.
    pub(crate) fn remembering(number: u8, config: NicConfig, memory: KeyMemory) -> SecureEnd {
        let mac = [2, 0, 0, 0, 0, number];
        let (device, driver) = nic(NicConfig { mac, delays: Delays::NONE, line_rate: None, ..config });
        SecureEnd { device, secure: SecureDevice::with_memory(Box::new(driver), memory) }
    }

    pub(crate) fn keying(&mut self) -> &mut dyn Keying {
        self.secure.keying().expect("an IPsec layer")
    }

    /// Adds SAs, and policies that protect all packets.
    pub(crate) fn key(&mut self, sas: &[SaParams]) {
        for sa in sas {
            let template = match sa.mode {
                EspMode::Transport => Template::transport(sa.reqid),
                EspMode::Tunnel => Template::tunnel(sa.source, sa.destination, sa.reqid),
            };
            let action = Action::Protect(template);
            let policy = Policy { direction: sa.direction, selector: Selector::ANY, priority: 0, action };
            let _ = self.keying().add_policy(policy);
            let SaAdded { refused, .. } = self.keying().add_sa(NOW, sa.clone()).unwrap();
            assert_eq!(refused, None);
        }
        self.drain();
    }

    /// Runs device and driver until both are idle.
    pub(crate) fn drain(&mut self) {
        for _ in 0..4 {
            self.device.process(NOW);
            assert!(self.device.poll_frame(NOW).is_none(), "nothing was to be sent");
            assert!(self.secure.poll_event().is_none());
        }
    }

    pub(crate) fn send(&mut self, packet: TxPacket) -> Vec<Frame> {
        assert_eq!(self.secure.transmit(NOW, packet, &NoRecords), TransmitResult::Posted);
        self.frames()
    }

    /// Returns all frames that leave.
    pub(crate) fn frames(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            self.secure.flush(NOW);
            self.device.process(NOW);
            let before = frames.len();
            frames.extend(core::iter::from_fn(|| self.device.poll_frame(NOW)));
            self.device.process(NOW);
            assert!(self.secure.poll_event().is_none());
            if frames.len() == before {
                return frames;
            }
        }
    }

    /// Delivers frames to the device and returns the stack's packets.
    pub(crate) fn receive(&mut self, frames: impl IntoIterator<Item = Frame>) -> Vec<Vec<u8>> {
        for frame in frames {
            self.device.receive_frame(NOW, frame);
        }
        self.device.process(NOW);
        core::iter::from_fn(|| self.secure.receive(NOW)).map(|packet| packet.frame.to_vec()).collect()
    }

    pub(crate) fn events(&mut self) -> Vec<SaEvent> {
        core::iter::from_fn(|| self.keying().poll_sa_event()).collect()
    }

    pub(crate) fn counted(&self, name: &str) -> u64 {
        let mut set = CounterSet::default();
        self.secure.count(&mut set);
        self.device.count(&mut set);
        set.value(name)
    }
}

/// Returns the address of host `number`.
pub(crate) fn address(ipv6: bool, number: u8) -> IpAddr {
    if ipv6 { [0xfd00, 0, 0, 0, 0, 0, 0, number.into()].into() } else { [10, 0, 0, number].into() }
}

/// Returns an SA from host 1 to host 2.
pub(crate) fn sa(direction: Direction, offload: OffloadKind, mode: EspMode, ipv6: bool) -> SaParams {
    let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
    SaParams {
        mode,
        offload,
        reqid: 1,
        esn: true,
        dont_fragment: DontFragment::Clear,
        ..SaParams::new(direction, 0x1001, address(ipv6, 1), address(ipv6, 2), key)
    }
}

/// Returns two ends with an SA from the first to the second.
pub(crate) fn pair(sender: OffloadKind, receiver: OffloadKind, mode: EspMode) -> [SecureEnd; 2] {
    let mut ends = [SecureEnd::new(1), SecureEnd::new(2)];
    ends[0].key(&[sa(Direction::Transmit, sender, mode, false)]);
    ends[1].key(&[sa(Direction::Receive, receiver, mode, false)]);
    ends
}

/// Returns a TCP packet from host 1 to host 2. With `mss`, it must be segmented.
pub(crate) fn tcp(ipv6: bool, payload: &[u8], mss: Option<u16>) -> TxPacket {
    let mut header = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    let total = 20 + payload.len();
    if ipv6 {
        header.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        header.extend_from_slice(&(total as u16).to_be_bytes());
        header.extend_from_slice(&[6, 64]);
    } else {
        header.extend_from_slice(&[8, 0, 0x45, 0]);
        header.extend_from_slice(&((20 + total) as u16).to_be_bytes());
        header.extend_from_slice(&[0x12, 0x34, 0, 0, 64, 6, 0, 0]);
    }
    for number in [1, 2] {
        match address(ipv6, number) {
            IpAddr::V4(address) => header.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => header.extend_from_slice(&address.octets()),
        }
    }
    header.extend_from_slice(&[0x13, 0x88, 0, 80, 0, 0, 0, 7, 0, 0, 0, 9, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    TxPacket {
        header: header.into(),
        fragments: [Bytes::copy_from_slice(payload)].into_iter().collect(),
        ask: TxAsk { seq: Seq(7), checksum: true, mss, ..TxAsk::default() },
    }
}

/// Returns the payload of a plain frame made by [`tcp`].
pub(crate) fn payload(frame: &[u8]) -> &[u8] {
    &frame[if frame[12] == 8 { 54 } else { 74 }..]
}

/// Returns a UDP datagram from host 1's port 5000 to host 2's `port`, in fragments for a path of `mtu` bytes.
pub(crate) fn datagram(ipv6: bool, port: u16, payload: &[u8], mtu: u16) -> Vec<TxPacket> {
    let mut header = tcp(ipv6, &[0; 12], None).header[..if ipv6 { 54 } else { 34 }].to_vec();
    let length = 8 + payload.len() as u16;
    if ipv6 {
        header[18..20].copy_from_slice(&length.to_be_bytes());
        header[20] = 17;
    } else {
        header[16..18].copy_from_slice(&(20 + length).to_be_bytes());
        header[23] = 17;
        offload_formats::checksum::fill_ipv4_header(&mut header[14..]);
    }
    let mut text = [5000u16.to_be_bytes(), port.to_be_bytes(), length.to_be_bytes(), [0; 2]].concat();
    text.extend_from_slice(payload);
    offload_esp::checksum::fill_transport(&mut text, 17, address(ipv6, 1), address(ipv6, 2));
    let fragments = [Bytes::from(text)].into_iter().collect();
    let whole = TxPacket { header: header.into(), fragments, ask: TxAsk::default() };
    if whole.header.len() - 14 + whole.payload_len() <= usize::from(mtu) {
        return vec![whole];
    }
    fragment(whole, 14, mtu, 77).expect("UDP may be cut")
}

/// Returns a packet as a received frame.
pub(crate) fn frame(packet: &TxPacket) -> Frame {
    [&packet.header[..], &packet.fragments.concat()].concat().into()
}
