//! Two of our stacks, each with an emulated NIC, on a wire of 100 Gb/s in virtual time. A stack runs when its NIC
//! interrupts, when its timer is due, and when its application has called it.

use bytes::Bytes;
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use nic_sim::wire::{Link, LinkConfig, Port};
use nic_sim::{Device, Driver, NicConfig, nic};
use offload_api::{NetDevice, TxTag};
use offload_base::cost::{self, Domain};
use offload_base::time::earliest;
use offload_base::{Instant, Seed};
use offload_host_stack::{Config, FlowId, Stack};
use std::sync::Arc;
use std::task::Wake;

pub(crate) struct StackPair {
    now: Instant,
    stacks: [Stack; 2],
    nics: [(Device, Driver); 2],
    links: [Link; 2],
    interrupts: [Arc<InterruptFlag>; 2],
    /// Time of each stack's timer.
    timers: [Option<Instant>; 2],
    clients: Vec<FlowId>,
    /// Index of the next client to send.
    turn: usize,
    /// Number of runs of each stack.
    turns: [u64; 2],
    message: Bytes,
    sent: u64,
    received: u64,
}

/// Whether a stack has to run.
struct InterruptFlag(AtomicBool);

impl Wake for InterruptFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl StackPair {
    /// Returns hosts with `connections` connections between them, and NICs with `config`.
    pub(crate) fn new(connections: usize, config: &NicConfig) -> StackPair {
        let mac = |side: u8| [2, 0, 0, 0, 0, side + 1];
        let address = |side: u8| Ipv4Addr::new(10, 0, 0, side + 1);
        let stack = |side: u8| {
            let config = Config::new(address(side), mac(side), Seed(u64::from(side)));
            Stack::new(config.with_neighbour(address(1 - side).into(), mac(1 - side)))
        };
        let link = |name: &str| Link::new(&LinkConfig::default(), Seed(1).derive(name));
        let mut ours = StackPair {
            now: Instant::ZERO,
            stacks: [stack(0), stack(1)],
            nics: [0, 1].map(|side| nic(NicConfig { mac: mac(side), ..config.clone() })),
            links: [link("there"), link("back")],
            // The first run arms the interrupt.
            interrupts: [(); 2].map(|()| Arc::new(InterruptFlag(AtomicBool::new(true)))),
            timers: [None; 2],
            clients: Vec::new(),
            turn: 0,
            turns: [0; 2],
            message: Bytes::from(vec![0x5a; MESSAGE_BYTES as usize]),
            sent: 0,
            received: 0,
        };
        ours.stacks[1].listen(PORT, connections).unwrap();
        for _ in 0..connections {
            let client = ours.stacks[0].connect(ours.now, None, (address(1), PORT).into()).unwrap();
            ours.clients.push(client);
            // The SYN was queued from outside a run, so the client's stack has to run.
            ours.interrupts[0].0.store(true, Ordering::Relaxed);
            let mut goes_on = true;
            while ours.stacks[1].accept(PORT).is_none() {
                assert!(goes_on, "the connection must be established");
                goes_on = ours.step();
            }
        }
        ours
    }

    /// Sends `count` messages, each on the next connection, and waits until all have arrived.
    pub(crate) fn messages(&mut self, count: u64) {
        let end = self.sent + count * MESSAGE_BYTES;
        while self.received < end {
            {
                let _host_cost = cost::domain(Domain::Host(0));
                while self.sent < end && self.sent - self.received < MAX_IN_FLIGHT {
                    let client = self.clients[self.turn];
                    self.stacks[0].send(client, self.message.clone(), TxTag::PLAIN);
                    self.stacks[0].push(client);
                    self.turn = (self.turn + 1) % self.clients.len();
                    self.sent += MESSAGE_BYTES;
                    self.interrupts[0].0.store(true, Ordering::Relaxed);
                }
            }
            let goes_on = self.step();
            assert!(goes_on || self.received >= end, "all messages must arrive");
        }
    }

    /// Returns each host's counts so far: runs, packets sent, packets received.
    pub(crate) fn done(&self) -> [[u64; 3]; 2] {
        [0, 1].map(|side| {
            let counters = self.stacks[side].counters();
            [self.turns[side], counters.ip_out_requests, counters.ip_in_receives]
        })
    }

    /// Does all work at this instant, and advances to the next event. Returns false without a next event.
    fn step(&mut self) -> bool {
        let mut next = None;
        for side in 0..2 {
            {
                let device = &mut self.nics[side].0;
                let _device_cost = cost::domain(Domain::Device(side as u8));
                // Frames reach the device before the host runs, as interrupts would tell the host.
                while let Some(frame) = self.links[1 - side].poll(self.now) {
                    device.receive_frame(self.now, frame);
                }
                device.process(self.now);
            }
            let interrupted = self.interrupts[side].0.swap(false, Ordering::Relaxed);
            if interrupted || self.timers[side].is_some_and(|at| at <= self.now) {
                self.run_host(side);
            }
            let device = &mut self.nics[side].0;
            let link = &mut self.links[side];
            let mut held_back = false;
            {
                let _device_cost = cost::domain(Domain::Device(side as u8));
                device.process(self.now);
                loop {
                    // A frame is taken only when the link is free, so that the device sees the link's backpressure.
                    held_back |= link.ready_at() > self.now;
                    if held_back {
                        break;
                    }
                    let Some(frame) = device.poll_frame(self.now) else { break };
                    link.send(self.now, frame);
                }
            }
            let of_link = held_back.then(|| link.ready_at());
            let of_device = device.next_event().filter(|at| !held_back || *at > self.now);
            for at in [link.next_event(), of_link, of_device, self.timers[side]] {
                next = earliest(next, at);
            }
        }
        if self.interrupts.iter().any(|interrupt| interrupt.0.load(Ordering::Relaxed)) {
            // The flag was set after its host's run, so the host runs again at this instant.
            return true;
        }
        self.now = next.map_or(self.now, |next| next.max(self.now));
        next.is_some()
    }

    /// Runs a host after an interrupt. It is never inlined, so that profiles show hosts and devices separately.
    #[inline(never)]
    fn run_host(&mut self, side: usize) {
        let _host_cost = cost::domain(Domain::Host(side as u8));
        self.turns[side] += 1;
        let (stack, driver) = (&mut self.stacks[side], &mut self.nics[side].1);
        let waker = Waker::from(self.interrupts[side].clone());
        loop {
            while stack.poll(self.now, driver) {}
            if driver.arm(&waker) {
                break;
            }
        }
        while let Some((id, readiness)) = stack.next_ready() {
            if side == 1 && readiness.readable {
                while let Some(segment) = stack.take(id) {
                    self.received += segment.data.len() as u64;
                    stack.consume(id, segment.data.len());
                }
            }
        }
        if side == 1 && stack.has_work() {
            // Sends window updates.
            stack.transmit(self.now, driver);
        }
        self.timers[side] = earliest(stack.next_event(), driver.next_event());
    }
}

/// Returns the configuration of NICs that cut and join up to 256 KiB, as after `ip link set nic0 gso_max_size 262144
/// gro_max_size 262144`: a message with its headers is one packet. Received segments are delayed by 32 us to join them,
/// as with mlx5.
pub(crate) fn large_nic() -> NicConfig {
    let lro_wait = core::time::Duration::from_micros(32);
    NicConfig { tso_max_bytes: 256 << 10, lro_max_bytes: 256 << 10, lro_wait, ..NicConfig::default() }
}

/// Messages after which a connection is in its steady state.
pub(crate) const WARM_EACH: u64 = 8;
/// Length of a message in bytes.
pub(crate) const MESSAGE_BYTES: u64 = 64 << 10;
const MAX_IN_FLIGHT: u64 = 1 << 20;
const PORT: u16 = 443;
