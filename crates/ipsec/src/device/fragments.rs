//! Fragments of packets that policies can only judge whole (RFC 4301 7).
//!
//! Which those are is the policies' to say: if one that names ports might be about the packet, nothing but the whole
//! packet tells whether it is.
//!
//! Invariant: a packet is put together of fragments that came the same way: from one shard's stack, plain from the wire, or by
//! one and the same SA. What one of them lacks, nobody else can add.

use crate::keying::SaId;
use offload_api::Protection;
use offload_base::Instant;
use offload_base::time::earliest;
use offload_formats::IpVersion;
use offload_formats::reassembly::{FragmentOutcome, Reassembler, ReassemblyLimits};

/// Which way a fragment came.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// Of the shard at this queue; with what came so protected in them.
    Stack(usize, Protection),
    Wire,
    Sa(SaId),
}

/// Fragments that wait for the rest of their packets.
#[derive(Debug)]
pub(super) struct Fragments {
    stack: [Reassembler; 2],
    wire: [Reassembler; 2],
    /// Those of all SAs share their space, and are told apart by the SA's name.
    sas: [Reassembler; 2],
}

impl Fragments {
    pub(super) fn new() -> Fragments {
        let both =
            || [IpVersion::V4, IpVersion::V6].map(|version| Reassembler::new(ReassemblyLimits::for_version(version)));
        Fragments { stack: both(), wire: both(), sas: both() }
    }

    /// Takes a fragment of a frame whose IP header starts at `network`.
    pub(super) fn insert(&mut self, now: Instant, from: Origin, frame: &[u8], network: usize) -> FragmentOutcome {
        let (both, among) = match from {
            Origin::Stack(queue, shows) => (&mut self.stack, (queue as u64) << 8 | shows as u64),
            Origin::Wire => (&mut self.wire, 0),
            Origin::Sa(SaId(name)) => (&mut self.sas, u64::from(name.generation) << 32 | u64::from(name.index)),
        };
        let version = usize::from(frame.get(network).is_some_and(|first| first >> 4 == 6));
        both[version].insert_among(now, frame, network, among)
    }

    pub(super) fn next_event(&self) -> Option<Instant> {
        let all = self.stack.iter().chain(&self.wire).chain(&self.sas);
        all.map(Reassembler::next_event).fold(None, earliest)
    }

    /// Gives up what waited long enough; returns how much, with what had to give way before.
    pub(super) fn expire(&mut self, now: Instant) -> u64 {
        let all = self.stack.iter_mut().chain(&mut self.wire).chain(&mut self.sas);
        all.map(|reassembly| {
            let expired = core::iter::from_fn(|| reassembly.expire(now)).count() as u64;
            expired + reassembly.take_evicted()
        })
        .sum()
    }
}
