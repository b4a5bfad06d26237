//! Tests of parsing a kernel's filter messages.

use linux_mirror::KernelError;
use linux_mirror::netlink::message;
use linux_mirror::tc::{FilterChange, FilterLine, FilterWatcher, FlowerKey, UnsupportedFilter};

/// Builds an attribute.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [&((4 + value.len()) as u16).to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn number(value: u32) -> [u8; 4] {
    value.to_ne_bytes()
}

fn link(index: u32, name: &str) -> Vec<u8> {
    let info = [&[0, 0, 1, 0][..], &number(index), &[0; 8]].concat();
    message(16, 2, 1, &info, &[(3, &[name.as_bytes(), &[0]].concat())])
}

fn done(sequence: u32, errno: i32) -> Vec<u8> {
    message(3, 2, sequence, &(-errno).to_ne_bytes(), &[])
}

/// Builds a message about a filter of pf0vf0 with protocol IP, priority 2 and handle 1.
fn filter(kind: u16, sequence: u32, classifier: &str, options: &[u8]) -> Vec<u8> {
    filter_of(8, kind, sequence, classifier, options)
}

fn filter_of(device: u32, kind: u16, sequence: u32, classifier: &str, options: &[u8]) -> Vec<u8> {
    let info = 2 << 16 | u32::from(0x0800u16.to_be());
    let tcmsg = [&[0; 4][..], &number(device), &number(1), &number(0xffff_fff2), &number(info)].concat();
    message(kind, 2, sequence, &tcmsg, &[(1, &[classifier.as_bytes(), &[0]].concat()), (2, options), (11, &number(0))])
}

/// Builds `struct tc_gen` with a control action.
fn general(control: u32) -> Vec<u8> {
    [number(1), number(0), number(control), number(1), number(1)].concat()
}

fn action(place: u16, kind: &str, options: &[u8]) -> Vec<u8> {
    attribute(place, &[attribute(1, &[kind.as_bytes(), &[0]].concat()), attribute(2, options)].concat())
}

fn redirect(place: u16, to: u32) -> Vec<u8> {
    action(place, "mirred", &attribute(2, &[&general(4)[..], &number(1), &number(to)].concat()))
}

/// Returns a watcher that knows the devices, and has requested the filters of the last one.
fn watcher() -> FilterWatcher {
    let mut watcher = FilterWatcher::new();
    watcher.poll_request().expect("devices");
    let links = [link(7, "p0"), link(8, "pf0vf0"), link(9, "eth0"), done(1, 0)].concat();
    watcher.handle_datagram(&links, |change| assert_eq!(change, FilterChange::Begins)).unwrap();
    watcher.poll_request().expect("filters");
    watcher
}

/// Returns the changes of a message as text.
fn heard(watcher: &mut FilterWatcher, datagram: &[u8]) -> Vec<(String, Option<UnsupportedFilter>)> {
    let mut heard = Vec::new();
    watcher
        .handle_datagram(datagram, |change| {
            heard.push(match change {
                FilterChange::There(rule, why) => (FilterLine::There(rule).to_string(), why),
                FilterChange::Gone(selection) => (FilterLine::Gone(selection).to_string(), None),
                other => (format!("{other:?}"), None),
            });
        })
        .unwrap();
    heard
}

#[test]
fn filter_is_parsed_with_keys_and_actions() {
    // Two words of pedit: a lower hop limit, and another address.
    let words = [
        [0xffff_ff00u32.to_le_bytes(), 255u32.to_le_bytes(), number(8), [0; 4], [0; 4], [0; 4]].concat(),
        [[0; 4], [10, 0, 0, 9], number(16), [0; 4], [0; 4], [0; 4]].concat(),
    ];
    let kind = |operation: u16| {
        let of = [attribute(1, &2u16.to_ne_bytes()), attribute(2, &operation.to_ne_bytes())].concat();
        attribute(6, &of)
    };
    let words = [&general(3)[..], &[2, 0, 0, 0], &words.concat()].concat();
    let edits = [attribute(4, &words), attribute(5, &[kind(1), kind(0)].concat())].concat();
    let actions = [action(1, "pedit", &edits), redirect(2, 7)].concat();
    let keys = [
        attribute(4, &[2, 0, 0, 0, 1, 1]),
        attribute(5, &[0xff; 6]),
        attribute(8, &0x0800u16.to_be_bytes()),
        attribute(9, &[6]),
        attribute(12, &[10, 0, 0, 0]),
        attribute(13, &[255, 0, 0, 0]),
        attribute(19, &80u16.to_be_bytes()),
        attribute(36, &[0xff; 2]),
        attribute(22, &number(8)),
        attribute(3, &actions),
    ];
    let mut watcher = watcher();
    let expected = "tc filter replace dev pf0vf0 ingress protocol ip prio 2 handle 1 flower dst_mac 02:00:00:00:01:01 ip_proto tcp \
                    dst_ip 10.0.0.0/8 dst_port 80 action pedit ex munge ip ttl add 255 munge ip dst set 10.0.0.9 pipe \
                    action mirred egress redirect dev p0";
    assert_eq!(heard(&mut watcher, &filter(44, 2, "flower", &keys.concat())), [(expected.into(), None)]);
    let gone = heard(&mut watcher, &filter(45, 0, "flower", &[]));
    assert_eq!(gone, [("tc filter del dev pf0vf0 ingress prio 2 handle 1 flower".into(), None)]);
    assert_eq!(watcher.malformed(), 0);
}

/// As built by Open vSwitch 3.5: traffic classes, tunnel header flags, and outer packets that may be fragmented.
#[test]
fn open_vswitch_filters_are_parsed() {
    let mut watcher = watcher();
    heard(&mut watcher, &link(10, "vxlan_sys_4789"));
    let out = |flags: u32, mask: u32| {
        let keys =
            [attribute(26, &100u32.to_be_bytes()), attribute(80, &[0]), attribute(81, &[3]), flags_of(flags, mask)];
        filter_of(10, 44, 2, "flower", &[keys.concat(), attribute(3, &redirect(1, 8))].concat())
    };
    let unwraps = |words: &str| {
        format!(
            "tc filter replace dev vxlan0 ingress protocol ip prio 2 handle 1 flower enc_key_id 100 enc_tos 0x0/0x3{words} \
             action mirred egress redirect dev pf0vf0"
        )
    };
    // Neither a checksum nor "don't fragment"; then only a checksum.
    assert_eq!(heard(&mut watcher, &out(0, 12)), [(unwraps(" enc_flags notuncsum"), None)]);
    assert_eq!(heard(&mut watcher, &out(4, 4)), [(unwraps(" enc_flags tuncsum"), None)]);
    assert_eq!(heard(&mut watcher, &out(0, 8)), [(unwraps(""), None)]);
    // No control packets, or only control packets; critical options are never set.
    assert_eq!(heard(&mut watcher, &out(0, 60)), [(unwraps(" enc_flags notuncsum/notunoam"), None)]);
    assert_eq!(heard(&mut watcher, &out(16, 16)), [(unwraps(" enc_flags tunoam"), None)]);
    // Linux never sets this flag for a received packet.
    let why = heard(&mut watcher, &out(8, 8)).pop().and_then(|(_, why)| why);
    assert_eq!(why, Some(UnsupportedFilter::Mask(FlowerKey(111))));
    let set = [
        attribute(2, &[&general(3)[..], &number(1)].concat()),
        attribute(3, &[10, 77, 0, 1]),
        attribute(4, &[10, 77, 0, 2]),
    ];
    let more = [
        attribute(7, &100u32.to_be_bytes()),
        attribute(9, &4789u16.to_be_bytes()),
        attribute(10, &[1]),
        attribute(13, &[64]),
    ];
    let set = [set.concat(), more.concat(), attribute(14, &[])].concat();
    let keys =
        [attribute(73, &[0]), attribute(74, &[3]), attribute(47, &[0; 4]), attribute(48, &1u32.to_be_bytes())].concat();
    let actions = [action(1, "tunnel_key", &set), redirect(2, 10)].concat();
    let said = heard(&mut watcher, &filter(44, 2, "flower", &[keys, attribute(3, &actions)].concat()));
    let wraps = "tc filter replace dev pf0vf0 ingress protocol ip prio 2 handle 1 flower ip_tos 0x0/0x3 ip_flags nofrag \
                 action tunnel_key set src_ip 10.77.0.1 dst_ip 10.77.0.2 id 100 dst_port 4789 ttl 64 nocsum nofrag \
                 action mirred egress redirect dev vxlan0";
    assert_eq!(said, [(wraps.into(), None)]);
    // Each line parses to an equal line.
    for line in [unwraps(" enc_flags notuncsum"), wraps.into()] {
        let mut lines = Vec::new();
        linux_mirror::tc::LineReader::new()
            .read(format!("{line}\n").as_bytes(), |said| lines.push(said.unwrap().to_string()));
        assert_eq!(lines, [line]);
    }
}

/// Builds `TCA_FLOWER_KEY_ENC_FLAGS` and its mask.
fn flags_of(flags: u32, mask: u32) -> Vec<u8> {
    [attribute(110, &flags.to_be_bytes()), attribute(111, &mask.to_be_bytes())].concat()
}

/// The filter's frames, and perhaps more, are left to the kernel, so that no later filter takes them.
#[test]
fn unsupported_filter_is_left_to_the_kernel() {
    let keys = |more: Vec<u8>, actions: Vec<u8>| [attribute(9, &[17]), more, attribute(3, &actions)].concat();
    let pass = "tc filter replace dev pf0vf0 ingress protocol ip prio 2 handle 1 flower ip_proto udp action pass";
    // A redirection that continues with the next action, which the switch cannot do.
    let continues = action(1, "mirred", &attribute(2, &[&general(3)[..], &number(1), &number(7)].concat()));
    for (options, why) in [
        (
            keys([attribute(75, &[64]), attribute(76, &[0xff])].concat(), redirect(1, 7)),
            UnsupportedFilter::Key(FlowerKey(75)),
        ),
        (keys(attribute(22, &number(1)), redirect(1, 7)), UnsupportedFilter::SkipHardware),
        (
            keys([attribute(12, &[10; 4]), attribute(13, &[255, 0, 255, 0])].concat(), redirect(1, 7)),
            UnsupportedFilter::Mask(FlowerKey(13)),
        ),
        (
            keys([attribute(20, &[0, 7]), attribute(37, &[0xff, 0xf0])].concat(), redirect(1, 7)),
            UnsupportedFilter::Mask(FlowerKey(37)),
        ),
        (keys(Vec::new(), redirect(1, 9)), UnsupportedFilter::Device(9)),
        (keys(Vec::new(), action(1, "ct", &attribute(2, &general(3)))), UnsupportedFilter::Action("ct".into())),
        (keys(Vec::new(), continues), UnsupportedFilter::Control("mirred".into())),
    ] {
        assert_eq!(heard(&mut watcher(), &filter(44, 2, "flower", &options)), [(pass.into(), Some(why))]);
    }
    let all = "tc filter replace dev pf0vf0 ingress protocol ip prio 2 handle 1 flower action pass";
    let why = UnsupportedFilter::Classifier("u32".into());
    assert_eq!(heard(&mut watcher(), &filter(44, 2, "u32", &[])), [(all.into(), Some(why))]);
}

#[test]
fn snapshot_is_repeated_after_possible_losses() {
    let requests = |watcher: &mut FilterWatcher| core::iter::from_fn(|| watcher.poll_request()).count();
    for message in [message(37, 0, 0, &[0; 20], &[]), message(101, 0, 0, &[0; 20], &[]), link(10, "pf0vf1")] {
        let mut watcher = watcher();
        // A notice has sequence number 0. The answers to both queries end the snapshot.
        let mut notice = message.clone();
        notice[8..12].fill(0);
        heard(&mut watcher, &notice);
        heard(&mut watcher, &done(2, 0));
        assert_eq!(requests(&mut watcher), 1, "the filters of the other device");
        // A device deleted meanwhile has no filters.
        let ended = heard(&mut watcher, &done(3, 19));
        assert_eq!(ended, [("Ends".into(), None)]);
        assert_eq!(requests(&mut watcher), 1, "the devices are requested again");
    }
    let mut refused = FilterWatcher::new();
    refused.poll_request();
    assert_eq!(refused.handle_datagram(&done(1, 1), |_| ()), Err(KernelError::Filters { errno: 1 }));
}
