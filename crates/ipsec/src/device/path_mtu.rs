//! Path MTU discovery from ICMP messages about ESP packets (RFC 4301 8.2, RFC 1191, RFC 8201).
//!
//! These messages are not authenticated, so their effect is limited:
//! - The message must quote a recently sent packet by SPI, addresses and sequence number, which an attacker off the
//!   path does not know.
//! - The MTU can only become smaller, and not smaller than every path supports.
//! - The MTU expires after ten minutes (RFC 1191 6.3, RFC 8201 5.3) or with the SA. If the path is still narrow, its
//!   router reports again.

use crate::keying::SaId;
use crate::sad::{Sa, Sad, Sequence};
use offload_base::Instant;
use offload_esp::ETHERNET;
use offload_formats::InternetSum;
use offload_formats::IpView;
use offload_formats::protocol::{self, ICMP, ICMPV6};

/// Parses a "too big" message about an ESP packet and finds the packet's SA.
pub(super) fn find_too_big(sad: &Sad, frame: &[u8], view: &IpView) -> Option<TooBig> {
    let packet = &frame[ETHERNET..];
    let message = packet.get(view.header..view.total)?;
    let (head, quoted) = message.split_at_checked(8)?;
    let mut sum = match view.protocol {
        ICMPV6 => InternetSum::pseudo_header(ICMPV6, view.source, view.destination, message.len()),
        _ => InternetSum::default(),
    };
    sum.add(message);
    let told = match (view.protocol, head[0], head[1]) {
        (ICMP, 3, 4) => u32::from(u16::from_be_bytes([head[6], head[7]])),
        (ICMPV6, 2, 0) => u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
        _ => return None,
    };
    // A forged message must at least have a valid checksum and quote the message's own IP version.
    let ip = IpView::parse_headers(quoted).filter(|ip| sum.is_right() && ip.is_ipv6() == view.is_ipv6())?;
    let esp = match ip.protocol {
        protocol::ESP => ip.header,
        protocol::UDP => ip.header + 8,
        _ => return None,
    };
    let word = |at: usize| quoted.get(at..at + 4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    let id = sad.find_sent(word(esp)?, ip.source, ip.destination)?;
    let sa = sad.find(id)?;
    let Sequence::Send(numbers) = &sa.sequence else { return None };
    // The quoted number must be among the last sent ones, modulo 2^32.
    let ago = (numbers.last() as u32).wrapping_sub(word(esp + 4)?);
    let lately = u64::from(ago) < numbers.last().min(LATELY)
        && (sa.params.encapsulation.is_some() == (ip.protocol == protocol::UDP));
    // Lower reports are raised to the minimum instead of ignored, so that a path at the minimum still works.
    let least = if ip.is_ipv6() { MIN_IPV6_MTU } else { MIN_IPV4_MTU };
    let mtu = u16::try_from(told).unwrap_or(u16::MAX).max(least);
    lately.then_some(TooBig { mtu, id })
}

impl Sa {
    /// Forgets an expired path MTU. Returns whether it did.
    pub(super) fn forget_path_mtu(&mut self, now: Instant) -> bool {
        self.path_mtu.take_if(|path| path.ends() <= now).is_some()
    }
}

/// A router's report that packets of an SA are too big.
pub(super) struct TooBig {
    pub(super) mtu: u16,
    pub(super) id: SaId,
}

/// Linux's minimum: a smaller value is an attempt to make the host send tiny packets.
const MIN_IPV4_MTU: u16 = 552;
/// The IPv6 minimum MTU (RFC 8200 5).
const MIN_IPV6_MTU: u16 = 1280;
/// The maximum age of a quoted packet, in packets.
const LATELY: u64 = 1 << 16;
