//! What routers say about the size of ESP packets (RFC 4301 8.2, RFC 1191, RFC 8201).
//!
//! Nobody authenticates it. So it counts only if it quotes a packet that an SA has sent lately, by SPI, addresses and
//! sequence number, which somebody beside the path does not know; it makes packets smaller only, and not smaller than
//! every path takes; and it ends after ten minutes, or with the SA: the path may have become wider (RFC 1191 6.3, RFC 8201
//! 5.3), and if it has not, its router says so again.

use crate::keying::SaId;
use crate::sad::{Sa, Sad, Sequence};
use offload_base::Instant;
use offload_esp::ETHERNET;
use offload_formats::InternetSum;
use offload_formats::IpView;
use offload_formats::protocol::{self, ICMP, ICMPV6};

/// Finds the SA of an ESP packet that a router says was too big.
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
    let ago = (numbers.last() as u32).wrapping_sub(word(esp + 4)?);
    let lately = u64::from(ago) < numbers.last().min(LATELY)
        && (sa.params.encapsulation.is_some() == (ip.protocol == protocol::UDP));
    let least = if ip.is_ipv6() { LEAST_IPV6_MTU } else { LEAST_IPV4_MTU };
    let mtu = u16::try_from(told).unwrap_or(u16::MAX).max(least);
    lately.then_some(TooBig { mtu, id })
}

impl Sa {
    /// Forgets what a router said, if that was long ago.
    pub(super) fn forget_path_mtu(&mut self, now: Instant) -> bool {
        self.path_mtu.take_if(|path| path.ends() <= now).is_some()
    }
}

/// What a router says about packets of an SA.
pub(super) struct TooBig {
    pub(super) mtu: u16,
    pub(super) id: SaId,
}

/// As Linux has it: less is somebody's attempt to make us send tiny packets.
const LEAST_IPV4_MTU: u16 = 552;
/// RFC 8200 5.
const LEAST_IPV6_MTU: u16 = 1280;
/// How far back a quoted packet may be.
const LATELY: u64 = 1 << 16;
