//! SYN cookies (RFC 4987 3.6): a listener whose half-open connections are as many as it may have goes on answering SYNs,
//! and keeps nothing. What it would have kept, the client sends back: in the acknowledgment of the SYN-ACK's sequence
//! number, and in the echo of its timestamp.
//!
//! Invariants: no state of the stack grows with the SYNs answered here; a connection is made only for who acknowledges a
//! number that this host made for this flow, from this client's number, at most two [`PERIOD`]s ago.

use super::Stack;
use crate::tcp::connection::{Connection, timestamp};
use crate::tcp::segment::{Flags, Options, Segment};
use crate::tcp::state::State;
use core::hash::{BuildHasher, Hasher};
use core::time::Duration;
use offload_api::{FlowKey, NetDevice};
use offload_base::{Instant, Seq};

impl Stack {
    /// Answers a SYN without keeping anything of it. False if what it says fits no cookie.
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
        let kept = Kept::of(&segment.options);
        let fingerprint = self.fingerprint(&flow);
        // It lives as long as it takes to send its SYN-ACK.
        let mut connection = Connection::new(flow, State::SynReceived, cookie, fingerprint, &self.config.tcp);
        let mut env = self.env(now);
        connection.on_first_syn(&mut env, &kept.syn(segment.seq, SEGMENT_SIZES[size], segment));
        connection.set_back_timestamps(kept.shift(timestamp((fingerprint >> 32) as u32, now)));
        connection.transmit(&mut env, device);
        self.counters.cookies_sent += 1;
        true
    }

    /// The connection that `segment` acknowledges the cookie of, if it does: in SYN-RECEIVED, and in the table.
    pub(super) fn on_cookie(&mut self, now: Instant, flow: FlowKey, segment: &Segment) -> Option<Connection> {
        let ack = segment.ack.filter(|_| !segment.flags.syn && !segment.flags.rst)?;
        let (cookie, client) = (ack - 1, segment.seq - 1);
        let size = (cookie.0 % SEGMENT_SIZES.len() as u32) as usize;
        let made = [0, 1].map(|ago| period(now).checked_sub(ago));
        let made = made.into_iter().flatten().any(|period| self.cookie(&flow, client, size, period) == cookie);
        if !made {
            self.counters.cookies_failed += 1;
            return None;
        }
        self.counters.cookies_received += 1;
        let echo = segment.options.timestamps.map(|timestamps| timestamps.echo);
        let kept = echo.map_or(Kept::default(), Kept::from_echo);
        let fingerprint = self.fingerprint(&flow);
        let mut connection = Connection::new(flow, State::SynReceived, cookie, fingerprint, &self.config.tcp);
        let mut env = self.env(now);
        connection.on_syn_of_cookie(&mut env, &kept.syn(client, SEGMENT_SIZES[size], segment));
        Some(connection)
    }

    /// A keyed hash of what the sequence number stands for, with the segment size in its lowest bits.
    fn cookie(&self, flow: &FlowKey, client: Seq, size: usize, period: u64) -> Seq {
        let mut hasher = self.key.build_hasher();
        hasher.write(b"cookie");
        hasher.write_u64(self.fingerprint(flow));
        hasher.write_u64(period);
        hasher.write_u64(u64::from(client.0) << 8 | size as u64);
        Seq(hasher.finish() as u32 & !(SEGMENT_SIZES.len() as u32 - 1) | size as u32)
    }
}

/// The options of a SYN that a timestamp holds; none of them without one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Kept {
    window_scale: Option<u8>,
    sack: bool,
}

impl Kept {
    fn of(options: &Options) -> Kept {
        if options.timestamps.is_none() {
            return Kept::default();
        }
        Kept { window_scale: options.window_scale, sack: options.sack_permitted }
    }

    fn from_echo(echo: u32) -> Kept {
        let scale = (echo & 15) as u8;
        Kept { window_scale: (scale != NO_SCALE).then_some(scale), sack: echo & 16 != 0 }
    }

    /// How far `timestamp` is to be set back so that it holds these.
    fn shift(self, timestamp: u32) -> u32 {
        let bits = u32::from(self.window_scale.unwrap_or(NO_SCALE)) | u32::from(self.sack) << 4;
        timestamp.wrapping_sub(bits) & 31
    }

    /// The client's SYN, as far as it is known.
    fn syn(self, seq: Seq, mss: u16, segment: &Segment) -> Segment {
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

/// How long a listener has to be full before it gives cookies: most of those who come in a burst finish their handshakes
/// in less, and one that did not get in asks again.
pub(super) const GRACE: Duration = Duration::from_millis(200);
/// When none has found it full for so long, the next begins a new series: less than a client waits until it asks again.
pub(super) const LULL: Duration = Duration::from_millis(500);
/// How long a listener takes cookies after it has given one, and gives more without waiting.
pub(super) const TAKEN_FOR: Duration = Duration::from_secs(2 * PERIOD.as_secs());
/// A cookie is good until the end of the period after the one it was made in.
const PERIOD: Duration = Duration::from_secs(64);
/// Segment sizes that a cookie can tell: the largest that the client takes is meant.
const SEGMENT_SIZES: [u16; 8] = [256, 536, 1220, 1360, 1400, 1440, 1460, 8960];
/// Stands for no window scaling; shifts go to 14 (RFC 7323 2.3).
const NO_SCALE: u8 = 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_holds_the_options_and_is_hardly_older() {
        for window_scale in (0..=14).map(Some).chain([None]) {
            for sack in [false, true] {
                let kept = Kept { window_scale, sack };
                for now in [0, 5, 31, 32, 1000, u32::MAX] {
                    let shift = kept.shift(now);
                    assert!(shift < 32);
                    assert_eq!(Kept::from_echo(now.wrapping_sub(shift)), kept);
                }
            }
        }
    }
}
