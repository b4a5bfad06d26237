//! Packets through a chain in virtual time, exact to the block.
//!
//! Within a stage, a block starts when it has arrived and the stage's interval since the block before has passed. It
//! leaves after the service's time. The times of a packet's blocks at a stage are the maximum of a few straight lines,
//! so the first and the last block determine all others. A packet therefore costs a few operations per stage, whatever
//! its length, and the result equals a simulation of every block.

use crate::ServiceChain;

/// A chain in operation. Packets leave in order of arrival.
///
/// ```
/// use crypto_services::{ServiceChain, Pipeline, Service};
///
/// let chain = ServiceChain::new(&[Service::Aes128, Service::Ghash])?;
/// let mut pipeline = Pipeline::new(&chain);
/// let first = pipeline.pass(0.0, 4);
/// let second = pipeline.pass(0.0, 4); // comes at the same time, and waits
/// assert_eq!(first.waited_ns, 0.0);
/// assert!((second.waited_ns - 4.0 * chain.bottleneck().interval_ns()).abs() < 1e-6);
/// # Ok::<(), crypto_services::ChainError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pipeline {
    stages: Vec<PipelineStage>,
}

#[derive(Clone, Copy, Debug)]
struct PipelineStage {
    interval: f64,
    block: f64,
    /// Time when the stage accepts the next block.
    free: f64,
}

/// Times of a packet.
///
/// See [`Pipeline`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacketTimes {
    /// Time when the last block left.
    pub left_ns: f64,
    /// Waiting time of the first block before the first stage.
    pub waited_ns: f64,
}

impl Pipeline {
    /// Creates an empty pipeline.
    pub fn new(chain: &ServiceChain) -> Pipeline {
        let state = |stage: &crate::ChainStage| PipelineStage {
            interval: stage.interval_ns(),
            block: stage.service.cost().block_ns,
            free: f64::NEG_INFINITY,
        };
        Pipeline { stages: chain.stages().iter().map(state).collect() }
    }

    /// Passes a packet of `blocks` blocks, at least one, that arrives at `now_ns`, no earlier than the packet before.
    pub fn pass(&mut self, now_ns: f64, blocks: u32) -> PacketTimes {
        let behind_first = f64::from(blocks.max(1) - 1);
        let waited_ns = self.stages.first().map_or(0.0, |stage| (stage.free - now_ns).max(0.0));
        let (mut first, mut last) = (now_ns, now_ns);
        for stage in &mut self.stages {
            first = first.max(stage.free) + stage.block;
            // The last block waits for its arrival or for the blocks before, whichever is later.
            last = (last + stage.block).max(first + behind_first * stage.interval);
            stage.free = last - stage.block + stage.interval;
        }
        PacketTimes { left_ns: last, waited_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Service;
    use offload_base::Seed;

    /// Simulates every block.
    fn block_by_block(chain: &ServiceChain, packets: &[(f64, u32)]) -> Vec<f64> {
        let mut free = vec![f64::NEG_INFINITY; chain.stages().len()];
        let each = packets.iter().map(|(now, blocks)| {
            let mut left = 0.0;
            for _ in 0..*blocks {
                let mut at = *now;
                for (stage, free) in chain.stages().iter().zip(&mut free) {
                    let start = at.max(*free);
                    *free = start + stage.interval_ns();
                    at = start + stage.service.cost().block_ns;
                }
                left = at;
            }
            left
        });
        each.collect()
    }

    #[test]
    fn closed_form_matches_every_block() {
        let mut rng = Seed(7).stream("pipeline");
        for round in 0..200 {
            let mut chain =
                ServiceChain::new(&[Service::Counter, Service::Aes128, Service::Zuc, Service::Ghash]).unwrap();
            (0..round % 9).for_each(|_| chain.grow());
            let mut now = 0.0;
            let packets: Vec<(f64, u32)> = (0..50)
                .map(|_| {
                    now += (rng.next_u64() % 4000) as f64;
                    (now, 1 + (rng.next_u64() % 92) as u32)
                })
                .collect();
            let mut pipeline = Pipeline::new(&chain);
            for (packet, left) in packets.iter().zip(block_by_block(&chain, &packets)) {
                let passed = pipeline.pass(packet.0, packet.1);
                assert!((passed.left_ns - left).abs() < 1e-3, "{passed:?}, {left}");
            }
        }
    }
}
