//! Reassembly of packets that policies can only judge whole (RFC 4301 7).
//!
//! A packet must be whole if a policy that names ports might match it.
//!
//! Invariant: the fragments of a packet have the same origin: one shard's stack, the plain wire, or one SA. A fragment
//! from another origin can never complete a packet.

use crate::keying::SaId;
use offload_api::Protection;
use offload_base::Instant;
use offload_base::time::earliest;
use offload_formats::IpVersion;
use offload_formats::reassembly::{FragmentOutcome, Reassembler, ReassemblyLimits};

/// The origin of a fragment.
#[derive(Clone, Copy, Debug)]
pub(super) enum FragmentOrigin {
    /// The stack of the shard at this queue, with the protection of the packet quoted in the fragment.
    Stack(usize, Protection),
    Wire,
    Sa(SaId),
}

/// Incomplete packets: fragments that wait for the rest of their packets, for IPv4 and IPv6.
#[derive(Debug)]
pub(super) struct PendingFragments {
    stack: [Reassembler; 2],
    wire: [Reassembler; 2],
    /// All SAs share one reassembler each for IPv4 and IPv6; the SA's handle separates their packets.
    sas: [Reassembler; 2],
}

impl PendingFragments {
    pub(super) fn new() -> PendingFragments {
        let both =
            || [IpVersion::V4, IpVersion::V6].map(|version| Reassembler::new(ReassemblyLimits::for_version(version)));
        PendingFragments { stack: both(), wire: both(), sas: both() }
    }

    /// Takes a fragment of a frame whose IP header starts at `network`.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        from: FragmentOrigin,
        frame: &[u8],
        network: usize,
    ) -> FragmentOutcome {
        let (both, among) = match from {
            FragmentOrigin::Stack(queue, shows) => (&mut self.stack, (queue as u64) << 8 | shows as u64),
            FragmentOrigin::Wire => (&mut self.wire, 0),
            FragmentOrigin::Sa(SaId(name)) => (&mut self.sas, u64::from(name.generation) << 32 | u64::from(name.index)),
        };
        let version = usize::from(frame.get(network).is_some_and(|first| first >> 4 == 6));
        both[version].insert_among(now, frame, network, among)
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        let all = self.stack.iter().chain(&self.wire).chain(&self.sas);
        all.map(Reassembler::next_event).fold(None, earliest)
    }

    /// Drops expired packets. Returns their number, including packets evicted earlier for lack of space.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        let all = self.stack.iter_mut().chain(&mut self.wire).chain(&mut self.sas);
        all.map(|reassembly| {
            let expired = core::iter::from_fn(|| reassembly.expire(now)).count() as u64;
            expired + reassembly.take_evicted()
        })
        .sum()
    }
}
