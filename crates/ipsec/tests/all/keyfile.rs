//! Parsing of key files, and their error messages.

use ipsec::{KeyFile, KeyedDevice};
use offload_api::{
    Action, Direction, DontFragment, EspMode, EspSuite, Lifetime, Limits, OffloadKind, Policy, Prefix, Selector,
    Template, UdpEncapsulation,
};
use offload_base::Instant;
use proptest::prelude::*;
use std::time::Duration;

const KEY: &str = "0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1faabbccdd";

#[test]
fn all_statements_are_parsed() {
    // The text uses every kind of line: `ip xfrm` prefix, continuation, comment, quotes, and several statements.
    let text = format!(
        "# both ways\n\
         ip xfrm state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 0x1001 reqid 7 mode tunnel \\\n\
         \x20  replay-window 128 flag esn nopmtudisc # a comment\n\
         \x20  aead 'rfc4106(gcm(aes))' {KEY} 128 encap espinudp 4500 4501 0.0.0.0\n\
         \x20  limit packet-soft 10 limit packet-hard 20 limit byte-hard 99 limit time-soft 60\n\
         \x20  replay-oseq 5 replay-oseq-hi 1 offload packet dir out\n\
         \n\
         policy add src 10.0.0.0/24 dst 10.0.0.2 proto tcp sport 80 dport 443 dir out priority 3 \
         tmpl src 10.0.0.1 dst 10.0.0.2 proto esp reqid 7 mode tunnel\n\
         policy add src fd00::/64 dir in action block\n\
         policy add dir fwd action block\n\
         policy setdefault in block fwd block out accept\n"
    );
    let file: KeyFile = text.parse().unwrap();
    let [sa] = &file.sas().collect::<Vec<_>>()[..] else { panic!("one SA") };
    assert_eq!((sa.spi, sa.reqid, sa.mode, sa.replay_window, sa.esn), (0x1001, 7, EspMode::Tunnel, 128, true));
    assert_eq!((sa.direction, sa.offload, sa.last_number), (Direction::Transmit, OffloadKind::Packet, 0x1_0000_0005));
    assert_eq!(sa.dont_fragment, DontFragment::Clear);
    assert_eq!((sa.key.suite(), sa.key.salt()), (EspSuite::Aes256Gcm, &[0xaa, 0xbb, 0xcc, 0xdd]));
    assert_eq!(sa.encapsulation, Some(UdpEncapsulation { source_port: 4500, destination_port: 4501 }));
    let soft = Limits { packets: Some(10), time: Some(Duration::from_secs(60)), ..Limits::default() };
    let hard = Limits { packets: Some(20), bytes: Some(99), ..Limits::default() };
    assert_eq!(sa.lifetime, Lifetime { soft, hard });
    let address = |text: &str| text.parse().unwrap();
    let tunnel = Template::tunnel(address("10.0.0.1"), address("10.0.0.2"), 7);
    let out = Policy {
        direction: Direction::Transmit,
        selector: Selector {
            source: Prefix::new(address("10.0.0.0"), 24),
            destination: Some(Prefix::host(address("10.0.0.2"))),
            protocol: Some(6),
            source_port: Some(80),
            destination_port: Some(443),
        },
        priority: 3,
        action: Action::Protect(tunnel),
    };
    let block = Policy {
        direction: Direction::Receive,
        selector: Selector { source: Prefix::new(address("fd00::"), 64), ..Selector::ANY },
        priority: 0,
        action: Action::Discard,
    };
    assert_eq!(file.policies().copied().collect::<Vec<_>>(), [out, block]);
    // The other end's file has the opposite directions.
    let mirrored = file.mirrored();
    assert_eq!(mirrored.policies().next().unwrap().direction, Direction::Receive);
    assert_eq!(mirrored.sas().next().unwrap().direction, Direction::Receive);
}

#[test]
fn file_sets_the_headers_of_tunnels() {
    let sa = |rest: &str| {
        let text = format!(
            "state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 256 mode tunnel aead rfc4106(gcm(aes)) {KEY} 128 {rest}"
        );
        let file: KeyFile = text.parse().unwrap();
        let sa = file.sas().next().unwrap();
        (sa.dscp, sa.dscp_out, sa.ecn, sa.dont_fragment)
    };
    assert_eq!(sa(""), (None, false, true, DontFragment::Copy));
    assert_eq!(sa("dscp 0x2e df set"), (Some(46), false, true, DontFragment::Set));
    assert_eq!(sa("dscp copy df copy flag decap-dscp"), (None, true, true, DontFragment::Copy));
    assert_eq!(sa("extra-flag dont-encap-dscp df clear flag noecn"), (Some(0), false, false, DontFragment::Clear));
}

#[test]
fn statements_apply_in_order() {
    let (device, driver) = nic_sim::nic(nic_sim::NicConfig::default());
    let mut secure = ipsec::SecureDevice::new(Box::new(driver));
    // Only one end is local, so SAs without `dir` get their direction from their source.
    let local = ["10.0.0.1".parse().unwrap()];
    let mut apply = |text: String| {
        let file: KeyFile = text.parse().unwrap();
        file.apply(Instant::ZERO, secure.keying().unwrap(), &local).map_err(|error| error.to_string())
    };
    let id = "src 10.0.0.1 dst 10.0.0.2 proto esp spi 256";
    let gcm = |salt: &str| format!("aead rfc4106(gcm(aes)) {}{salt} 128", &KEY[..66]);
    let rekey = |salt| format!("state rekey {id} new-spi 257 {}", gcm(salt));
    let first = apply(format!(
        "state add {id} reqid 7 mode tunnel flag esn {}\n\
         policy add dir out tmpl src 10.0.0.1 dst 10.0.0.2 proto esp reqid 7 mode tunnel\n\
         policy setdefault out accept",
        gcm("00000001")
    ));
    assert_eq!(first.unwrap().iter().map(|sa| sa.spi).collect::<Vec<_>>(), [256]);
    assert_eq!(
        // A successor under the same key would repeat nonces.
        apply(rekey("00000001")).unwrap_err(),
        "line 1: this key and salt were used before: an SA needs some that no other had"
    );
    let second = apply(rekey("00000002")).unwrap();
    assert_eq!(second[0].spi, 257);
    assert_eq!(apply(rekey("00000003")).unwrap_err(), "line 1: this SA or policy exists already: delete it first");
    assert_eq!(apply(format!("state update {id} limit packet-hard 9")).unwrap(), []);
    assert_eq!(
        apply(format!("\nstate delete {id}\nstate delete {id}")).unwrap_err(),
        "line 3: there is no SA or policy with these identifiers"
    );
    assert_eq!(apply(rekey("00000004")).unwrap_err(), "line 1: there is no SA or policy with these identifiers");
    let elsewhere = "state delete src 10.0.0.8 dst 10.0.0.9 proto esp spi 256".into();
    assert_eq!(apply(elsewhere).unwrap_err(), "line 1: neither address of the SA is an address of this host");
    apply("policy update dir out action block\npolicy update dir out priority 3 action allow".into()).unwrap();
    apply("policy delete dir out priority 3".into()).unwrap();
    assert_eq!(
        apply("policy delete dir out priority 3".into()).unwrap_err(),
        "line 1: there is no SA or policy with these identifiers"
    );

    let [left] = &secure.sad().ids().collect::<Vec<_>>()[..] else { panic!("one SA") };
    let sa = secure.sad().find(*left).unwrap();
    let said = (sa.params.spi, sa.params.reqid, sa.params.mode, sa.params.esn, sa.number());
    assert_eq!(said, (257, 7, EspMode::Tunnel, true, 0), "the successor of the first");
    let packet = offload_api::ipsec::Packet {
        source: local[0],
        destination: "10.0.0.2".parse().unwrap(),
        protocol: 17,
        ports: None,
    };
    assert_eq!(secure.spd(Direction::Transmit).action(&packet), Some(Action::Discard), "in place of the first");
    drop(device);
}

#[test]
fn errors_name_their_line() {
    let state = |rest: &str| format!("state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 256 {rest}");
    let change = |what: &str, rest: &str| format!("state {what} src 10.0.0.1 dst 10.0.0.2 proto esp spi 256 {rest}");
    let gcm = format!("aead rfc4106(gcm(aes)) {KEY} 128");
    // Each text has one error, and the message names its line, its word and the expected kind of word.
    let cases = [
        ("hello".into(), "line 1: the statement ends where add, update, rekey, delete or setdefault should be"),
        ("hello add".into(), "line 1: `hello` is not state or policy"),
        ("\n\nstate flush".into(), "line 3: `flush` is not known here"),
        (state(""), "line 1: the statement ends where aead should be"),
        (state("spi 300"), "line 1: `spi` is there twice"),
        (state("\n\n mode sideways"), "line 3: `sideways` is not transport or tunnel"),
        (
            state("aead rfc4106(gcm(aes)) 0x0011 128"),
            "line 1: the key has 2 bytes, salt included, where the algorithm takes 20 or 36",
        ),
        (
            state("aead rfc4106(gcm(aes)) 0x001 128"),
            "line 1: the value here is not a key in hexadecimal digits, two for each byte behind 0x",
        ),
        (state(&format!("aead rfc4106(gcm(aes)) {KEY} 96")), "line 1: the value here is not 128, the bits of the ICV"),
        (state("aead rfc4309(ccm(aes)) 0x00 128"), "line 1: `rfc4309(ccm(aes))` is not known here"),
        (state("aead 'rfc4106(gcm(aes)) 0x00 128"), "line 1: a quotation mark is not closed"),
        (
            state(&format!("{gcm} flag wildrecv")),
            "line 1: `wildrecv` is not a flag that is known here: esn, noecn, decap-dscp, nopmtudisc, af-unspec",
        ),
        (state(&format!("{gcm} replay-seq-hi 1")), "line 1: the upper half of a sequence number without `flag esn`"),
        (state(&format!("{gcm} encap espintcp 1 1 0.0.0.0")), "line 1: `espintcp` is not espinudp"),
        (state(&format!("{gcm} limit time-use-soft 1")), "line 1: `time-use-soft` is not known here"),
        ("state add src 10.0.0.1/8".into(), "line 1: `10.0.0.1/8` is not an address"),
        (
            "policy add src 10.0.0.0/33 dir out".into(),
            "line 1: `10.0.0.0/33` is not an address, or one with a prefix length",
        ),
        ("policy add src 10.0.0.0/8 dst fd00::/8 dir out".into(), "line 1: addresses of two families"),
        ("policy add src 10.0.0.0/8".into(), "line 1: the statement ends where dir should be"),
        ("policy add dir out tmpl proto esp mode tunnel".into(), "line 1: a tunnel without both of its ends"),
        ("policy add dir out tmpl mode transport".into(), "line 1: the statement ends where proto esp should be"),
        ("policy add dir out tmpl proto esp level use".into(), "line 1: `level` is not known here"),
        (state(&format!("{gcm} dscp 64")), "line 1: `64` is not copy, or a number below 64"),
        (state(&format!("{gcm} df maybe")), "line 1: `maybe` is not copy, set or clear"),
        (
            state(&format!("{gcm} extra-flag oseq-may-wrap")),
            "line 1: `oseq-may-wrap` is not an extra-flag that is known here; there is dont-encap-dscp",
        ),
        (change("update", ""), "line 1: the statement ends where limit should be"),
        (change("update", "reqid 4"), "line 1: `reqid` is not known here"),
        (change("update", &gcm), "line 1: `aead` is not known here"),
        (change("rekey", &gcm), "line 1: the statement ends where new-spi should be"),
        (change("rekey", "new-spi 257"), "line 1: the statement ends where aead should be"),
        (change("delete", &gcm), "line 1: `aead` is not known here"),
        ("state delete src 10.0.0.1 dst 10.0.0.2 proto esp".into(), "line 1: the statement ends where spi should be"),
        ("policy delete dir out action block".into(), "line 1: `action` is not known here"),
        ("policy add dir out action block action allow".into(), "line 1: `action` is there twice"),
    ];
    for (text, expected) in cases {
        assert_eq!(text.parse::<KeyFile>().expect_err(&text).to_string(), expected, "{text}");
    }
}

#[test]
fn error_never_contains_a_key() {
    let digits = &KEY[2..];
    let state = |rest: String| format!("state add src 10.0.0.1 dst 10.0.0.2 proto esp spi 256 {rest}");
    // Keys in wrong places: too long, without prefix, split by a blank, or in place of another word.
    let texts = [
        state(format!("aead rfc4106(gcm(aes)) {KEY}0 128")),
        state(format!("aead rfc4106(gcm(aes)) {digits} 128")),
        state(format!("aead rfc4106(gcm(aes)) '{digits}' 128")),
        state(format!("aead rfc4106(gcm(aes)) {KEY}zz 128")),
        state(format!("aead rfc4106(gcm(aes)) {} {} 128", &KEY[..42], &digits[40..])),
        state(format!("aead rfc4106(gcm(aes)) {} {} 128", &KEY[..42], &digits[40..48])),
        state(format!("aead rfc4106(gcm(aes)) {KEY} {KEY}")),
        state(format!("aead {KEY} 128")),
        state(format!("{KEY} aead")),
        state(format!("mode {KEY}")),
        state(format!("aead rfc4309(ccm(aes)) {KEY} 128")),
        format!("{KEY} add"),
        format!("state {KEY}"),
        format!("ip {KEY}"),
        format!("policy add dir out tmpl proto esp mode {KEY}"),
        format!("policy setdefault {KEY} accept"),
    ];
    for text in texts {
        let error = text.parse::<KeyFile>().expect_err(&text);
        for said in [error.to_string(), format!("{error:?}")] {
            // Eight digits of the key in a row count as shown.
            let shows = digits.as_bytes().windows(8).any(|part| said.as_bytes().windows(8).any(|other| part == other));
            assert!(!shows, "{said}");
        }
    }
}

#[test]
fn error_is_one_line_without_control_characters() {
    let said = |text: &str| text.parse::<KeyFile>().unwrap_err().to_string();
    assert_eq!(said("\u{1b}[2J\u{7} add"), "line 1: `\\u{1b}[2J\\u{7}` is not state or policy");
    assert_eq!(said("\u{feff}state add"), "line 1: `\\u{feff}state` is not state or policy");
    assert_eq!(
        said(&("x".repeat(1_000_000) + " add")),
        format!("line 1: `{}...` is not state or policy", "x".repeat(64))
    );
    assert_eq!(said("state 'it\"s'"), "line 1: `it\"s` is not known here");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(state|policy|add|update|rekey|delete|new-spi|src|dst|tmpl|proto esp|spi|0x[0-9a-f]{0,80}|10\\.0\\.0\\.1|dir out|'|[ \n#\\\\])*") {
        let _ = text.parse::<KeyFile>();
    }

    #[test]
    fn any_characters_are_read_or_refused(text in any::<String>()) {
        let _ = text.parse::<KeyFile>();
    }
}
