//! Limits of the peer and the path: options of the peer's SYN, the segment size, and ICMP errors.

use super::connection::{Connection, ConnectionEnv};
use super::recv_queue::TcpReceiveQueue;
use super::report::ConnectionError;
use super::segment::{HEADER_BYTES, Segment, TIMESTAMPS_BYTES};
use super::state::TcpState;
use offload_api::{FlowKey, PathCaps};
use offload_base::Seq;
use offload_formats::IpVersion;

impl Connection {
    /// Applies the options and the window of the peer's SYN.
    pub(super) fn apply_syn(&mut self, env: &mut ConnectionEnv<'_>, segment: &Segment) {
        let options = &segment.options;
        self.receive = TcpReceiveQueue::new(segment.seq, env.config.initial_receive_buffer, env.config.receive_buffer);
        // A lower bound prevents a peer from requesting tiny segments.
        self.peer.mss = options.mss.unwrap_or(default_mss(&self.flow) as u16).max(MIN_MSS);
        self.peer.sack = env.config.sack && options.sack_permitted;
        if env.config.window_scaling
            && let Some(shift) = options.window_scale
        {
            self.peer.scales = true;
            self.peer.window_shift = shift;
        } else {
            self.window_scale = 0;
        }
        if env.config.timestamps
            && let Some(timestamps) = options.timestamps
        {
            self.peer.timestamp = Some((timestamps.value, env.now));
        }
        self.ecn.apply_syn(env.config.ecn, segment);
        // RFC 7323 2.2: the window of a SYN is not scaled.
        self.peer.window = u64::from(segment.window);
        self.peer.max_window = self.peer.window;
        self.peer.window_seq = segment.seq;
        self.peer.window_ack = self.una;
    }

    /// Adapts the segment size to path and peer. Options reduce the payload (RFC 6691).
    pub(super) fn fit_mss(&mut self, caps: &PathCaps) {
        let mss = self.mss_for(caps.mtu);
        if mss != self.mss {
            self.mss = mss;
            self.congestion.set_mss(mss as u64);
        }
    }

    /// Returns the length of the IP header of this connection's packets.
    pub(super) fn ip_bytes(&self) -> usize {
        IpVersion::of_address(&self.flow.remote.ip()).header_bytes()
    }

    fn mss_for(&self, mtu: u16) -> usize {
        let path = usize::from(mtu).saturating_sub(self.ip_bytes() + HEADER_BYTES);
        let options = if self.peer.timestamp.is_some() { TIMESTAMPS_BYTES } else { 0 };
        path.min(usize::from(self.peer.mss)).saturating_sub(options).max(1)
    }

    /// Returns whether `seq` is in flight. An ICMP error about another segment is late or forged (RFC 5927 4.1).
    pub(crate) fn is_in_flight(&self, seq: Seq) -> bool {
        self.send.position(seq).is_some_and(|position| self.una <= position && position < self.next)
    }

    /// Reduces the path MTU to `mtu` bytes. The larger packets in flight were dropped on the path. They are sent again,
    /// without a congestion response (RFC 1191 6.5).
    pub(crate) fn on_path_narrowed(&mut self, mtu: u16) {
        let mss = self.mss_for(mtu);
        if self.state.is_opening() || self.state == TcpState::Closed || mss >= self.mss {
            return;
        }
        self.mss = mss;
        self.congestion.set_mss(mss as u64);
        self.flight.lose_all();
        // The timers of loss detection are stopped, because the loss is already known.
        if self.repair.resend_until(self.next) {
            self.deadlines.probe = None;
            self.deadlines.reorder = None;
        }
    }

    /// Handles an error that reports the peer as unreachable or not listening. It ends only an opening connection,
    /// because the error may be transient (RFC 1122 4.2.3.9).
    pub(crate) fn on_undeliverable(&mut self, env: &mut ConnectionEnv<'_>, error: ConnectionError) {
        if self.state == TcpState::SynSent {
            env.counters.attempt_fails += 1;
            self.fail(error);
        }
    }
}

/// Returns the segment size of a peer that announces no size (RFC 9293 3.7.1).
pub(super) fn default_mss(flow: &FlowKey) -> usize {
    match IpVersion::of_address(&flow.remote.ip()) {
        IpVersion::V4 => 536,
        IpVersion::V6 => 1220,
    }
}

/// Returns the window scale with which a window of `bytes` fits into 16 bits.
pub(super) fn shift_for(bytes: usize) -> u8 {
    (0..14).find(|shift| bytes >> shift <= usize::from(u16::MAX)).unwrap_or(14)
}

/// Minimum segment size: Linux's tcp_min_snd_mss, after CVE-2019-11479.
const MIN_MSS: u16 = 48;
