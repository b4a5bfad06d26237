//! Tracks whether the peer has received the request for a shorter acknowledgment delay.
//!
//! The state machine does not report this. But a path's congestion controller sees the request being sent, and the fate
//! of its packet. So this module wraps the real controller (CUBIC) and leaves its decisions unchanged.
//!
//! The information is needed twice. The expected delay of an answer depends on it. And until the packet is acknowledged
//! or lost, the state machine must send datagrams one by one: if it sends two probes at once, the second has no more
//! room than the first used, and the state machine writes the request there without checking and panics (noq-proto
//! 1.4.0: `populate_packet`).

use core::any::Any;
use core::time::Duration;
use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// The state of a connection's request.
#[derive(Debug, Default)]
pub(crate) struct AckDelayState(AtomicU8);

impl AckDelayState {
    /// Tests whether the peer has acknowledged the request.
    pub(crate) fn is_agreed(&self) -> bool {
        self.0.load(Ordering::Relaxed) == AGREED
    }

    /// Tests whether the request is unsent, or sent with unknown fate.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed) == OPEN
    }
}

/// A factory of controllers for a connection's paths.
#[derive(Debug, Default)]
pub(crate) struct WatchedControllerFactory {
    pub(crate) asked: Arc<AckDelayState>,
    inner: Arc<CubicConfig>,
}

impl ControllerFactory for WatchedControllerFactory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let inner = self.inner.clone().build(now, mtu);
        Box::new(WatchedController { inner, asked: self.asked.clone(), request: AckDelayRequest::None })
    }
}

#[derive(Debug)]
struct WatchedController {
    inner: Box<dyn Controller>,
    asked: Arc<AckDelayState>,
    request: AckDelayRequest,
}

/// The packet with the request.
#[derive(Clone, Copy, Debug)]
enum AckDelayRequest {
    None,
    /// The next packet carries the request.
    Next,
    /// The packet was sent. Its number alone does not identify it, because handshake packets have the same numbers.
    Sent {
        at: Instant,
        bytes: u64,
        number: u64,
    },
}

impl WatchedController {
    fn finish_request(&mut self, number: u64, bytes: u64, at: Option<Instant>, state: u8) {
        let AckDelayRequest::Sent { at: sent, bytes: of, number: wanted } = self.request else { return };
        // All known properties must match, because packet numbers repeat between packet number spaces.
        if (number, bytes) == (wanted, of) && at.is_none_or(|at| at == sent) {
            self.request = AckDelayRequest::None;
            self.asked.0.store(state, Ordering::Relaxed);
        }
    }
}

impl Controller for WatchedController {
    fn on_ack_frequency_update(&mut self, threshold: u64, delay: Duration) {
        self.request = AckDelayRequest::Next;
        self.inner.on_ack_frequency_update(threshold, delay);
    }

    fn on_packet_sent(&mut self, now: Instant, bytes: u16, number: u64) {
        if let AckDelayRequest::Next = self.request {
            self.request = AckDelayRequest::Sent { at: now, bytes: bytes.into(), number };
        }
        self.inner.on_packet_sent(now, bytes, number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, number: u64, limited: bool, rtt: &RttEstimator) {
        self.finish_request(number, bytes, Some(sent), AGREED);
        self.inner.on_ack(now, sent, bytes, number, limited, rtt);
    }

    fn on_packet_lost(&mut self, bytes: u16, number: u64, now: Instant) {
        // The state machine does not repeat the request.
        self.finish_request(number, bytes.into(), None, LOST);
        self.inner.on_packet_lost(bytes, number, now);
    }

    fn on_sent(&mut self, now: Instant, bytes: u64, largest: u64) {
        self.inner.on_sent(now, bytes, largest);
    }

    fn on_cwnd_limited(&mut self) {
        self.inner.on_cwnd_limited();
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, lasting: bool, ecn: bool, lost: u64, largest: u64) {
        self.inner.on_congestion_event(now, sent, lasting, ecn, lost, largest);
    }

    fn on_spurious_congestion_event(&mut self) {
        self.inner.on_spurious_congestion_event();
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.inner.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(WatchedController { inner: self.inner.clone_box(), asked: self.asked.clone(), request: self.request })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self.inner.into_any()
    }
}

const OPEN: u8 = 0;
const AGREED: u8 = 1;
const LOST: u8 = 2;
