//! Corruption: frames that arrive with one bit flipped.

use super::{Crossing, Impairment, Share};
use bytes::BytesMut;
use offload_base::Rng;
use offload_base::counters::Counters;

offload_base::counters! {
    /// Counters of corruption.
    pub struct CorruptCounters {
        /// Frames corrupted.
        pub corrupted: "wire_corrupted",
    }
}

/// An impairment that flips one bit, anywhere, in a share of the frames. The frame check sequence detects flips on a
/// line, and the frame is lost. This impairment models flips behind that check, in the memory of a switch.
///
/// ```
/// use offload_wire::impairment::{Corrupt, Crossing, Impairment, Share};
/// use offload_base::{Instant, Seed};
///
/// let mut corrupt = Corrupt::new(Share::ALWAYS, Seed(1).stream("corrupt"));
/// let sent = Crossing { frame: vec![0; 60].into(), arrives: Instant::ZERO };
/// corrupt.pass(sent, &mut |arrived| {
///     assert_eq!(arrived.frame.data.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
/// });
/// ```
#[derive(Debug)]
pub struct Corrupt {
    share: Share,
    rng: Rng,
    counters: CorruptCounters,
}

impl Corrupt {
    /// Corrupts `share` of the frames.
    pub fn new(share: Share, rng: Rng) -> Corrupt {
        Corrupt { share, rng, counters: CorruptCounters::default() }
    }
}

impl Impairment for Corrupt {
    fn pass(&mut self, mut crossing: Crossing, onward: &mut dyn FnMut(Crossing)) {
        if !crossing.frame.is_empty() && self.rng.chance(self.share.as_f64()) {
            // The bytes are copied, because the sender may keep them for a retransmission.
            let mut data = BytesMut::from(&crossing.frame.data[..]);
            let bit = self.rng.below(data.len() as u64 * 8);
            data[(bit / 8) as usize] ^= 1 << (bit % 8);
            crossing.frame = data.into();
            self.counters.corrupted += 1;
        }
        onward(crossing);
    }

    fn counters(&self) -> &dyn Counters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use offload_base::{Instant, Seed};

    #[test]
    fn every_bit_may_flip_in_a_copy_of_the_frame() {
        let sent = Frame::from(vec![0; 4]);
        let mut corrupt = Corrupt::new(Share::ALWAYS, Seed(1).stream("corrupt"));
        let mut flipped = 0;
        // Enough draws to hit each of the 32 bits almost certainly; the seed is fixed.
        for _ in 0..1000 {
            corrupt.pass(Crossing { frame: sent.clone(), arrives: Instant::ZERO }, &mut |arrived| {
                flipped |= u32::from_be_bytes(arrived.frame.data[..].try_into().expect("four bytes"));
            });
        }
        assert_eq!(flipped, u32::MAX);
        assert_eq!(sent, Frame::from(vec![0; 4]));
    }

    #[test]
    fn empty_frame_passes() {
        let mut corrupt = Corrupt::new(Share::ALWAYS, Seed(1).stream("corrupt"));
        let mut arrived = 0;
        corrupt.pass(Crossing { frame: Frame::default(), arrives: Instant::ZERO }, &mut |_| arrived += 1);
        assert_eq!(arrived, 1);
    }
}
