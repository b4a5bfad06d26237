//! What peer and path take: the options of the peer's SYN, the segment size, and word from routers on the way.

use super::connection::{Connection, Env};
use super::recv_queue::ReceiveQueue;
use super::report::ConnectionError;
use super::segment::{HEADER_BYTES, Segment, TIMESTAMPS_BYTES};
use super::state::State;
use offload_api::{FlowKey, PathCaps};
use offload_base::Seq;
use offload_formats::IpVersion;

impl Connection {
    /// Learns from the peer's SYN.
    pub(super) fn learn(&mut self, env: &mut Env<'_>, segment: &Segment) {
        let options = &segment.options;
        self.receive = ReceiveQueue::new(segment.seq, env.config.initial_receive_buffer, env.config.receive_buffer);
        // A lower bound keeps a peer from asking for crumbs.
        self.peer.mss = options.mss.unwrap_or(default_mss(&self.flow) as u16).max(LEAST_MSS);
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
        self.ecn.learn(env.config.ecn, segment);
        // RFC 7323 2.2: the window of a SYN is not scaled.
        self.peer.window = u64::from(segment.window);
        self.peer.max_window = self.peer.window;
        self.peer.window_seq = segment.seq;
        self.peer.window_ack = self.una;
    }

    /// Takes up the segment size that path and peer allow. RFC 6691: options come out of it.
    pub(super) fn fit_mss(&mut self, caps: &PathCaps) {
        let mss = self.mss_for(caps.mtu);
        if mss != self.mss {
            self.mss = mss;
            self.congestion.set_mss(mss as u64);
        }
    }

    /// Bytes of the IP header in front of its segments.
    pub(super) fn ip_bytes(&self) -> usize {
        IpVersion::of_address(&self.flow.remote.ip()).header_bytes()
    }

    fn mss_for(&self, mtu: u16) -> usize {
        let path = usize::from(mtu).saturating_sub(self.ip_bytes() + HEADER_BYTES);
        let options = if self.peer.timestamp.is_some() { TIMESTAMPS_BYTES } else { 0 };
        path.min(usize::from(self.peer.mss)).saturating_sub(options).max(1)
    }

    /// Whether the segment at `seq` is one that is under way: a router that reports on another has guessed, or is late
    /// (RFC 5927 4.1).
    pub(crate) fn is_under_way(&self, seq: Seq) -> bool {
        self.send.position(seq).is_some_and(|position| self.una <= position && position < self.next)
    }

    /// The path takes packets of `mtu` bytes only. What is under way and was larger did not arrive; it is sent again,
    /// and no congestion is seen in it (RFC 1191 6.5).
    pub(crate) fn on_path_narrowed(&mut self, mtu: u16) {
        let mss = self.mss_for(mtu);
        if self.state.is_opening() || self.state == State::Closed || mss >= self.mss {
            return;
        }
        self.mss = mss;
        self.congestion.set_mss(mss as u64);
        self.flight.lose_all();
        if self.repair.resend_until(self.next) {
            self.deadlines.probe = None;
            self.deadlines.reorder = None;
        }
    }

    /// Word that the peer cannot be reached, or does not listen. An open connection may outlive it (RFC 1122 4.2.3.9).
    pub(crate) fn on_undeliverable(&mut self, env: &mut Env<'_>, error: ConnectionError) {
        if self.state == State::SynSent {
            env.counters.attempt_fails += 1;
            self.fail(error);
        }
    }
}

/// What a peer takes that does not say (RFC 9293 3.7.1).
pub(super) fn default_mss(flow: &FlowKey) -> usize {
    match IpVersion::of_address(&flow.remote.ip()) {
        IpVersion::V4 => 536,
        IpVersion::V6 => 1220,
    }
}

/// The shift by which a window of `bytes` fits into 16 bits.
pub(super) fn shift_for(bytes: usize) -> u8 {
    (0..14).find(|shift| bytes >> shift <= usize::from(u16::MAX)).unwrap_or(14)
}

/// Linux's tcp_min_snd_mss, after CVE-2019-11479.
const LEAST_MSS: u16 = 48;
