//! Tests of the protocol of agent and mirror, split at arbitrary places.

use linux_mirror::sa::{
    FrameDecoder, FrameError, KernelSaId, KernelSaUse, MAX_FRAME_BYTES, Message, MirroredPolicy, MirroredSa, SaChange,
    SaReport, UnsupportedSa, encode,
};
use offload_api::ipsec::Limits;
use offload_api::{
    Action, Direction, DontFragment, EspKey, EspMode, EspSuite, Lifetime, Prefix, SaParams, Selector, Template,
    UdpEncapsulation,
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::Duration;

proptest! {
    #[test]
    fn messages_arrive_in_pieces_of_any_size(
        messages in vec(message(), 0..8),
        junk in vec(any::<u8>(), 0..40),
        cuts in vec(1..200usize, 1..50),
    ) {
        // The first message's END ends the junk.
        let mut stream = junk;
        messages.iter().for_each(|message| stream.extend(encode(message).iter()));
        let (mut decoder, mut heard, mut rest) = (FrameDecoder::new(), Vec::new(), &stream[..]);
        let mut cuts = cuts.iter().cycle();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
            decoder.decode(piece, |message| heard.push(message));
            rest = after;
        }
        let said: Vec<_> = messages.iter().map(shown).collect();
        let heard: Vec<_> = heard.into_iter().flatten().map(|message| shown(&message)).collect();
        // The junk may contain valid messages.
        prop_assert!(heard.ends_with(&said), "{said:?} was heard as {heard:?}");
    }

    #[test]
    fn truncated_message_is_an_error(message in message(), at in any::<prop::sample::Index>()) {
        let whole = encode(&message);
        let mut cut = whole[..1 + at.index(whole.len() - 2)].to_vec();
        cut.push(END);
        let mut heard = Vec::new();
        FrameDecoder::new().decode(&cut, |message| heard.push(message));
        prop_assert!(heard.iter().all(Result::is_err), "{message:?} is understood as {heard:?}");
    }

    #[test]
    fn debug_output_contains_no_key(message in message()) {
        if let Message::Change(SaChange::Sa(sa)) = &message {
            let said = format!("{message:?}");
            let key = format!("{:?}", sa.params.key.key());
            prop_assert!(said.contains("redacted") && !said.contains(&key[1..key.len() - 1]));
        }
    }
}

#[test]
fn longest_message_fits() {
    let key = EspKey::new(EspSuite::Aes256Gcm, &[0xc0; 36]).unwrap();
    let address: IpAddr = [0xc0c0; 8].into();
    let limits = Limits { bytes: Some(u64::MAX), packets: Some(u64::MAX), time: Some(Duration::MAX) };
    let params = SaParams {
        encapsulation: Some(UdpEncapsulation { source_port: 0xc0c0, destination_port: 0xc0c0 }),
        keep_alive: Some(Duration::MAX),
        lifetime: Lifetime { soft: limits, hard: limits },
        dscp: Some(63),
        ..SaParams::new(Direction::Transmit, u32::MAX, address, address, key)
    };
    let used = KernelSaUse { bytes: u64::MAX, packets: u64::MAX };
    let sa = MirroredSa { params, direction: Some(Direction::Receive), sent: u64::MAX, received: u64::MAX, used };
    let bytes = encode(&Message::Change(SaChange::Sa(Box::new(sa))));
    assert!(bytes.len() < MAX_FRAME_BYTES, "{} bytes, of which some are escaped", bytes.len());
    // A long name is cut, so that its message still fits.
    let name = "n".repeat(1000);
    let named = KernelSaId { source: address, destination: address, spi: 1 };
    let said = Message::Change(SaChange::SaUnsupported(named, UnsupportedSa::Algorithm(name)));
    let mut heard = Vec::new();
    FrameDecoder::new().decode(&encode(&said), |message| heard.push(message));
    assert!(
        matches!(&heard[..], [Ok(Message::Change(SaChange::SaUnsupported(_, UnsupportedSa::Algorithm(name))))] if name.len() == 64)
    );
}

#[test]
fn malformed_frames_have_distinct_errors() {
    let said = |bytes: &[u8]| {
        let mut errors = Vec::new();
        FrameDecoder::new().decode(bytes, |message| errors.extend(message.err()));
        errors
    };
    assert_eq!(said(&[END, 0, END]), [FrameError::Kind(0)]);
    assert_eq!(said(&[END, 1, 0, END]), [FrameError::Length]);
    assert_eq!(said(&[END, 1, 0, 1, 1, END]), [FrameError::Length]);
    assert_eq!(said(&[END, 12, 2, 0, END]), [FrameError::Value("a flag")]);
    assert_eq!(said(&[END, 1, 0xdb, 1, END]), [FrameError::Escape]);
    assert_eq!(said(&[END, 1, 0, 1, 0xdb, END]), [FrameError::Escape]);
    assert_eq!(said(&[&[1; MAX_FRAME_BYTES + 1][..], &[END, END, 9]].concat()), [FrameError::TooLong]);
    // Terminals obey escape characters, so a name may not contain one.
    let named = [vec![END, 6], [4, 10, 0, 0, 1, 4, 10, 0, 0, 2, 0, 0, 0, 9, 1, 1, 0x1b].to_vec(), vec![END]].concat();
    assert_eq!(said(&named), [FrameError::Value("a text")]);
}

/// Returns a message's debug text, with its key.
fn shown(message: &Message) -> String {
    let key = match message {
        Message::Change(SaChange::Sa(sa)) => format!("{:?} {:?}", sa.params.key.key(), sa.params.key.salt()),
        _ => String::new(),
    };
    format!("{message:?} {key}")
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        any::<u16>().prop_map(Message::Hello),
        any::<u16>().prop_map(Message::Ask),
        Just(Message::Change(SaChange::SnapshotBegins)),
        Just(Message::Change(SaChange::SnapshotEnds)),
        Just(Message::Change(SaChange::AllSasGone)),
        Just(Message::Change(SaChange::AllPoliciesGone)),
        (any::<bool>(), any::<bool>())
            .prop_map(|(receive, transmit)| Message::Change(SaChange::Defaults { receive, transmit })),
        sa().prop_map(|sa| Message::Change(SaChange::Sa(Box::new(sa)))),
        name().prop_map(|name| Message::Change(SaChange::SaGone(name))),
        (name(), unsupported()).prop_map(|(name, why)| Message::Change(SaChange::SaUnsupported(name, why))),
        policy().prop_map(|policy| Message::Change(SaChange::Policy(policy))),
        any::<u32>().prop_map(|index| Message::Change(SaChange::PolicyGone(index))),
        (name(), used()).prop_map(|(name, used)| Message::Report(SaReport::Used(name, used))),
        (name(), any::<bool>()).prop_map(|(name, hard)| Message::Report(SaReport::Expired(name, hard))),
        any::<u32>().prop_map(Message::Sync),
        any::<u32>().prop_map(Message::Synced),
    ]
}

fn name() -> impl Strategy<Value = KernelSaId> {
    (any::<IpAddr>(), any::<IpAddr>(), any::<u32>()).prop_map(|(source, destination, spi)| KernelSaId {
        source,
        destination,
        spi,
    })
}

fn used() -> impl Strategy<Value = KernelSaUse> {
    (any::<u64>(), any::<u64>()).prop_map(|(bytes, packets)| KernelSaUse { bytes, packets })
}

fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![Just(Direction::Transmit), Just(Direction::Receive)]
}

fn mode() -> impl Strategy<Value = EspMode> {
    prop_oneof![Just(EspMode::Transport), Just(EspMode::Tunnel)]
}

fn unsupported() -> impl Strategy<Value = UnsupportedSa> {
    prop_oneof![
        any::<u8>().prop_map(UnsupportedSa::Protocol),
        "[!-~]{0,64}".prop_map(UnsupportedSa::Algorithm),
        any::<u8>().prop_map(UnsupportedSa::Mode),
        Just(UnsupportedSa::Mark),
        Just(UnsupportedSa::Selector),
        Just(UnsupportedSa::SaSelector),
        any::<u32>().prop_map(UnsupportedSa::Flags),
        any::<u16>().prop_map(UnsupportedSa::Encapsulation),
        any::<u16>().prop_map(UnsupportedSa::Attribute),
        Just(UnsupportedSa::Templates),
        Just(UnsupportedSa::TunnelEnds),
        any::<u8>().prop_map(UnsupportedSa::PolicyType),
    ]
}

fn lifetime() -> impl Strategy<Value = Lifetime> {
    let limits = || {
        (of(any::<u64>()), of(any::<u64>()), of(any::<u64>().prop_map(Duration::from_secs)))
            .prop_map(|(bytes, packets, time)| Limits { bytes, packets, time })
    };
    (limits(), limits()).prop_map(|(soft, hard)| Lifetime { soft, hard })
}

fn key() -> impl Strategy<Value = EspKey> {
    let suite = prop_oneof![
        Just(EspSuite::Aes128Gcm),
        Just(EspSuite::Aes256Gcm),
        Just(EspSuite::ChaCha20Poly1305),
        Just(EspSuite::Aes128Gmac),
        Just(EspSuite::Aes256Gmac),
    ];
    (suite, any::<[u8; 32]>(), any::<[u8; 4]>())
        .prop_map(|(suite, key, salt)| EspKey::new(suite, &[&key[..suite.key_len()], &salt].concat()).unwrap())
}

fn sa() -> impl Strategy<Value = MirroredSa> {
    // proptest's tuples are limited, so the fields are grouped.
    let header = (
        prop_oneof![Just(DontFragment::Copy), Just(DontFragment::Set), Just(DontFragment::Clear)],
        of(0..64u8),
        any::<[bool; 3]>(),
        any::<[u32; 2]>(),
    );
    let ports = of(any::<[u16; 2]>());
    let keep_alive = of(any::<u32>().prop_map(|seconds| Duration::from_secs(seconds.into())));
    let state = (of(direction()), any::<[u64; 2]>(), used());
    (name(), key(), mode(), lifetime(), ports, keep_alive, header, state).prop_map(
        |(name, key, mode, lifetime, ports, keep_alive, header, (direction, [sent, received], used))| {
            let (dont_fragment, dscp, [esn, dscp_out, ecn], [reqid, replay_window]) = header;
            let encapsulation =
                ports.map(|[source_port, destination_port]| UdpEncapsulation { source_port, destination_port });
            let plain =
                SaParams::new(direction.unwrap_or(Direction::Transmit), name.spi, name.source, name.destination, key);
            let params = SaParams {
                mode,
                reqid,
                esn,
                replay_window,
                encapsulation,
                keep_alive,
                lifetime,
                dont_fragment,
                dscp,
                dscp_out,
                ecn,
                ..plain
            };
            MirroredSa { params, direction, sent, received, used }
        },
    )
}

fn policy() -> impl Strategy<Value = MirroredPolicy> {
    let prefix = || of((any::<IpAddr>(), 0..=32u8).prop_map(|(address, bits)| Prefix::new(address, bits).unwrap()));
    let selector = (prefix(), prefix(), of(any::<u8>()), of(any::<u16>()), of(any::<u16>())).prop_map(
        |(source, destination, protocol, source_port, destination_port)| Selector {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
        },
    );
    let template = (mode(), of(any::<IpAddr>()), of(any::<IpAddr>()), any::<u32>())
        .prop_map(|(mode, source, destination, reqid)| Template { mode, source, destination, reqid });
    let action = prop_oneof![
        Just(Ok(Action::Discard)),
        Just(Ok(Action::Bypass)),
        template.prop_map(|template| Ok(Action::Protect(template))),
        unsupported().prop_map(Err),
    ];
    (any::<u32>(), direction(), selector, any::<u32>(), action).prop_map(
        |(index, direction, selector, priority, action)| MirroredPolicy {
            index,
            direction,
            selector,
            priority,
            action,
        },
    )
}

const END: u8 = 0xc0;
