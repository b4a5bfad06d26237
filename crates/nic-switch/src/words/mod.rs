//! Rules as `tc filter` lines (iproute2) with the flower classifier.
//!
//! ```text
//! # comments and empty lines; one command a line
//! tc qdisc add dev pf0vf0 clsact
//! tc filter add dev pf0vf0 ingress protocol ip prio 1 chain 0 handle 1 flower dst_mac 02:00:00:00:00:02
//!     ip_proto tcp dst_port 80-90 ip_flags nofrag action mirred egress redirect dev pf0vf1      (on one line)
//! tc filter replace dev p0 ingress protocol 802.1q prio 2 flower vlan_id 7 action vlan pop action goto chain 1
//! tc filter del dev p0 ingress prio 2
//! ```
//!
//! Invariant: printed rules parse to the same rules. Words with a meaning in Linux and no meaning here are rejected
//! instead of ignored, because a file must not promise more than the switch does. `tc qdisc` lines that prepare filters
//! are accepted without an effect.
//!
//! - `functions`: functions, as `ip link set ... vf` and `devlink` lines;
//! - `line`: the words of a line, and errors that point at them; `read`, `actions`: commands and their actions;
//! - `print`: the printer; `value`: numbers, rates, sizes and protocol names.

mod actions;
mod functions;
mod line;
mod print;
mod read;
mod value;

pub use functions::{FunctionChange, FunctionFile, FunctionOptions};
pub use line::{ParseError, ParseProblem};

use crate::rule::Change;
use core::fmt;
use line::LineWords;

/// Rule changes from a file.
///
/// ```
/// use nic_switch::RuleFile;
///
/// let file = RuleFile::parse("rules", "# none yet\ntc filter del dev p0 ingress\n")?;
/// assert_eq!(file.changes.len(), 1);
/// let error = RuleFile::parse("rules", "tc filter add dev p0 ingress prio 1 flower ct_state +trk action drop").unwrap_err();
/// assert_eq!(error.to_string(), "rules:1:44: `ct_state`: the switch keeps no connection state: match without it");
/// # Ok::<(), nic_switch::ParseError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFile {
    /// Changes, in the order of the file.
    pub changes: Vec<Change>,
}

impl RuleFile {
    /// Parses `text`; errors refer to it as `file`.
    ///
    /// # Errors
    /// At the first word that is wrong or missing.
    pub fn parse(file: &str, text: &str) -> Result<RuleFile, ParseError> {
        let mut changes = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let mut words = LineWords::new(file, number + 1, line);
            if let Some(change) = read::line(&mut words)? {
                changes.push(change);
            }
        }
        Ok(RuleFile { changes })
    }
}

impl fmt::Display for RuleFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.changes.iter().try_for_each(|change| writeln!(f, "{change}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::RuleError;
    use crate::{RuleAction, arbitrary};
    use proptest::prelude::*;

    fn actions(text: &str) -> Vec<RuleAction> {
        let text = format!("tc filter add dev p0 ingress protocol ip prio 1 flower ip_proto tcp action {text}");
        match RuleFile::parse("test", &text).unwrap().changes.remove(0) {
            Change::Add(rule) => rule.actions,
            other => panic!("{other:?}"),
        }
    }

    fn refused(text: &str) -> String {
        RuleFile::parse("f", text).unwrap_err().to_string()
    }

    proptest! {
        #[test]
        fn printed_rules_parse_to_the_same_rules(changes in prop::collection::vec(arbitrary::change(), 0..5)) {
            let file = RuleFile { changes };
            let text = file.to_string();
            prop_assert_eq!(RuleFile::parse("printed", &text).map_err(|error| format!("{error}\n{text}")), Ok(file));
        }

        #[test]
        fn any_words_parse_or_fail_with_their_position(words in prop::collection::vec(prop_oneof![
            prop::sample::select(vec!["tc", "filter", "add", "dev", "p0", "vxlan0", "ingress", "protocol", "ip", "prio", "1", "flower",
                "action", "drop", "pipe", "mirred", "egress", "redirect", "tunnel_key", "set", "src_ip", "10.0.0.1", "pedit", "ex",
                "munge", "vlan", "push", "id", "goto", "chain", "csum", "police", "rate", "#", "é"]).prop_map(String::from),
            "[ -~]{0,6}",
        ], 0..30)) {
            let text = words.join(" ");
            if let Err(error) = RuleFile::parse("f", &text) {
                prop_assert_eq!(error.line, 1);
                let rest: String = text.chars().skip(error.column - 1).collect();
                prop_assert!(rest.escape_debug().to_string().starts_with(&error.word), "{} in {}", error, text);
            }
        }
    }

    #[test]
    fn errors_point_at_the_word() {
        let begin = "tc filter add dev p0 ingress protocol ip prio 1 flower";
        // Columns count characters from 1 and point at the wrong word, or past the end of the line for a missing one.
        let cases = [
            (
                "tc filter add dev eth1 ingress".to_owned(),
                "f:1:19: `eth1` is not a device of the switch: name p0, pf0hpf, pf0vfN, card0, vxlanN, gretapN or geneveN",
            ),
            ("# ok\n\ntc filtre".to_owned(), "f:3:4: `filtre` is not filter (or qdisc)"),
            (
                format!("{begin} dst_ip"),
                "f:1:62: the line ends where there should be an IP address, with /BITS perhaps",
            ),
            (format!("{begin} dst_ip 10.0.0.1 dst_ip ::1"), "f:1:72: `dst_ip` is there a second time: say it once"),
            (
                format!("{begin} ct_state +est action drop"),
                "f:1:56: `ct_state`: the switch keeps no connection state: match without it",
            ),
            (
                format!("{begin} action ct zone 1"),
                "f:1:63: `ct`: the switch keeps no connection state: match without it",
            ),
            (
                format!("{begin} skip_hw action drop"),
                "f:1:56: `skip_hw`: the rule is for software only: leave it to tc",
            ),
            (
                format!("{begin} dst_ip ::1 action drop"),
                "f:1:1: `tc`: an address is not of the version of IP that the protocol names",
            ),
            (begin.to_owned(), "f:1:55: the line ends where there should be an action"),
        ];
        for (text, expected) in cases {
            assert_eq!(refused(&text), expected, "{text}");
        }
    }

    #[test]
    fn unnamed_options_have_the_defaults_of_tc() {
        use RuleAction::*;
        assert!(matches!(actions("vlan pop action drop")[..], [VlanPop, Drop]));
        assert!(matches!(actions("pedit ex munge eth dst set 2:0:0:0:0:1")[..], [Pedit(_), Pass]));
        assert!(matches!(actions("csum tcp pipe action drop")[..], [Checksum(_), Drop]));
        assert!(matches!(actions("mirred egress mirror dev p0 action drop")[..], [Mirror(_), Drop]));
        assert!(matches!(actions("vlan push id 3 protocol 802.1Q")[..], [VlanPush(tag)] if tag.ether_type == 0x8100));
        let text = "tc filter add dev p0 ingress protocol ip prio 1 flower action pedit ex munge eth dst set 2:0:0:0:0:1 action drop";
        let error = RuleFile::parse("f", text).unwrap_err();
        assert_eq!(error.problem, ParseProblem::Rule(RuleError::BehindTheEnd), "pedit without pipe ends");
    }

    #[test]
    fn rules_that_cannot_be_are_refused() {
        let vxlan = "tunnel_key set src_ip 10.0.0.1 dst_ip 10.0.0.2";
        // Device, protocol, match and action of a rule, with the expected violation.
        let cases = [
            ("p0", "ip", "src_port 5", "drop", RuleError::NoPorts),
            ("p0", "ip", "ip_proto tcp src_port 5-5", "drop", RuleError::Range),
            ("p0", "ip", "ip_proto tcp src_port 0-5", "drop", RuleError::PortZero),
            ("p0", "arp", "dst_ip 10.0.0.1", "drop", RuleError::NotIp),
            ("p0", "ip", "vlan_id 5", "drop", RuleError::NoTag),
            ("p0", "802.1q", "vlan_id 4096", "drop", RuleError::Vlan),
            ("p0", "802.1q", "vlan_ethtype 802.1q", "drop", RuleError::SecondTag),
            ("p0", "ip", "enc_key_id 5", "drop", RuleError::NoTunnel),
            ("vxlan0", "ip", "enc_src_ip ::1 enc_dst_ip 10.0.0.1", "drop", RuleError::Ends),
            ("p0", "ip", "", "goto chain 0", RuleError::Backwards(0)),
            ("p0", "ip", "", "vlan push id 5 priority 8", RuleError::Vlan),
            ("p0", "ip", "", "mirred egress redirect dev vxlan0", RuleError::NoEnds),
            ("p0", "ip", "", &format!("{vxlan} action mirred egress redirect dev vxlan0"), RuleError::Key),
            ("p0", "ip", "", &format!("{vxlan} id 16777216 action mirred egress redirect dev geneve0"), RuleError::Key),
            ("p0", "ip", "", "tunnel_key set src_ip 10.0.0.1 dst_ip ::1", RuleError::Ends),
            ("p0", "ip", "", "pedit ex munge ip6 hoplimit set 3 pipe", RuleError::Unmatched),
            ("p0", "ip", "ip_proto udp", "pedit ex munge tcp sport set 3 pipe", RuleError::Unmatched),
            ("p0", "ip", "", "pedit ex pipe", RuleError::NoEdit),
            ("p0", "ip", "", "police rate 0 burst 10 conform-exceed drop/pipe", RuleError::Police),
        ];
        for (device, protocol, matching, action, expected) in cases {
            let text = format!(
                "tc filter add dev {device} ingress protocol {protocol} prio 1 flower {matching} action {action}"
            );
            assert_eq!(RuleFile::parse("f", &text).unwrap_err().problem, ParseProblem::Rule(expected), "{text}");
        }
        let gre = format!(
            "tc filter add dev p0 ingress prio 1 flower action {vxlan} action mirred egress redirect dev gretap0"
        );
        assert!(RuleFile::parse("f", &gre).is_ok(), "GRE needs no key");
    }
}
