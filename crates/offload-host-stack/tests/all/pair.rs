//! A pair of hosts on a wire, in virtual time.

use crate::nic::MaskingNic;
use crate::wire::{FaultyWire, WireConfig};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use offload_base::{Instant, Seed};
use offload_host_stack::{Config, FlowId, Ipv6Config, Stack, TcpConfig, TcpState};

/// IPv4 addresses of the hosts.
pub(crate) const FOUR: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
/// IPv6 addresses of the hosts.
pub(crate) const SIX: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)];
/// Addresses that the hosts use in this test program.
pub(crate) const ADDRESS: [IpAddr; 2] = match crate::OVER_SIX {
    false => [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))],
    true => [IpAddr::V6(SIX[0]), IpAddr::V6(SIX[1])],
};
/// Offset of the TCP header in a frame.
pub(crate) const TCP: usize = if crate::OVER_SIX { 54 } else { 34 };
/// Payload of a full segment with timestamps, at an MTU of 1500 bytes.
pub(crate) const FULL: usize = 1514 - TCP - 32;
pub(crate) const MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
pub(crate) const PORT: u16 = 443;

/// Configuration of a pair.
#[derive(Clone, Debug)]
pub(crate) struct PairConfig {
    pub(crate) seed: Seed,
    pub(crate) wire: WireConfig,
    pub(crate) mtu: u16,
    pub(crate) tso: u32,
    pub(crate) checksum: bool,
    pub(crate) tcp: [TcpConfig; 2],
    /// Whether the hosts have static neighbour entries of each other.
    pub(crate) acquainted: bool,
}

impl Default for PairConfig {
    fn default() -> PairConfig {
        PairConfig {
            seed: Seed(1),
            wire: WireConfig::default(),
            mtu: 1500,
            tso: 65_536,
            checksum: true,
            tcp: [TcpConfig::default(), TcpConfig::default()],
            acquainted: true,
        }
    }
}

pub(crate) struct HostPair {
    pub(crate) now: Instant,
    pub(crate) stacks: [Stack; 2],
    pub(crate) nics: [MaskingNic; 2],
    pub(crate) wire: FaultyWire,
    pub(crate) seed: Seed,
}

pub(crate) fn config(side: usize, seed: Seed, tcp: TcpConfig) -> Config {
    let mut config = Config::new(FOUR[side].into(), MAC[side], seed.derive(&format!("host {side}")))
        .with_ipv6(Ipv6Config::new(SIX[side]))
        .with_neighbour(FOUR[1 - side].into(), MAC[1 - side])
        .with_neighbour(SIX[1 - side].into(), MAC[1 - side]);
    config.tcp = tcp;
    config
}

impl HostPair {
    pub(crate) fn new(setup: &PairConfig) -> HostPair {
        let nic = || MaskingNic::new(setup.mtu, setup.tso, setup.checksum);
        let stack = |side: usize| {
            let mut config = config(side, setup.seed, setup.tcp[side].clone());
            if !setup.acquainted {
                config.neighbours.clear();
            }
            Stack::new(config)
        };
        HostPair {
            now: Instant::ZERO,
            stacks: [stack(0), stack(1)],
            nics: [nic(), nic()],
            wire: FaultyWire::new(setup.wire, setup.seed),
            seed: setup.seed,
        }
    }

    /// Returns a pair with a connection established on both sides.
    pub(crate) fn connected(setup: &PairConfig) -> (HostPair, [FlowId; 2]) {
        let mut pair = HostPair::new(setup);
        let ids = pair.open();
        (pair, ids)
    }

    /// Opens a connection from side 0 to side 1.
    pub(crate) fn open(&mut self) -> [FlowId; 2] {
        let _ = self.stacks[1].listen(PORT, 16);
        let remote = (ADDRESS[1], PORT).into();
        let client = self.stacks[0].connect(self.now, None, remote).unwrap();
        let mut server = None;
        self.run_until(|pair| {
            server = server.or_else(|| pair.stacks[1].accept(PORT));
            server.is_some() && pair.stacks[0].state(client) == TcpState::Established
        });
        [client, server.unwrap()]
    }

    /// Runs everything that is due now. Returns whether anything was done.
    pub(crate) fn run_now(&mut self) -> bool {
        let mut moved = false;
        while let Some((to, frame)) = self.wire.receive(self.now) {
            self.nics[to].port().deliver(&frame);
            moved = true;
        }
        for side in 0..2 {
            let mut rounds = 0;
            while self.stacks[side].poll(self.now, &mut self.nics[side]) {
                rounds += 1;
                assert!(rounds < 10_000, "the stack must come to rest (seed {:?})", self.seed);
            }
            let frames = self.nics[side].port().drain();
            moved |= !frames.is_empty();
            for frame in frames {
                self.wire.send(self.now, side, frame);
            }
        }
        moved
    }

    /// Runs everything that is due now, then advances to the next event. Returns false without a next event.
    pub(crate) fn step(&mut self) -> bool {
        while self.run_now() {}
        let next = [self.wire.next_event(), self.stacks[0].next_event(), self.stacks[1].next_event()];
        let Some(next) = next.into_iter().flatten().min() else { return false };
        assert!(next >= self.now || self.stacks.iter().any(|stack| stack.next_event() == Some(next)));
        self.now = self.now.max(next);
        true
    }

    /// Steps until `done`, for at most a day of virtual time.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&mut HostPair) -> bool) {
        let give_up = self.now + Duration::from_secs(24 * 3600);
        let mut stuck = false;
        while !done(self) {
            // One idle step may precede a timer of the stacks, so only the second one in a row means a deadlock.
            let idle = stuck && !self.stacks.iter().any(Stack::has_work);
            assert!(!idle, "no event is left (seed {:?}):\n{}", self.seed, self.describe());
            assert!(self.now < give_up, "the test exceeds a day (seed {:?}):\n{}", self.seed, self.describe());
            stuck = !self.step() && !self.run_now();
        }
    }

    /// Returns the state of both stacks, for messages of failed tests.
    pub(crate) fn describe(&self) -> String {
        self.stacks.iter().map(|stack| format!("{:?}: {stack:#?}\n", self.now)).collect()
    }

    /// Runs for `span` of virtual time.
    pub(crate) fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            while self.run_now() {}
            let next = [self.wire.next_event(), self.stacks[0].next_event(), self.stacks[1].next_event()];
            match next.into_iter().flatten().min() {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = end;
    }

    /// Reads and consumes all received data.
    pub(crate) fn read(&mut self, side: usize, id: FlowId, into: &mut Vec<u8>) -> usize {
        let mut read = 0;
        while let Some(segment) = self.stacks[side].take(id) {
            into.extend_from_slice(&segment.data);
            read += segment.data.len();
            self.stacks[side].consume(id, segment.data.len());
        }
        read
    }
}
