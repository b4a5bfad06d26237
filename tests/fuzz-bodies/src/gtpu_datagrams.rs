//! Datagrams into a GTP-U node, in software: each datagram is dropped, answered or accepted, and counted; SDUs are
//! delivered once each, in order; unread data is bounded.
//!
//! Input: a byte of operation, and its arguments. There are two bearers, one of each kind, without integrity
//! protection, so that arbitrary data gets far.

use crate::input::Input;
use crate::still::{FuzzClock, Inbox, Socket};
use bytes::{Bytes, BytesMut};
use core::net::SocketAddr;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use offload_formats::{Gtpu, GtpuMessage};
use pdcp::crypto::{Algorithm, Direction, Key};
use pdcp::gtpu::{Bearer, GtpTunnel, Node, PduProtection};
use pdcp::{BearerKind, Config, Security, SnLen};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Runs one input.
pub fn run(data: &[u8]) {
    let (clock, inbox) = (Arc::new(FuzzClock::default()), Inbox::default());
    let (node, mut driver) = Node::new(Socket(inbox.clone()), clock.clone(), PduProtection::Cpu);
    let peer = SocketAddr::from(([10, 0, 0, 1], Gtpu::PORT));
    let kinds = [(BearerKind::Unacknowledged, SnLen::Twelve), (BearerKind::Acknowledged, SnLen::Eighteen)];
    let open = |(number, (kind, numbers))| {
        let tunnel = GtpTunnel { local: number, remote: number, peer };
        let mut config = Config::data(kind, numbers);
        // A small buffer, so that the bound is reached.
        config.buffer = BUFFER;
        let [sent, received] = keys(number, 0);
        node.open(tunnel, config, sent, received).expect("two TEIDs")
    };
    let bearers: Vec<Bearer> = (1..).zip(kinds).map(open).collect();
    let mut last = [None; 2];
    let mut cx = Context::from_waker(Waker::noop());
    let mut input = Input(data);
    let (mut epoch, mut came) = (0, 0);
    while !input.0.is_empty() {
        let head = input.byte();
        let which = usize::from(head >> 7);
        match head % 8 {
            0 => drop(clock.0.fetch_add(u64::from(input.byte()) << 20, Ordering::Relaxed)),
            1 => {
                epoch = u8::wrapping_add(epoch, 1);
                let [sent, received] = keys(which as u32 + 1, epoch);
                // After 256 changes the keys repeat, and are refused.
                let is_new = bearers[which].reestablish(sent, received).is_ok();
                // An acknowledged bearer continues its numbers, and an unacknowledged one starts again.
                if is_new && which == 0 {
                    while read(&bearers[0], &mut cx).is_some() {}
                    last[0] = None;
                }
            }
            2 => {
                let sdu = Bytes::copy_from_slice(input.take_some());
                // A send that would have to wait is abandoned.
                let _sent = pin!(bearers[which].send(sdu)).poll(&mut cx);
            }
            3 => {
                if let Some(count) = read(&bearers[which], &mut cx) {
                    assert!(last[which] < Some(count), "{:?}, then {count}", last[which]);
                    last[which] = Some(count);
                }
            }
            4 => {
                let from = SocketAddr::from(([10, 0, 0, 1], input.word()));
                inbox.lock().expect("nobody panicked").push_back((from, BytesMut::from(input.take_some())));
                came += 1;
            }
            _ => {
                let message = match input.byte() % 8 {
                    0 => GtpuMessage::EchoRequest,
                    1 => GtpuMessage::EndMarker,
                    _ => GtpuMessage::Data,
                };
                let payload = input.take_some();
                let mut datagram = vec![0; Gtpu::BYTES];
                Gtpu::new(message, which as u32 + 1, payload.len()).write(&mut datagram);
                datagram.extend_from_slice(payload);
                inbox.lock().expect("nobody panicked").push_back((peer, BytesMut::from(&datagram[..])));
                came += 1;
            }
        }
        // The node's driver never ends by itself.
        assert!(Pin::new(&mut driver).poll(&mut cx).is_pending());
    }
    assert!(inbox.lock().expect("nobody panicked").is_empty());
    let counters = node.counters();
    // A datagram may be counted once at most.
    assert!(counters.malformed + counters.no_tunnel + counters.echoes <= came);
    assert_eq!(counters.opened_by_device + counters.protected_by_device, 0);
    for bearer in &bearers {
        let unread = core::iter::from_fn(|| read(bearer, &mut cx)).count();
        assert!(unread * 256 <= BUFFER, "{unread} wait");
    }
}

/// Returns the COUNT of the next SDU, if there is one.
fn read(bearer: &Bearer, cx: &mut Context<'_>) -> Option<u32> {
    match pin!(bearer.receive()).poll(cx) {
        Poll::Ready(sdu) => Some(sdu?.count),
        Poll::Pending => None,
    }
}

fn keys(bearer: u32, epoch: u8) -> [Security; 2] {
    [(Direction::Downlink, 0), (Direction::Uplink, 1)].map(|(direction, way)| {
        let key = Key::new(Algorithm::Aes128, &[epoch.wrapping_mul(2).wrapping_add(way); 16]).expect("16 bytes");
        Security::new(bearer as u8, direction).expect("a bearer").ciphered(key)
    })
}

const BUFFER: usize = 16 << 10;
