//! `eswitch` with this test as its virtual machines and as the other end of its wire.

use crate::signals::{ServingProgram, WHO_HAS};
use crate::{ProgramFolder, refused};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::process::ChildStderr;
use std::time::Duration;

/// The test's ends of the sockets: two machines, and the wire.
struct SwitchPeers {
    machines: [UnixDatagram; 2],
    wire: UnixDatagram,
}

impl SwitchPeers {
    fn bind(folder: &ProgramFolder) -> SwitchPeers {
        let bind = |name: &str| {
            let socket = UnixDatagram::bind(folder.path(name)).unwrap();
            // A missing frame is a failure after this time.
            socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            socket
        };
        SwitchPeers { machines: ["vm0.guest", "vm1.guest"].map(bind), wire: bind("far") }
    }

    fn says(&self, folder: &ProgramFolder, machine: usize, frame: &[u8]) {
        self.machines[machine].send_to(frame, folder.path(&format!("vm{machine}"))).unwrap();
    }

    /// Receives frames until one satisfies `is_meant`.
    fn hears(socket: &UnixDatagram, is_meant: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut frame = vec![0; 2048];
        loop {
            let bytes = socket.recv(&mut frame).unwrap();
            if is_meant(&frame[..bytes]) {
                frame.truncate(bytes);
                return frame;
            }
        }
    }

    /// Answers the host's ARP request for 10.77.0.2.
    fn answer_who_has(&self, folder: &ProgramFolder) {
        let asked = Self::hears(&self.wire, |frame| frame.len() >= 42 && frame[12..14] == [8, 6] && frame[21] == 1);
        assert_eq!(asked[38..42], [10, 77, 0, 2]);
        let mut answer = WHO_HAS;
        answer[..6].copy_from_slice(&asked[6..12]);
        answer[21] = 2;
        answer[32..38].copy_from_slice(&asked[22..28]);
        self.wire.send_to(&answer, folder.path("near")).unwrap();
    }
}

const ARGUMENTS: [&str; 6] = ["--vf", "0=vm0", "--vf", "1=vm1", "--uplink", "dgram:near,far"];

fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, number]
}

/// Returns a frame with an EtherType for local experiments (IEEE 802 9.2.3).
fn frame(from: [u8; 6], to: [u8; 6], word: u8) -> Vec<u8> {
    [&to[..], &from, &[0x88, 0xb5], &[word; 46]].concat()
}

/// Returns the program's next line that begins with `first`.
fn line(said: &mut BufReader<ChildStderr>, first: &str) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it says no more");
        if line.starts_with(first) {
            return line;
        }
    }
}

#[test]
fn learning_switch_connects_machines_and_drops_forged_frames() {
    let folder = ProgramFolder::new("learning-switch");
    let outside = SwitchPeers::bind(&folder);
    let (mut served, qemu) = ServingProgram::until(&folder, "eswitch", &ARGUMENTS, "pf0vf0: qemu-system-x86_64");
    assert!(qemu.contains("local.path=vm0.guest,") && qemu.ends_with("mac=02:00:00:00:01:00,host_mtu=1500"), "{qemu}");
    served.listens();
    // Machine 0 first sends with the address of machine 1, which the switch must drop as forged.
    outside.says(&folder, 0, &frame(mac(1), [0xff; 6], 1));
    outside.says(&folder, 0, &frame(mac(0), [0xff; 6], 2));
    let of_test = |frame: &[u8]| frame[12..14] == [0x88, 0xb5];
    let all = [&outside.machines[1], &outside.wire].map(|socket| SwitchPeers::hears(socket, of_test));
    assert!(all.iter().all(|heard| *heard == frame(mac(0), [0xff; 6], 2)), "the first one was forged");
    outside.says(&folder, 1, &frame(mac(1), mac(0), 3));
    assert_eq!(SwitchPeers::hears(&outside.machines[0], of_test), frame(mac(1), mac(0), 3));
    let (counted, _) = served.end("TERM");
    assert!(counted.contains("eswitch_drop_spoofed            \t1\n"), "{counted}");
    assert!(counted.contains("pf0vf0: 2 frames (120 bytes) from the machine, 1 (60 bytes) to it, 0 lost"), "{counted}");
}

/// The machines learn their MTU before the Linux machine has installed the first tunnel.
#[test]
fn machine_mtu_leaves_room_for_steered_tunnels_under_esp() {
    let folder = ProgramFolder::new("steered-switch");
    let _outside = SwitchPeers::bind(&folder);
    // 1500 less VXLAN over IPv6 and ESP is 1396.
    for (keyed, mtu) in [(&[][..], 1500), (&["--mirror", "sas"], 1396)] {
        let arguments = [&ARGUMENTS[..], &["--filters", "filters"], keyed].concat();
        let (mut served, qemu) = ServingProgram::until(&folder, "eswitch", &arguments, "pf0vf0: qemu-system-x86_64");
        assert!(qemu.ends_with(&format!(",host_mtu={mtu}")), "{qemu}");
        served.listens();
        served.end("TERM");
    }
}

#[test]
fn rules_change_under_traffic_and_a_bad_file_changes_nothing() {
    let folder = ProgramFolder::new("ruled-switch");
    let outside = SwitchPeers::bind(&folder);
    let to_vm1 = "tc filter add dev pf0vf0 ingress prio 2 flower action mirred egress redirect dev pf0vf1\n";
    let to_far = "tc filter add dev pf0vf0 ingress prio 1 flower dst_mac 02:00:00:00:09:09 action tunnel_key set \
                  src_ip 10.77.0.1 dst_ip 10.77.0.2 id 100 nocsum action mirred egress redirect dev vxlan0\n";
    let rules = folder.write("rules", &(to_vm1.to_owned() + to_far));
    let arguments = [&ARGUMENTS[..], &["--rules", "rules", "--json"]].concat();
    let (mut served, qemu) = ServingProgram::until(&folder, "eswitch", &arguments, "pf0vf0: qemu-system-x86_64");
    assert!(qemu.ends_with(",host_mtu=1450"), "{qemu}");
    served.listens();
    let mut said = served.errors();
    outside.answer_who_has(&folder);
    let far = [2, 0, 0, 0, 9, 9];
    let is_vxlan = |frame: &[u8]| frame.len() == 50 + 60 && frame[36..38] == 4789u16.to_be_bytes();
    // Frames to the tunnel are dropped until the switch knows the next hop.
    outside.wire.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut wrapped = vec![0; 2048];
    for tries in 0.. {
        assert!(tries < 600, "no frame comes through the tunnel");
        outside.says(&folder, 0, &frame(mac(0), far, 4));
        match outside.wire.recv(&mut wrapped) {
            Ok(bytes) if is_vxlan(&wrapped[..bytes]) => break,
            _ => {}
        }
    }
    assert_eq!(wrapped[..6], WHO_HAS[6..12], "to the station that answered");
    assert_eq!((&wrapped[26..34], &wrapped[46..50]), (&[10, 77, 0, 1, 10, 77, 0, 2][..], &[0, 0, 100, 0][..]));
    assert_eq!(wrapped[50..110], frame(mac(0), far, 4));
    outside.says(&folder, 0, &frame(mac(0), mac(1), 5));
    let of_test = |frame: &[u8]| frame[12..14] == [0x88, 0xb5];
    assert_eq!(SwitchPeers::hears(&outside.machines[1], of_test)[14], 5);

    std::fs::write(&rules, "tc filter add dev pf0vf0 ingress prio 2 flower action nothing\n").unwrap();
    served.signal("HUP");
    assert!(line(&mut said, "rules did not change").contains("rules:1:"), "with the place");
    outside.says(&folder, 0, &frame(mac(0), mac(1), 6));
    // The old rules must stay in force after the refused file.
    assert_eq!(SwitchPeers::hears(&outside.machines[1], of_test)[14], 6);
    std::fs::write(&rules, to_vm1.replace("pf0vf0", "x").replace("pf0vf1", "pf0vf0").replace('x', "pf0vf1")).unwrap();
    served.signal("HUP");
    line(&mut said, "rules are as rules says, 1 of them");
    outside.says(&folder, 0, &frame(mac(0), mac(1), 7));
    outside.says(&folder, 1, &frame(mac(1), mac(0), 8));
    assert_eq!(SwitchPeers::hears(&outside.machines[0], of_test)[14], 8);

    let (counted, _) = served.end("INT");
    let counted: serde_json::Value = serde_json::from_str(counted.lines().last().unwrap()).unwrap();
    assert_eq!(counted["rules"][0]["packets"], 1, "{counted}");
    assert_eq!(counted["machines"]["pf0vf1"]["attach_tx_packets"], 2, "{counted}");
    assert_eq!(counted["machines"]["pf0vf0"]["attach_tx_packets"], 1, "{counted}");
}

#[test]
fn invalid_switch_options_are_reported() {
    let folder = ProgramFolder::new("wrong-switch");
    folder.write("legacy", "devlink dev eswitch set nic0 mode legacy\n");
    folder.write("rules", "tc filter add dev p0 ingress prio 1 flower action drop\n");
    folder.write("bad", "tc filter add dev p0 ingress prio 1 flower\n");
    folder.write("keys", "policy setdefault in accept out accept\n");
    let end = ["--uplink", "dgram:near,far"];
    let cases: [(&[&str], &str); 7] = [
        (&["--vf", "256=vm"], "a machine is N=SOCKET"),
        (&["--vf", "0=a", "--vf", "0=b"], "each its own number"),
        (&["--vf", "0=none/a"], "none/a: "),
        (&["--vf", "0=a", "--rules", "bad"], "bad:1:43: "),
        (&["--vf", "0=a", "--keys", "keys", "--protect", "vxlan0:5=1"], "--protect: rules lead to tunnels"),
        (&["--vf", "0=a", "--keys", "keys", "--protect", "vxlan0:5=1", "--rules", "legacy"], "--protect: rules lead"),
        (&["--vf", "0=a", "--keys", "keys", "--protect", "vxlan0:5=1", "--rules", "rules"], "no SA has reqid 1"),
    ];
    for (arguments, expected) in cases {
        let said = refused(&folder, "eswitch", &[arguments, &end].concat());
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    assert!(refused(&folder, "eswitch", &["--vf", "0=a", "--uplink", "nowhere"]).contains("tap:NAME"));
}
