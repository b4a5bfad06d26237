//! Many SAs in one device.

use super::rig::{NOW, SecureEnd, address, sa, tcp};
use core::net::{IpAddr, Ipv4Addr};
use ipsec::SaId;
use offload_api::{
    Action, Direction, EspKey, EspMode, EspSuite, NetDevice, NoRecords, OffloadKind, Policy, SaParams, Selector,
    Template, TransmitResult,
};

const SAS: u32 = 10_000;

fn peer(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a01_0000 + number).into()
}

/// Returns a packet to a peer.
fn to(number: u32) -> offload_api::TxPacket {
    let mut packet = tcp(false, b"hello", None);
    let IpAddr::V4(address) = peer(number) else { unreachable!() };
    packet.header[30..34].copy_from_slice(&address.octets());
    packet
}

fn add(end: &mut SecureEnd, number: u32, round: u32) -> SaId {
    let spi = 0x1000 + round * SAS + number;
    let key = EspKey::new(EspSuite::Aes128Gcm, &[&[7; 16], &spi.to_be_bytes()[..]].concat()).unwrap();
    let params = SaParams {
        destination: peer(number),
        spi,
        key,
        ..sa(Direction::Transmit, OffloadKind::Packet, EspMode::Transport, false)
    };
    let added = end.keying().add_sa(NOW, params).unwrap();
    assert_eq!(added.refused, None);
    added.sa
}

#[test]
fn ten_thousand_sas_are_replaced_under_load() {
    let mut end = SecureEnd::new(1);
    let (selector, action) = (Selector::ANY, Action::Protect(Template::transport(1)));
    end.keying().add_policy(Policy { direction: Direction::Transmit, selector, priority: 0, action }).unwrap();
    let mut sas = Vec::new();
    for number in 0..SAS {
        sas.push(add(&mut end, number, 0));
    }
    // The control ring is shorter, so the rest of the SAs wait and are handled by the host.
    (0..10).for_each(|_| end.drain());
    assert!(sas.iter().all(|id| end.secure.offloaded(*id) == OffloadKind::Packet));
    for number in (0..SAS).step_by(7) {
        let frames = end.send(to(number));
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].data[34..38], (0x1000 + number).to_be_bytes());
    }
    // Each SA is replaced under traffic. The old one is deleted when its packets have left.
    for number in (0..SAS).step_by(13) {
        assert_eq!(end.secure.transmit(NOW, to(number), &NoRecords), TransmitResult::Posted);
        let successor = add(&mut end, number, 1);
        assert_eq!(end.secure.transmit(NOW, to(number), &NoRecords), TransmitResult::Posted);
        let old = core::mem::replace(&mut sas[number as usize], successor);
        end.keying().delete_sa(old).unwrap();
        assert_eq!(end.secure.transmit(NOW, to(number), &NoRecords), TransmitResult::Posted);
        let spis: Vec<u32> =
            end.frames().iter().map(|frame| u32::from_be_bytes(frame.data[34..38].try_into().unwrap())).collect();
        let successor = 0x1000 + SAS + number;
        assert_eq!(spis, [0x1000 + number, successor, successor]);
    }
    for name in ["ipsec_tx_drop_pkts", "ipsec_sw_tx_pkts", "XfrmOutNoStates", "XfrmOutStateInvalid"] {
        assert_eq!(end.counted(name), 0, "{name}");
    }
}

#[test]
fn many_receiving_sas_are_distinguished() {
    let mut end = SecureEnd::new(2);
    let (selector, action) = (Selector::ANY, Action::Protect(Template::transport(1)));
    end.keying().add_policy(Policy { direction: Direction::Receive, selector, priority: 0, action }).unwrap();
    let spi = |number: u32| 0x2000 + number;
    for number in 0..SAS {
        let params = sa(Direction::Receive, OffloadKind::Packet, EspMode::Transport, false);
        let added = end.keying().add_sa(NOW, SaParams { spi: spi(number), ..params }).unwrap();
        assert_eq!(added.refused, None);
    }
    (0..10).for_each(|_| end.drain());
    for number in (0..SAS).step_by(501) {
        let mut sender = SecureEnd::new(1);
        let params = sa(Direction::Transmit, OffloadKind::None, EspMode::Transport, false);
        sender.key(&[SaParams { spi: spi(number), destination: address(false, 2), ..params }]);
        let frames = sender.send(tcp(false, b"hello", None));
        assert_eq!(end.receive(frames).len(), 1);
    }
    assert_eq!(end.counted("ipsec_packet_rx_pkts"), u64::from(SAS.div_ceil(501)));
}
