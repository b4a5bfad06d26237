//! Tests with smoltcp as the peer, in both roles, over a clean and a faulty wire.

use crate::nic::MaskingNic;
use crate::pair::{ADDRESS, MAC, PORT, config};
use crate::transfer::{any_wire, pattern};
use crate::wire::{FaultyWire, WireConfig};
use core::time::Duration;
use offload_base::{Instant, Seed};
use offload_host_stack::{FlowId, Stack, TcpConfig, TcpState};
use proptest::prelude::*;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant as SmolInstant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use std::collections::VecDeque;

/// smoltcp's device: two queues.
#[derive(Default)]
struct SmoltcpQueues {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

struct QueueRxToken(Vec<u8>);
struct QueueTxToken<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for QueueRxToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for QueueTxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut frame = vec![0; length];
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for SmoltcpQueues {
    type RxToken<'a> = QueueRxToken;
    type TxToken<'a> = QueueTxToken<'a>;

    fn receive(&mut self, _: SmolInstant) -> Option<(QueueRxToken, QueueTxToken<'_>)> {
        let frame = self.received.pop_front()?;
        Some((QueueRxToken(frame), QueueTxToken(&mut self.sent)))
    }

    fn transmit(&mut self, _: SmolInstant) -> Option<QueueTxToken<'_>> {
        Some(QueueTxToken(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// Our host on side 0, and smoltcp's host on side 1.
struct SmoltcpWorld {
    now: Instant,
    stack: Stack,
    nic: MaskingNic,
    queues: SmoltcpQueues,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    wire: FaultyWire,
}

impl SmoltcpWorld {
    fn new(wire: WireConfig, seed: Seed) -> SmoltcpWorld {
        let mut queues = SmoltcpQueues::default();
        let mut settings = Config::new(HardwareAddress::Ethernet(EthernetAddress(MAC[1])));
        settings.random_seed = 1;
        let mut interface = Interface::new(settings, &mut queues, SmolInstant::from_micros(0));
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(ADDRESS[1].into(), if crate::OVER_SIX { 64 } else { 24 })).unwrap();
        });
        let buffer = || SocketBuffer::new(vec![0; 256 << 10]);
        let mut sockets = SocketSet::new(Vec::new());
        let socket = sockets.add(Socket::new(buffer(), buffer()));
        SmoltcpWorld {
            now: Instant::ZERO,
            stack: Stack::new(config(0, seed, TcpConfig::default())),
            nic: MaskingNic::new(1500, 0, true),
            queues,
            interface,
            sockets,
            socket,
            wire: FaultyWire::new(wire, seed),
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    fn smol_now(&self) -> SmolInstant {
        SmolInstant::from_micros(self.now.as_micros() as i64)
    }

    fn step(&mut self) {
        loop {
            let mut moved = false;
            while let Some((to, frame)) = self.wire.receive(self.now) {
                moved = true;
                if to == 0 { self.nic.port().deliver(&frame) } else { self.queues.received.push_back(frame) }
            }
            while self.stack.poll(self.now, &mut self.nic) {}
            let now = self.smol_now();
            self.interface.poll(now, &mut self.queues, &mut self.sockets);
            for frame in self.nic.port().drain() {
                moved = true;
                self.wire.send(self.now, 0, frame);
            }
            for frame in core::mem::take(&mut self.queues.sent) {
                moved = true;
                self.wire.send(self.now, 1, frame);
            }
            if !moved {
                break;
            }
        }
        let smol = self.interface.poll_delay(self.smol_now(), &self.sockets);
        // smoltcp may report a delay of zero, which must not stop the virtual clock.
        let smol = smol.map(|delay| self.now + Duration::from_micros(delay.total_micros().max(1)));
        let next = [smol, self.stack.next_event(), self.wire.next_event()];
        self.now = next.into_iter().flatten().min().unwrap_or(self.now).max(self.now);
    }

    /// Sends `data` in both directions, closes, and checks the received data.
    fn exchange(&mut self, id: FlowId, data: &[u8]) {
        let (mut sent, mut got) = ([0, 0], [Vec::new(), Vec::new()]);
        let end = self.now + Duration::from_secs(3600);
        loop {
            let room = self.stack.room(id).min(data.len() - sent[0]);
            self.stack.send_copy(id, &data[sent[0]..sent[0] + room]);
            sent[0] += room;
            if sent[0] == data.len() && self.stack.may_send(id) {
                self.stack.finish(id);
            }
            while let Some(segment) = self.stack.take(id) {
                got[0].extend_from_slice(&segment.data);
                self.stack.consume(id, segment.data.len());
            }
            let from = sent[1];
            let socket = self.socket();
            if from < data.len() {
                if socket.can_send() {
                    sent[1] += socket.send_slice(&data[from..]).unwrap();
                }
            } else {
                socket.close();
            }
            while socket.can_recv() {
                socket.recv(|bytes| (bytes.len(), got[1].extend_from_slice(bytes))).unwrap();
            }
            if self.stack.at_end(id) && got[1].len() == data.len() {
                break;
            }
            self.step();
            assert!(self.now < end, "too slow: {:?} sent, {:?} received", sent, [got[0].len(), got[1].len()]);
            assert_eq!(self.stack.error(id), None);
        }
        assert!(got[0] == data && got[1] == data);
        // The dropped connection must close completely, even if TIME-WAIT is on our side.
        self.stack.detach(self.now, id);
        let end = self.now + Duration::from_secs(200);
        while self.stack.connections() > 0 && self.now < end {
            self.step();
        }
        assert_eq!(self.stack.connections(), 0);
    }
}

/// Returns an established connection, opened by smoltcp unless `smoltcp_listens`.
fn opened(wire: WireConfig, seed: Seed, smoltcp_listens: bool) -> (SmoltcpWorld, FlowId) {
    let mut mixed = SmoltcpWorld::new(wire, seed);
    let end = mixed.now + Duration::from_secs(600);
    if smoltcp_listens {
        mixed.socket().listen(PORT).unwrap();
        let id = mixed.stack.connect(mixed.now, None, (ADDRESS[1], PORT).into()).unwrap();
        while mixed.stack.state(id) != TcpState::Established {
            mixed.step();
            assert!(mixed.now < end && mixed.stack.error(id).is_none(), "{:?}", mixed.stack.stats(id));
        }
        return (mixed, id);
    }
    mixed.stack.listen(PORT, 4).unwrap();
    let remote = (IpAddress::from(ADDRESS[0]), PORT);
    let socket = mixed.sockets.get_mut::<Socket<'_>>(mixed.socket);
    socket.connect(mixed.interface.context(), remote, 5000).unwrap();
    loop {
        mixed.step();
        if let Some(id) = mixed.stack.accept(PORT) {
            return (mixed, id);
        }
        assert!(mixed.now < end, "{:?}", mixed.socket().state());
    }
}

#[test]
fn smoltcp_interoperates_over_a_clean_wire() {
    for smoltcp_listens in [true, false] {
        let (mut mixed, id) = opened(WireConfig::default(), Seed(3), smoltcp_listens);
        mixed.exchange(id, &pattern(Seed(1), 500_000));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn smoltcp_interoperates_over_a_faulty_wire(
        seed: u64, wire in any_wire(), smoltcp_listens: bool, bytes in 0usize..60_000,
    ) {
        let (mut mixed, id) = opened(wire, Seed(seed), smoltcp_listens);
        mixed.exchange(id, &pattern(Seed(seed), bytes));
    }
}
