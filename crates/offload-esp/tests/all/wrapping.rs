//! Random packets and SAs: an encapsulated packet can be opened, and has the wire format of RFC 4303. Garbage is
//! refused.

use bytes::BytesMut;
use core::net::IpAddr;
use offload_api::{Direction, DontFragment, EspKey, EspMode, EspSuite, SaParams, UdpEncapsulation};
use offload_esp::{EspAt, EspCipher, EspOpenError, EspTrailer, OuterHeaders, UnwrapError, WrapError, unwrap};
use offload_formats::IpView;
use offload_formats::frame::ip_packet;
use proptest::prelude::*;
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket};

const SUITES: [EspSuite; 5] =
    [EspSuite::Aes128Gcm, EspSuite::Aes256Gcm, EspSuite::ChaCha20Poly1305, EspSuite::Aes128Gmac, EspSuite::Aes256Gmac];

fn address(v6: bool, host: u8) -> IpAddr {
    if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)].into() } else { [10, 0, 0, host].into() }
}

/// A frame with a UDP datagram, or with arbitrary bytes in place of UDP.
fn plain_frame(v6: bool, class: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if v6 {
        frame.extend_from_slice(&[0x86, 0xdd, 0x60 | class >> 4, class << 4, 0, 0]);
        frame.extend_from_slice(&(payload.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[17, 64]);
    } else {
        frame.extend_from_slice(&[0x08, 0, 0x45, class]);
        frame.extend_from_slice(&(20 + payload.len() as u16).to_be_bytes());
        frame.extend_from_slice(&[0x12, 0x34, 0x40, 0, 64, 17, 0, 0]);
    }
    for host in [1, 2] {
        match address(v6, host) {
            IpAddr::V4(address) => frame.extend_from_slice(&address.octets()),
            IpAddr::V6(address) => frame.extend_from_slice(&address.octets()),
        }
    }
    frame.extend_from_slice(payload);
    if !v6 {
        offload_formats::checksum::fill_ipv4_header(&mut frame[14..]);
    }
    frame
}

fn sa(suite: EspSuite, mode: EspMode, outer_v6: bool, esn: bool, udp: bool) -> SaParams {
    let key = EspKey::new(suite, &(0..suite.key_len() as u8 + 4).collect::<Vec<u8>>()).unwrap();
    let base = SaParams::new(Direction::Transmit, 0xabcd, address(outer_v6, 1), address(outer_v6, 2), key);
    let encapsulation = udp.then_some(UdpEncapsulation { source_port: 4500, destination_port: 4500 });
    SaParams { mode, esn, encapsulation, ..base }
}

proptest! {
    #[test]
    fn encapsulated_packets_are_opened_again(
        suite in prop::sample::select(SUITES.to_vec()),
        tunnel: bool, inner_v6: bool, other_family: bool, esn: bool, udp: bool,
        class: u8,
        number in prop::sample::select(vec![1u64, 77, 0xffff_ffff]),
        payload in prop::collection::vec(any::<u8>(), 0..1400),
    ) {
        let number = if esn { number + 5 } else { number };
        let mode = if tunnel { EspMode::Tunnel } else { EspMode::Transport };
        let outer_v6 = inner_v6 ^ (tunnel && other_family);
        let sa = sa(suite, mode, outer_v6, esn, udp);
        let plain = plain_frame(inner_v6, class, &payload);
        let outer = OuterHeaders::for_packet(&sa, &plain[14..]).unwrap();
        let cipher = EspCipher::new(&sa);
        let mut frame = BytesMut::new();
        outer.wrap(&cipher, &plain, number, &mut frame);

        // The size equals the predicted size, and the largest packet that fits.
        prop_assert_eq!(frame.len() - 14, outer.wrapped_len(plain.len() - 14));
        let most = outer.plain_len(frame.len() - 14);
        prop_assert!(most >= plain.len() - 14 && outer.wrapped_len(most) <= frame.len() - 14);
        prop_assert!(outer.wrapped_len(most + 1) > frame.len() - 14);

        // Headers are parsed by an independent implementation.
        let packet = ip_packet(&frame).unwrap();
        let (protocol, text) = if outer_v6 {
            let ip = Ipv6Packet::new_checked(packet).unwrap();
            (ip.next_header(), ip.payload().to_vec())
        } else {
            let ip = Ipv4Packet::new_checked(packet).unwrap();
            prop_assert!(ip.verify_checksum());
            prop_assert_eq!(usize::from(ip.total_len()), packet.len());
            (ip.next_header(), ip.payload().to_vec())
        };
        prop_assert_eq!(protocol, if udp { IpProtocol::Udp } else { IpProtocol::IpSecEsp });
        if udp {
            let datagram = UdpPacket::new_checked(&text[..]).unwrap();
            prop_assert_eq!((datagram.dst_port(), usize::from(datagram.len())), (4500, text.len()));
            prop_assert!(datagram.verify_checksum(&address(outer_v6, 1).into(), &address(outer_v6, 2).into()));
        }
        prop_assert_eq!((frame.len() - 14 - IpView::parse(packet).unwrap().header) % 4, 0, "RFC 4303 2.4");
        if suite.encrypts() && payload.len() > 24 {
            prop_assert!(!frame.windows(16).any(|window| payload.windows(16).any(|plain| plain == window)));
        }

        // In both directions. Ethernet padding after short packets has no effect.
        frame.extend_from_slice(&[0; 7]);
        let at = EspAt::find(&frame).unwrap();
        prop_assert_eq!((at.spi, at.low, at.udp), (sa.spi, number as u32, udp));
        let trailer = cipher.open(&mut frame, &at, number).unwrap();
        let inner = unwrap(frame, &at, &trailer, &sa).unwrap();
        prop_assert_eq!(&inner[..], &plain[..]);
    }

    #[test]
    fn garbage_is_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), v6: bool, protocol: u8, cut: usize) {
        if bytes.len() > 34 {
            bytes[12..15].copy_from_slice(if v6 { &[0x86, 0xdd, 0x60] } else { &[8, 0, 0x45] });
            bytes[if v6 { 20 } else { 23 }] = if protocol > 128 { 50 } else { protocol };
            let length = (cut % bytes.len()) as u16;
            let field = if v6 { 18 } else { 16 };
            bytes[field..field + 2].copy_from_slice(&length.to_be_bytes());
        }
        if let Some(at) = EspAt::find(&bytes) {
            let sa = sa(EspSuite::Aes128Gcm, EspMode::Tunnel, v6, false, false);
            prop_assert!(EspCipher::new(&sa).open(&mut bytes, &at, u64::from(at.low)).is_err());
        }
        if let Some(packet) = ip_packet(&bytes) {
            for mode in [EspMode::Transport, EspMode::Tunnel] {
                let _any = OuterHeaders::for_packet(&sa(EspSuite::Aes128Gcm, mode, v6, false, true), packet);
            }
        }
    }
}

fn round_trip(sa: &SaParams, plain: &[u8], outer_class: Option<u8>) -> Result<BytesMut, UnwrapError> {
    let cipher = EspCipher::new(sa);
    let mut frame = BytesMut::new();
    OuterHeaders::for_packet(sa, &plain[14..]).unwrap().wrap(&cipher, plain, 1, &mut frame);
    if let Some(class) = outer_class {
        offload_formats::view::set_traffic_class(&mut frame[14..], class);
    }
    let at = EspAt::find(&frame).unwrap();
    let trailer = cipher.open(&mut frame, &at, 1).unwrap();
    unwrap(frame, &at, &trailer, sa)
}

/// RFC 6040 figure 4 completely: arriving inner header, arriving outer header, outgoing header.
#[test]
fn ecn_is_combined_by_rfc_6040() {
    // No ECN field has this value.
    const DROP: u8 = 0xff;
    let figure = [
        // outer:  Not-ECT ECT(1) ECT(0) CE
        (0, [0, 0, 0, DROP]),
        (2, [2, 1, 2, 3]),
        (1, [1, 1, 1, 3]),
        (3, [3, 3, 3, 3]),
    ];
    for v6 in [false, true] {
        let sa = sa(EspSuite::Aes128Gcm, EspMode::Tunnel, v6, false, false);
        for (inner, outgoing) in figure {
            for (outer, expected) in [0, 1, 2, 3].into_iter().zip(outgoing) {
                let plain = plain_frame(v6, 0x48 | inner, b"12345678");
                match round_trip(&sa, &plain, Some(0x10 | outer)) {
                    Err(UnwrapError::Ecn) => assert_eq!(expected, DROP, "{inner} in {outer}"),
                    Ok(frame) => {
                        let class = IpView::parse(&frame[14..]).unwrap().traffic_class;
                        assert_eq!(class, 0x48 | expected, "{inner} in {outer}: DSCP stays the inner one's");
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
}

/// Like with Linux's `noecn`, an inner packet keeps its ECN field; with `decap-dscp`, the inner packet gets the outer
/// DSCP.
#[test]
fn ecn_and_dscp_follow_the_settings_of_the_sa() {
    let tunnel = sa(EspSuite::Aes128Gcm, EspMode::Tunnel, false, false, false);
    let class = |sa: &SaParams, v6, inner, outer| {
        let frame = round_trip(sa, &plain_frame(v6, inner, b"12345678"), Some(outer)).unwrap();
        let packet = &frame[14..];
        assert!(v6 || offload_formats::checksum::is_ipv4_header_right(packet));
        IpView::parse(packet).unwrap().traffic_class
    };
    for v6 in [false, true] {
        let hides = SaParams { ecn: false, ..tunnel.clone() };
        for (inner, outer) in [(0x48, 0x13), (0x4a, 0x13), (0x4b, 0x10)] {
            assert_eq!(class(&hides, v6, inner, outer), inner, "congestion stays outside");
        }
        let uniform = SaParams { dscp_out: true, ..tunnel.clone() };
        assert_eq!(class(&uniform, v6, 0x4a, 0x13), 0x13, "both are passed on");
        assert_eq!(class(&SaParams { ecn: false, ..uniform }, v6, 0x4a, 0x13), 0x12, "only DSCP is");
    }
}

#[test]
fn outer_headers_follow_rfc_4301() {
    let outer_of = |sa: &SaParams, plain: &[u8]| {
        let mut frame = BytesMut::new();
        OuterHeaders::for_packet(sa, &plain[14..]).unwrap().wrap(&EspCipher::new(sa), plain, 7, &mut frame);
        (IpView::parse(&frame[14..]).unwrap(), frame)
    };
    let tunnel = sa(EspSuite::Aes256Gcm, EspMode::Tunnel, false, false, false);
    let plain = plain_frame(false, 0xba, b"12345678");
    let (view, frame) = outer_of(&tunnel, &plain);
    assert_eq!((view.traffic_class, view.dont_fragment), (0xba, true), "copied");
    assert_eq!(frame[18..20], [0, 7], "the identification is the number's lower half");
    let (view, _) = outer_of(&SaParams { dscp: Some(10), ecn: false, ..tunnel.clone() }, &plain);
    assert_eq!(view.traffic_class, 10 << 2, "DSCP set, ECN hidden");
    let (view, _) = outer_of(&SaParams { dont_fragment: DontFragment::Clear, ..tunnel.clone() }, &plain);
    assert!(!view.dont_fragment);
    let mut may_be_cut = plain.clone();
    may_be_cut[20] = 0;
    for (rule, expected) in [(DontFragment::Copy, false), (DontFragment::Set, true), (DontFragment::Clear, false)] {
        let (view, _) = outer_of(&SaParams { dont_fragment: rule, ..tunnel.clone() }, &may_be_cut);
        assert_eq!(view.dont_fragment, expected, "{rule:?}");
    }
    let transport = sa(EspSuite::Aes256Gcm, EspMode::Transport, false, false, false);
    let (_, frame) = outer_of(&transport, &plain);
    assert_eq!(frame[18..20], [0x12, 0x34], "the packet's own identification");
}

#[test]
fn fragments_and_dummy_packets_are_distinguished() {
    let transport = sa(EspSuite::Aes128Gcm, EspMode::Transport, false, false, false);
    let mut fragment = plain_frame(false, 0, b"12345678");
    fragment[20] |= 0x20;
    assert_eq!(OuterHeaders::for_packet(&transport, &fragment[14..]).unwrap_err(), WrapError::Fragment);
    assert_eq!(OuterHeaders::for_packet(&transport, b"no packet").unwrap_err(), WrapError::NotIp);
    let mut dummy = plain_frame(false, 0, b"12345678");
    dummy[23] = 59;
    assert_eq!(round_trip(&transport, &dummy, None).unwrap_err(), UnwrapError::Dummy);
}

/// RFC 4303 2.4: 1, 2, 3 and so on, of any length.
#[test]
fn padding_is_verified() {
    for suite in SUITES {
        let sa = sa(suite, EspMode::Tunnel, false, true, false);
        let (cipher, plain) = (EspCipher::new(&sa), plain_frame(false, 0, b"12345678"));
        let opened = |padding: &[u8]| {
            // Padding by the peer is part of the payload for a sealer that adds no padding.
            let mut frame = BytesMut::new();
            let outer = OuterHeaders::for_packet(&sa, &plain[14..]).unwrap();
            outer.write_headers(&plain, &mut frame);
            frame.extend_from_slice(&plain[14..]);
            frame.extend_from_slice(padding);
            frame.extend_from_slice(&[padding.len() as u8, 4]);
            let payload = plain.len() - 14 + padding.len() + 2;
            assert_eq!((payload + 2) % 4, 0, "none is added");
            cipher.seal(&mut frame, 34, 1, 0);
            let total = (frame.len() - 14) as u16;
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            let at = EspAt::find(&frame).unwrap();
            // The sealer's own trailer is removed by hand.
            cipher.open(&mut frame, &at, 1).unwrap();
            EspTrailer::read(&frame, &EspAt { end: at.end - 2, ..at })
        };
        let padding: Vec<u8> = (1..=254).collect();
        let right = EspTrailer { payload: 28, next_header: 4 };
        for length in [0, 4, 8, 252] {
            assert_eq!(opened(&padding[..length]), Ok(right), "{length}");
        }
        for (length, at) in [(4, 0), (4, 3), (252, 251)] {
            let mut other = padding[..length].to_vec();
            other[at] ^= 1;
            assert_eq!(opened(&other), Err(EspOpenError::Padding));
        }
    }
}
