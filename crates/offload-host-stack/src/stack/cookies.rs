//! SYN cookies (RFC 4987 3.6): a listener with a full SYN queue answers further SYNs without storing state. The client
//! returns the state: in its acknowledgment of the SYN-ACK's sequence number, and in the echo of the timestamp.
//!
//! Invariants:
//! - A SYN answered here adds no state to the stack.
//! - A connection is created only if the ACK returns a cookie that this host made for the same flow and the same client
//!   sequence number, at most two [`PERIOD`]s ago.

use super::Stack;
use crate::tcp::connection::{Connection, timestamp};
use crate::tcp::segment::{Flags, Options, Segment};
use crate::tcp::state::TcpState;
use core::hash::{BuildHasher, Hasher};
use core::time::Duration;
use offload_api::{FlowKey, NetDevice};
use offload_base::{Instant, Seq};

impl Stack {
    /// Answers a SYN without storing state. Returns false if no cookie can encode the SYN's segment size.
    pub(super) fn answer_with_cookie(
        &mut self,
        now: Instant,
        flow: FlowKey,
        segment: &Segment,
        device: &mut dyn NetDevice,
    ) -> bool {
        let offered = segment.options.mss.unwrap_or(SEGMENT_SIZES[1]);
        let Some(size) = SEGMENT_SIZES.iter().rposition(|size| *size <= offered) else { return false };
        let cookie = self.cookie(&flow, segment.seq, size, period(now));
        let kept = SynOptions::from_options(&segment.options);
        let fingerprint = self.fingerprint(&flow);
        // This temporary connection only sends the SYN-ACK.
        let mut connection = Connection::new(flow, TcpState::SynReceived, cookie, fingerprint, &self.config.tcp);
        // The SYN-ACK is built by an ordinary connection, so that its options equal those of a stateful answer.
        let mut env = self.env(now);
        connection.on_first_syn(&mut env, &kept.rebuild_syn(segment.seq, SEGMENT_SIZES[size], segment));
        connection.set_back_timestamps(kept.shift(timestamp((fingerprint >> 32) as u32, now)));
        connection.transmit(&mut env, device);
        self.counters.cookies_sent += 1;
        true
    }

    /// Returns a new connection in SYN-RECEIVED, not yet in the table, if `segment` acknowledges a valid cookie.
    pub(super) fn on_cookie(&mut self, now: Instant, flow: FlowKey, segment: &Segment) -> Option<Connection> {
        let ack = segment.ack.filter(|_| !segment.flags.syn && !segment.flags.rst)?;
        // The handshake's ACK acknowledges the SYN-ACK, and its own sequence number follows the client's SYN.
        let (cookie, client) = (ack - 1, segment.seq - 1);
        let size = (cookie.0 % SEGMENT_SIZES.len() as u32) as usize;
        let made = [0, 1].map(|ago| period(now).checked_sub(ago));
        let made = made.into_iter().flatten().any(|period| self.cookie(&flow, client, size, period) == cookie);
        if !made {
            self.counters.cookies_failed += 1;
            return None;
        }
        // Without timestamps the options are lost, and the connection continues without options.
        self.counters.cookies_received += 1;
        let echo = segment.options.timestamps.map(|timestamps| timestamps.echo);
        let kept = echo.map_or(SynOptions::default(), SynOptions::from_echo);
        let fingerprint = self.fingerprint(&flow);
        let mut connection = Connection::new(flow, TcpState::SynReceived, cookie, fingerprint, &self.config.tcp);
        let mut env = self.env(now);
        connection.on_syn_of_cookie(&mut env, &kept.rebuild_syn(client, SEGMENT_SIZES[size], segment));
        Some(connection)
    }

    /// Returns a keyed hash of the flow, client number and period. The lowest bits hold the index of the segment size.
    fn cookie(&self, flow: &FlowKey, client: Seq, size: usize, period: u64) -> Seq {
        let mut hasher = self.key.build_hasher();
        hasher.write(b"cookie");
        hasher.write_u64(self.fingerprint(flow));
        hasher.write_u64(period);
        hasher.write_u64(u64::from(client.0) << 8 | size as u64);
        Seq(hasher.finish() as u32 & !(SEGMENT_SIZES.len() as u32 - 1) | size as u32)
    }
}

/// SYN options encoded in a timestamp. Empty if the client sends no timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SynOptions {
    window_scale: Option<u8>,
    sack: bool,
}

impl SynOptions {
    fn from_options(options: &Options) -> SynOptions {
        if options.timestamps.is_none() {
            return SynOptions::default();
        }
        SynOptions { window_scale: options.window_scale, sack: options.sack_permitted }
    }

    fn from_echo(echo: u32) -> SynOptions {
        let scale = (echo & 15) as u8;
        SynOptions { window_scale: (scale != NO_SCALE).then_some(scale), sack: echo & 16 != 0 }
    }

    /// Returns how far `timestamp` is set back so that its lowest bits encode these options.
    fn shift(self, timestamp: u32) -> u32 {
        let bits = u32::from(self.window_scale.unwrap_or(NO_SCALE)) | u32::from(self.sack) << 4;
        timestamp.wrapping_sub(bits) & 31
    }

    /// Reconstructs the client's SYN from the known options.
    fn rebuild_syn(self, seq: Seq, mss: u16, segment: &Segment) -> Segment {
        Segment {
            seq,
            ack: None,
            flags: Flags { syn: true, ..Flags::default() },
            options: Options {
                mss: Some(mss),
                window_scale: self.window_scale,
                sack_permitted: self.sack,
                timestamps: segment.options.timestamps,
                ..Options::default()
            },
            ..segment.clone()
        }
    }
}

fn period(now: Instant) -> u64 {
    (now - Instant::ZERO).as_secs() / PERIOD.as_secs()
}

/// Time for which a SYN queue must be full before cookies are sent. Most clients of a burst finish their handshakes
/// sooner, and a dropped client repeats its SYN.
pub(super) const COOKIE_GRACE: Duration = Duration::from_millis(200);
/// Time without a full SYN queue after which a new series begins. It is shorter than a client's SYN retransmission
/// timeout.
pub(super) const LULL: Duration = Duration::from_millis(500);
/// Time after the last cookie during which cookies are accepted, and sent without a grace time.
pub(super) const ACCEPT_TIME: Duration = Duration::from_secs(2 * PERIOD.as_secs());
/// Period of cookies. A cookie is valid until the end of the period after its own.
const PERIOD: Duration = Duration::from_secs(64);
/// Segment sizes that a cookie can encode. A cookie holds the largest one that the client accepts.
const SEGMENT_SIZES: [u16; 8] = [256, 536, 1220, 1360, 1400, 1440, 1460, 8960];
/// Code for no window scaling. Real shifts are at most 14 (RFC 7323 2.3).
const NO_SCALE: u8 = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_encodes_the_options_within_32_ticks() {
        for window_scale in (0..=14).map(Some).chain([None]) {
            for sack in [false, true] {
                let kept = SynOptions { window_scale, sack };
                for now in [0, 5, 31, 32, 1000, u32::MAX] {
                    let shift = kept.shift(now);
                    assert!(shift < 32);
                    assert_eq!(SynOptions::from_echo(now.wrapping_sub(shift)), kept);
                }
            }
        }
    }
}
