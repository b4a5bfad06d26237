//! Two interfaces of smoltcp without checksums. Each one's device is a pair of queues that reuse their buffers.

use offload_base::cost::{self, Domain};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use std::collections::VecDeque;

pub(crate) struct SmoltcpPair {
    now: i64,
    sides: [SmoltcpHost; 2],
    data: Vec<u8>,
}

struct SmoltcpHost {
    interface: Interface,
    queues: SmoltcpDevice,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
}

#[derive(Default)]
struct SmoltcpDevice {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

struct SmoltcpRxToken<'a>(Vec<u8>, &'a mut Vec<Vec<u8>>);
struct SmoltcpTxToken<'a>(&'a mut VecDeque<Vec<u8>>, Option<Vec<u8>>);

impl RxToken for SmoltcpRxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.0);
        self.1.push(self.0);
        result
    }
}

impl TxToken for SmoltcpTxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, f: F) -> R {
        let mut frame = self.1.unwrap_or_default();
        frame.resize(length, 0);
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for SmoltcpDevice {
    type RxToken<'a> = SmoltcpRxToken<'a>;
    type TxToken<'a> = SmoltcpTxToken<'a>;

    fn receive(&mut self, _: Instant) -> Option<(SmoltcpRxToken<'_>, SmoltcpTxToken<'_>)> {
        let frame = self.received.pop_front()?;
        let spare = self.spare.pop();
        Some((SmoltcpRxToken(frame, &mut self.spare), SmoltcpTxToken(&mut self.sent, spare)))
    }

    fn transmit(&mut self, _: Instant) -> Option<SmoltcpTxToken<'_>> {
        let spare = self.spare.pop();
        Some(SmoltcpTxToken(&mut self.sent, spare))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }
}

impl SmoltcpPair {
    /// Returns hosts with a connection from the first to the second.
    pub(crate) fn new() -> SmoltcpPair {
        let side = |number: u8| {
            let mut queues = SmoltcpDevice::default();
            let mac = EthernetAddress([2, 0, 0, 0, 0, number]);
            let mut config = Config::new(HardwareAddress::Ethernet(mac));
            config.random_seed = u64::from(number);
            let mut interface = Interface::new(config, &mut queues, Instant::ZERO);
            interface.update_ip_addrs(|addresses| {
                addresses.push(IpCidr::new(IpAddress::v4(10, 0, 0, number), 24)).unwrap();
            });
            let buffer = || SocketBuffer::new(vec![0; BUFFER_BYTES]);
            let mut sockets = SocketSet::new(Vec::new());
            let socket = sockets.add(Socket::new(buffer(), buffer()));
            SmoltcpHost { interface, queues, sockets, socket }
        };
        let mut smol = SmoltcpPair { now: 0, sides: [side(1), side(2)], data: vec![0x5a; BUFFER_BYTES] };
        smol.sides[1].socket().listen(PORT).unwrap();
        let SmoltcpHost { interface, sockets, socket, .. } = &mut smol.sides[0];
        let remote = (IpAddress::v4(10, 0, 0, 2), PORT);
        sockets.get_mut::<Socket<'_>>(*socket).connect(interface.context(), remote, 50_000).unwrap();
        while !smol.sides.iter_mut().all(|side| side.socket().may_send()) {
            smol.step();
        }
        smol
    }

    /// Sends `bytes` bytes, and waits for their arrival.
    pub(crate) fn transfer(&mut self, bytes: u64) {
        let (mut sent, mut received) = (0, 0);
        while received < bytes {
            {
                let _host_cost = cost::domain(Domain::Host(0));
                while sent < bytes && self.sides[0].socket().can_send() {
                    let most = self.data.len().min((bytes - sent) as usize);
                    sent += self.sides[0].socket().send_slice(&self.data[..most]).unwrap() as u64;
                }
            }
            self.step();
            let _host_cost = cost::domain(Domain::Host(1));
            while self.sides[1].socket().can_recv() {
                received += self.sides[1].socket().recv(|data| (data.len(), data.len())).unwrap() as u64;
            }
        }
    }

    fn step(&mut self) {
        let mut moved = false;
        for side in 0..2 {
            {
                let _host_cost = cost::domain(Domain::Host(side as u8));
                let SmoltcpHost { interface, queues, sockets, .. } = &mut self.sides[side];
                interface.poll(Instant::from_micros(self.now), queues, sockets);
            }
            let [first, second] = &mut self.sides;
            let (from, to) = if side == 0 { (first, second) } else { (second, first) };
            moved |= !from.queues.sent.is_empty();
            to.queues.received.append(&mut from.queues.sent);
        }
        self.now += if moved { 10 } else { 1000 };
    }
}

impl SmoltcpHost {
    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.socket)
    }
}

/// Size of a socket's send buffer and of its receive buffer: enough to keep the peer busy, and small enough for the
/// cache.
const BUFFER_BYTES: usize = 256 << 10;
const PORT: u16 = 443;
