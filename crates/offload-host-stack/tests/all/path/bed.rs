//! Two stacks with emulated NICs and a wire between them, in virtual time, and streams with unlimited data.

use bytes::Bytes;
use core::num::NonZeroU64;
use core::time::Duration;
use nic_sim::wire::{Link, LinkConfig, Port};
use nic_sim::{Device, Driver, NicConfig, nic};
use offload_api::{NetDevice, TxTag};
use offload_base::{Instant, Seed};
use offload_host_stack::{Config, FlowId, Stack, TcpConfig, TcpStats};

pub(crate) struct PathTestbed {
    pub(crate) now: Instant,
    pub(crate) stacks: [Stack; 2],
    nics: [(Device, Driver); 2],
    links: [Link; 2],
    streams: Vec<EndlessStream>,
    block: Bytes,
}

/// A connection on which side 0 sends as much as it can.
struct EndlessStream {
    ends: [FlowId; 2],
    received: u64,
}

impl PathTestbed {
    /// Returns hosts with `tcp`, NICs with `nic_config`, and a wire with `link`. The impairments apply to the data
    /// direction only.
    pub(crate) fn new(seed: Seed, tcp: &TcpConfig, nic_config: &NicConfig, link: &LinkConfig) -> PathTestbed {
        let mac = |side: u8| [2, 0, 0, 0, 0, side + 1];
        let address = |side: u8| [10, 0, 0, side + 1];
        let stack = |side: u8| {
            let config = Config::new(address(side).into(), mac(side), seed.derive(&format!("host {side}")));
            let mut config = config.with_neighbour(core::net::Ipv4Addr::from(address(1 - side)).into(), mac(1 - side));
            config.tcp = tcp.clone();
            Stack::new(config)
        };
        let back = LinkConfig { impairments: Default::default(), ..link.clone() };
        let mut stacks = [stack(0), stack(1)];
        stacks[1].listen(PORT, 1024).unwrap();
        PathTestbed {
            now: Instant::ZERO,
            stacks,
            nics: [0, 1].map(|side| nic(NicConfig { mac: mac(side), ..nic_config.clone() })),
            links: [Link::new(link, seed.derive("there")), Link::new(&back, seed.derive("back"))],
            streams: Vec::new(),
            block: Bytes::from(vec![0x5a; BLOCK_BYTES]),
        }
    }

    /// Opens a stream with a send rate of at most `rate`.
    pub(crate) fn open(&mut self, rate: Option<NonZeroU64>) {
        self.open_with(|stack, id| stack.set_pacing_rate(id, rate));
    }

    /// Opens a stream with `settings` applied to its sender.
    pub(crate) fn open_with(&mut self, settings: impl FnOnce(&mut Stack, FlowId)) {
        let remote = (core::net::Ipv4Addr::new(10, 0, 0, 2), PORT).into();
        let client = self.stacks[0].connect(self.now, None, remote).unwrap();
        settings(&mut self.stacks[0], client);
        let mut goes_on = true;
        let server = loop {
            if let Some(server) = self.stacks[1].accept(PORT) {
                break server;
            }
            assert!(goes_on, "the connection must be established");
            goes_on = self.step(None);
        };
        self.streams.push(EndlessStream { ends: [client, server], received: 0 });
        self.feed();
    }

    /// Runs for `span`, and returns the number of bytes that arrived on each stream.
    pub(crate) fn run_for(&mut self, span: Duration) -> Vec<u64> {
        let before: Vec<u64> = self.streams.iter().map(|stream| stream.received).collect();
        let end = self.now + span;
        while self.now < end {
            self.step(Some(end));
        }
        self.streams.iter().zip(before).map(|(stream, before)| stream.received - before).collect()
    }

    /// Returns the figures of a stream's sender.
    pub(crate) fn stats(&self, stream: usize) -> TcpStats {
        self.stacks[0].stats(self.streams[stream].ends[0])
    }

    /// Does all work at this instant, and advances to the next event or to `end`. Returns false if there is neither.
    fn step(&mut self, end: Option<Instant>) -> bool {
        let mut next = end;
        // Virtual time advances to the earliest event of any part.
        let mut at = |event: Option<Instant>| next = offload_base::time::earliest(next, event);
        for side in 0..2 {
            let (device, driver) = &mut self.nics[side];
            while let Some(frame) = self.links[1 - side].poll(self.now) {
                device.receive_frame(self.now, frame);
            }
            device.process(self.now);
            while self.stacks[side].poll(self.now, driver) {}
        }
        // The applications run between the two polls, so that their data leave at the same instant.
        self.applications();
        for side in 0..2 {
            let (device, driver) = &mut self.nics[side];
            while self.stacks[side].poll(self.now, driver) {}
            device.process(self.now);
            let link = &mut self.links[side];
            let mut held_back = false;
            loop {
                held_back |= link.ready_at() > self.now;
                if held_back {
                    break;
                }
                let Some(frame) = device.poll_frame(self.now) else { break };
                link.send(self.now, frame);
            }
            at(link.next_event());
            at(held_back.then(|| link.ready_at()));
            at(device.next_event().filter(|at| !held_back || *at > self.now));
            at(driver.next_event());
            at(self.stacks[side].next_event());
        }
        self.now = next.map_or(self.now, |next| next.max(self.now));
        next.is_some()
    }

    fn applications(&mut self) {
        while let Some((id, readiness)) = self.stacks[1].next_ready() {
            if readiness.readable {
                let mut bytes = 0;
                while let Some(segment) = self.stacks[1].take(id) {
                    bytes += segment.data.len();
                    self.stacks[1].consume(id, segment.data.len());
                }
                if let Some(stream) = self.streams.iter_mut().find(|stream| stream.ends[1] == id) {
                    stream.received += bytes as u64;
                }
            }
        }
        let mut writable = false;
        while let Some((_, readiness)) = self.stacks[0].next_ready() {
            writable |= readiness.writable;
        }
        if writable {
            self.feed();
        }
    }

    fn feed(&mut self) {
        for stream in &self.streams {
            while self.stacks[0].room(stream.ends[0]) > 0 {
                self.stacks[0].send(stream.ends[0], self.block.clone(), TxTag::PLAIN);
            }
        }
    }
}

const PORT: u16 = 443;
const BLOCK_BYTES: usize = 256 << 10;
