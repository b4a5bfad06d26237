//! Reasons for which a filter has no counterpart in the switch.

use core::fmt;
use nic_switch::RuleError;

/// Reason for which a filter of a kernel has no counterpart here, so that its frames are left to the kernel.
///
/// ```
/// use linux_mirror::tc::UnsupportedFilter;
///
/// assert_eq!(
///     UnsupportedFilter::Classifier("u32".into()).to_string(),
///     "the switch has no classifier u32: use flower so that the switch handles the filter"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnsupportedFilter {
    /// A classifier other than flower.
    #[error("the switch has no classifier {0}: use flower so that the switch handles the filter")]
    Classifier(String),
    /// The flag `skip_hw`, which reserves the filter for software.
    #[error("it has the flag skip_hw: remove the flag so that the switch handles the filter")]
    SkipHardware,
    /// A flower key that the switch does not match.
    #[error("the switch does not match {0}: remove the key so that the switch handles the filter")]
    Key(FlowerKey),
    /// A mask that is not a prefix, or that covers a part of a field which is matched as a whole.
    #[error("the switch does not match {0} by this mask: match the whole field, or a prefix of an address")]
    Mask(FlowerKey),
    /// An action or an option that the switch does not have.
    #[error("the switch has no action {0} with these options: see the chapter on the switch for the supported ones")]
    Action(String),
    /// A control action other than the next action or the end.
    #[error("after {0} the switch can only continue with the next action or end: use one of these controls")]
    Control(String),
    /// A device outside the switch, by its interface index.
    #[error(
        "it sends to network device number {0}, which is no device of the switch: use p0, pf0hpf, pf0vfN, card0, vxlanN, gretapN or geneveN"
    )]
    Device(u32),
    /// A rule that the switch rejects.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// A flower key, by its number (`TCA_FLOWER_*`). Its mask has another number.
///
/// ```
/// assert_eq!(linux_mirror::tc::FlowerKey(75).to_string(), "the hops of IP (flower's key 75)");
/// assert_eq!(linux_mirror::tc::FlowerKey(999).to_string(), "flower's key 999");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowerKey(pub u16);

impl fmt::Display for FlowerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(first, last, _)| (*first..=*last).contains(&self.0)) {
            Some((.., name)) => write!(f, "{name} (flower's key {})", self.0),
            None => write!(f, "flower's key {}", self.0),
        }
    }
}

/// Names of keys, as (first key, last key, name); see linux/pkt_cls.h.
const NAMES: [(u16, u16, &str); 29] = [
    (2, 2, "the ingress device"),
    (4, 7, "Ethernet addresses"),
    (10, 17, "addresses of IP"),
    (18, 21, "ports"),
    (27, 34, "the ends of a tunnel"),
    (35, 42, "ports"),
    (43, 46, "ports of a tunnel"),
    (47, 48, "flags of fragments"),
    (49, 56, "the type of ICMP"),
    (57, 66, "fields of ARP"),
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
    (100, 101, "the hash of the frame"),
    (102, 102, "the number of VLAN tags"),
    (103, 104, "PPPoE"),
    (105, 105, "L2TP"),
    (106, 106, "the L2 miss flag"),
    (107, 107, "fault management (CFM)"),
    (108, 109, "SPIs"),
    (110, 111, "flags of a tunnel"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_names_do_not_overlap() {
        for pair in NAMES.windows(2) {
            assert!(pair[0].0 <= pair[0].1 && pair[0].1 < pair[1].0, "{pair:?}");
        }
        assert_eq!(
            UnsupportedFilter::Key(FlowerKey(57)).to_string(),
            "the switch does not match fields of ARP (flower's key 57): remove the key so that the switch handles the filter"
        );
    }
}
