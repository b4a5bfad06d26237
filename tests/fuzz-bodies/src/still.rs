//! A socket and a clock controlled by a fuzz target.

use bytes::BytesMut;
use core::net::SocketAddr;
use core::task::{Context, Poll};
use offload_api::{
    Contexts, Datagram, DatagramSocket, EcnCodepoint, RxMeta, SendLimits, SendRefusal, SocketEvent, TxDatagram,
};
use offload_base::{Alarm, Clock, Instant, Timers};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Datagrams to be received, with their senders.
pub(crate) type Inbox = Arc<Mutex<VecDeque<(SocketAddr, BytesMut)>>>;

/// A socket without a device that discards sent datagrams.
pub(crate) struct Socket(pub(crate) Inbox);

impl DatagramSocket for Socket {
    fn poll_send(&mut self, _: &mut Context<'_>, batch: &mut VecDeque<TxDatagram>) -> Poll<Result<usize, SendRefusal>> {
        let sent = batch.drain(..).inspect(|datagram| assert!(datagram.ask.is_none(), "there is no device")).count();
        Poll::Ready(Ok(sent))
    }

    fn limits(&mut self, _: SocketAddr) -> SendLimits {
        SendLimits { bytes: 1472, segments: 64, segments_bytes: 65_507 }
    }

    fn poll_receive(&mut self, _: &mut Context<'_>, batch: &mut Vec<Datagram>, most: usize) -> Poll<io::Result<usize>> {
        let mut inbox = self.0.lock().expect("nobody panicked");
        let count = inbox.len().min(most);
        if count == 0 {
            return Poll::Pending;
        }
        batch.extend(inbox.drain(..count).map(|(from, data)| Datagram {
            from,
            to: SocketAddr::from(([10, 0, 0, 9], 443)),
            ecn: EcnCodepoint::NotCapable,
            data,
            meta: RxMeta::default(),
            joined: None,
        }));
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([10, 0, 0, 9], 443)))
    }

    fn control(&mut self, _: &mut dyn FnMut(&mut dyn Contexts)) -> bool {
        false
    }

    fn poll_device_event(&mut self, _: &mut Context<'_>) -> Poll<SocketEvent> {
        Poll::Pending
    }
}

/// A clock that advances only on request.
#[derive(Debug, Default)]
pub(crate) struct FuzzClock(pub(crate) AtomicU64);

impl Clock for FuzzClock {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl Timers for FuzzClock {
    fn alarm(&self) -> Box<dyn Alarm> {
        Box::new(SilentAlarm)
    }
}

/// An alarm that never fires, because the fuzz target polls.
struct SilentAlarm;

impl Alarm for SilentAlarm {
    fn poll(&mut self, _: &mut Context<'_>, _: Option<Instant>) -> Poll<()> {
        Poll::Pending
    }
}
