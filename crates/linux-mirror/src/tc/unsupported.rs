//! Why a filter has no counterpart in the switch.

use core::fmt;
use nic_switch::RuleError;

/// Why a filter of a kernel has no counterpart here: its frames are left to the kernel.
///
/// ```
/// use linux_mirror::tc::Unsupported;
///
/// assert_eq!(
///     Unsupported::Classifier("u32".into()).to_string(),
///     "the switch has no classifier u32: say it in words of flower to have the switch do it"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// Another classifier than flower.
    #[error("the switch has no classifier {0}: say it in words of flower to have the switch do it")]
    Classifier(String),
    /// `skip_hw`: it is to stay in software.
    #[error("it asks for software: leave skip_hw out to have the switch do it")]
    SkipHardware,
    /// A key of flower that the switch does not match.
    #[error("the switch does not match {0}: leave it out to have the switch do it")]
    Key(Key),
    /// A mask that is no prefix, or leaves out a part of a field that is matched as a whole.
    #[error("the switch does not match {0} by this mask: match the whole field, or of addresses a prefix")]
    Mask(Key),
    /// An action that the switch does not have, or an option of one.
    #[error("the switch has no action {0} with these options: see the chapter on the switch for those that it has")]
    Action(String),
    /// What follows an action is neither the next one nor the end.
    #[error("the switch goes on with the next action behind {0}, or ends: let the kernel do nothing else there")]
    Control(String),
    /// A device that is no port and no tunnel of the switch, by its number.
    #[error(
        "it sends to network device number {0}, which the switch has not: name p0, pf0hpf, pf0vfN, card0, vxlanN, gretapN or geneveN"
    )]
    Device(u32),
    /// The switch has no such rule.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// A key of flower, by its number (`TCA_FLOWER_*`); that of its mask is another.
///
/// ```
/// assert_eq!(linux_mirror::tc::Key(75).to_string(), "the hops of IP (flower's key 75)");
/// assert_eq!(linux_mirror::tc::Key(999).to_string(), "flower's key 999");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u16);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(first, last, _)| (*first..=*last).contains(&self.0)) {
            Some((.., name)) => write!(f, "{name} (flower's key {})", self.0),
            None => write!(f, "flower's key {}", self.0),
        }
    }
}

/// The first and the last key of something, and what that is: linux/pkt_cls.h.
const NAMES: [(u16, u16, &str); 29] = [
    (2, 2, "the device that the frame came by"),
    (4, 7, "Ethernet addresses"),
    (10, 17, "addresses of IP"),
    (18, 21, "ports"),
    (27, 34, "the ends of a tunnel"),
    (35, 42, "ports"),
    (43, 46, "ports of a tunnel"),
    (47, 48, "flags of fragments"),
    (49, 56, "the type of ICMP"),
    (57, 66, "what ARP asks and tells"),
    (67, 70, "MPLS"),
    (71, 72, "flags of TCP"),
    (73, 74, "the traffic class of IP"),
    (75, 76, "the hops of IP"),
    (77, 79, "an inner VLAN tag"),
    (80, 81, "the traffic class of a tunnel"),
    (82, 83, "the hops of a tunnel"),
    (84, 85, "the options of a tunnel"),
    (87, 90, "ranges of ports"),
    (91, 98, "connection tracking"),
    (99, 99, "MPLS"),
    (100, 101, "the hash of a frame"),
    (102, 102, "the number of VLAN tags"),
    (103, 104, "PPPoE"),
    (105, 105, "L2TP"),
    (106, 106, "that no bridge knows the address"),
    (107, 107, "fault management (CFM)"),
    (108, 109, "SPIs"),
    (110, 111, "flags of a tunnel"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_named_once() {
        for pair in NAMES.windows(2) {
            assert!(pair[0].0 <= pair[0].1 && pair[0].1 < pair[1].0, "{pair:?}");
        }
        assert_eq!(
            Unsupported::Key(Key(57)).to_string(),
            "the switch does not match what ARP asks and tells (flower's key 57): leave it out to have the switch do it"
        );
    }
}
