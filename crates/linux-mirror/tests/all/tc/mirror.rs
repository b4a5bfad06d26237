//! Tests of the mirror of filters: lines of an agent, and the resulting rules.

use linux_mirror::tc::{FilterMirror, FilterRefusal, LineError};

const HELLO: &str = "tc-mirror 1\nbegin\n";

fn rule(device: &str, handle: u32, words: &str) -> String {
    format!("tc filter replace dev {device} ingress protocol ip prio 1 handle {handle} flower {words}\n")
}

/// Returns the matches and actions of the rules, in order.
fn actions(mirror: &mut FilterMirror) -> Vec<String> {
    let rules = mirror.poll_rules().expect("the rules must have changed");
    rules.iter().map(|rule| rule.to_string().split(" flower ").nth(1).unwrap().to_owned()).collect()
}

#[test]
fn snapshot_removes_missing_and_keeps_equal_filters() {
    let mut mirror = FilterMirror::new();
    let (one, other) = (rule("p0", 1, "ip_proto tcp action drop"), rule("p0", 2, "ip_proto udp action drop"));
    mirror.receive(format!("{HELLO}{one}{other}end\n").as_bytes());
    assert_eq!(actions(&mut mirror), ["ip_proto tcp action drop", "ip_proto udp action drop"]);
    mirror.receive(format!("begin\n{other}").as_bytes());
    // The agent dies, and a new one connects.
    mirror.receive(format!("tc filt\n{HELLO}").as_bytes());
    assert!(matches!(mirror.poll_refusal(), Some(FilterRefusal::Line(LineError(_)))));
    assert!(mirror.poll_rules().is_none());
    mirror.receive(format!("{HELLO}{other}end\n").as_bytes());
    assert_eq!(actions(&mut mirror), ["ip_proto udp action drop"]);
    mirror.receive(format!("begin\n{other}end\n").as_bytes());
    assert!(mirror.poll_rules().is_none(), "an equal snapshot changes nothing");
    mirror.receive(b"tc filter del dev p0 ingress prio 1\n");
    assert!(actions(&mut mirror).is_empty());
}

#[test]
fn equal_matches_are_left_to_the_kernel_together() {
    // The order of the filters must not matter.
    for order in [[0, 1], [1, 0]] {
        let lines = [rule("p0", 1, "ip_proto tcp action drop"), rule("p0", 2, "ip_proto tcp action pass")];
        let mut mirror = FilterMirror::new();
        mirror.receive(format!("{HELLO}{}{}end\n", lines[order[0]], lines[order[1]]).as_bytes());
        assert_eq!(actions(&mut mirror), ["ip_proto tcp action pass"]);
        mirror.receive(b"tc filter del dev p0 ingress prio 1 handle 2 flower\n");
        assert_eq!(actions(&mut mirror), ["ip_proto tcp action drop"], "the other filter is in effect again");
    }
}

#[test]
fn device_with_excess_filters_has_no_rules() {
    let mut mirror = FilterMirror::new().with_room_for(2);
    let asked =
        |mirror: &mut FilterMirror| core::iter::from_fn(|| mirror.poll_transmit()).any(|line| line == b"ask 1\n");
    assert!(asked(&mut mirror));
    let lines = [
        rule("p0", 1, "ip_proto tcp action drop"),
        rule("pf0vf0", 1, "ip_proto tcp action drop"),
        rule("pf0vf0", 2, "ip_proto udp action pass"),
    ];
    mirror.receive(format!("{HELLO}{}end\n", lines.concat()).as_bytes());
    let rules = mirror.poll_rules().unwrap();
    assert_eq!(rules.iter().map(|rule| rule.device.to_string()).collect::<Vec<_>>(), ["p0"]);
    assert!(matches!(mirror.poll_refusal(), Some(FilterRefusal::TooMany(device, 2)) if device.to_string() == "pf0vf0"));
    assert!(!asked(&mut mirror));
    mirror.receive(b"tc filter del dev pf0vf0 ingress prio 2 handle 1 flower\n");
    assert!(asked(&mut mirror), "the deleted filter was beyond the limit");
    mirror.receive(b"tc filter del dev p0 ingress prio 1 handle 1 flower\n");
    assert!(asked(&mut mirror), "the filters may fit now");
    mirror.receive(format!("{HELLO}{}", lines[1]).as_bytes());
    assert_eq!(actions(&mut mirror), [""; 0], "the missing filter has not been received yet");
    mirror.receive(format!("{HELLO}{}{}end\n", lines[1], lines[2]).as_bytes());
    assert_eq!(actions(&mut mirror), ["ip_proto tcp action drop", "ip_proto udp action pass"]);
}
