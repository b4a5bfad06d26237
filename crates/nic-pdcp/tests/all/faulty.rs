//! A socket with rare faults.

use core::net::SocketAddr;
use core::task::{Context, Poll};
use offload_api::{Contexts, Datagram, DatagramSocket, SendLimits, SendRefusal, SocketEvent, TxDatagram};
use offload_base::{Alarm, Instant};
use offload_host_stack::UdpSocket;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A socket that can fail its first sends, as with a firewall rule, accept nothing for a time, or deliver nothing.
pub(crate) struct Faulty {
    pub(crate) socket: UdpSocket,
    pub(crate) errors: usize,
    pub(crate) gate: Option<(Box<dyn Alarm>, Instant)>,
    /// While set, received datagrams are held back.
    pub(crate) keeps: Arc<AtomicBool>,
}

impl Faulty {
    /// Creates a socket without faults.
    pub(crate) fn new(socket: UdpSocket) -> Faulty {
        Faulty { socket, errors: 0, gate: None, keeps: Arc::default() }
    }
}

impl DatagramSocket for Faulty {
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut VecDeque<TxDatagram>,
    ) -> Poll<Result<usize, SendRefusal>> {
        if self.errors > 0 && !batch.is_empty() {
            self.errors -= 1;
            return Poll::Ready(Err(SendRefusal::Io(std::io::ErrorKind::PermissionDenied.into())));
        }
        if let Some((alarm, until)) = &mut self.gate {
            if alarm.poll(cx, Some(*until)).is_pending() {
                return Poll::Pending;
            }
            self.gate = None;
        }
        DatagramSocket::poll_send(&mut self.socket, cx, batch)
    }

    fn limits(&mut self, to: SocketAddr) -> SendLimits {
        DatagramSocket::limits(&mut self.socket, to)
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Vec<Datagram>,
        most: usize,
    ) -> Poll<std::io::Result<usize>> {
        if self.keeps.load(Relaxed) {
            return Poll::Pending;
        }
        DatagramSocket::poll_receive(&mut self.socket, cx, batch, most)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        DatagramSocket::local_addr(&self.socket)
    }

    fn control(&mut self, f: &mut dyn FnMut(&mut dyn Contexts)) -> bool {
        DatagramSocket::control(&mut self.socket, f)
    }

    fn poll_device_event(&mut self, cx: &mut Context<'_>) -> Poll<SocketEvent> {
        DatagramSocket::poll_device_event(&mut self.socket, cx)
    }
}
