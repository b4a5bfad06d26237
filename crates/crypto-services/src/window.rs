//! What a monitor sees of services, window by window.

use crate::Service;
use crate::queueing::Queue;

/// What packets asked of a service.
///
/// ```
/// use crypto_services::{Fabric, FabricConfig, Packet, Suite, TransformDirection};
///
/// let mut fabric = Fabric::new(FabricConfig::default());
/// let chain = fabric.add_chain(Suite::ChaCha20Poly1305.graph(TransformDirection::Apply), 1)?;
/// fabric.offer(0.0, Packet { chain, flow: 1, bytes: 160, name: 0 })?;
/// let [chacha, poly1305] = fabric.take_window().try_into().expect("two services");
/// assert_eq!((chacha.work.packets(), chacha.instances), (1, 1));
/// assert!(chacha.work.mean_ns() > poly1305.work.mean_ns());
/// # Ok::<(), crypto_services::FabricError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    packets: u64,
    serial: u64,
    /// Of one instance, in ns.
    sum: f64,
    sum_of_squares: f64,
    longest: f64,
}

impl Work {
    pub(crate) fn note(&mut self, serial: bool, blocks: u32, block_ps: u64) {
        let ns = f64::from(blocks) * block_ps as f64 / 1000.0;
        self.packets += 1;
        self.serial += u64::from(serial);
        self.sum += ns;
        self.sum_of_squares += ns * ns;
        self.longest = self.longest.max(ns);
    }

    /// Adds what was asked for in another window.
    pub fn add(&mut self, other: &Work) {
        self.packets += other.packets;
        self.serial += other.serial;
        self.sum += other.sum;
        self.sum_of_squares += other.sum_of_squares;
        self.longest = self.longest.max(other.longest);
    }

    /// Packets that asked for it, those that were refused with them.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// How long one instance works on a packet, on average.
    pub fn mean_ns(&self) -> f64 {
        self.sum / (self.packets.max(1)) as f64
    }

    /// All of it, by one instance.
    pub(crate) fn total_ns(&self) -> f64 {
        self.sum
    }

    /// How long one instance works on the longest packet.
    pub(crate) fn longest_ns(&self) -> f64 {
        self.longest
    }

    /// The squared coefficient of variation of those times.
    pub fn variation(&self) -> f64 {
        let mean = self.mean_ns();
        if mean == 0.0 {
            return 0.0;
        }
        (self.sum_of_squares / self.packets.max(1) as f64 / (mean * mean) - 1.0).max(0.0)
    }

    /// As a queue before so many instances, had it come in a window of `window_ns`. Where blocks need no order, all instances work on one packet:
    /// M/G/1 that is so many times as fast. Where they do, it is M/G/c.
    pub fn queue(&self, window_ns: f64, instances: u32) -> Queue {
        let arrivals = self.packets as f64 / window_ns;
        let together = self.serial == 0;
        Queue {
            arrivals,
            service: if together { self.mean_ns() / f64::from(instances) } else { self.mean_ns() },
            variation: self.variation(),
            servers: if together { 1 } else { instances },
        }
    }
}

/// A service in a window.
///
/// See [`Work`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceWindow {
    /// The service.
    pub service: Service,
    /// Instances that it is to have: those that work, and those that are being configured.
    pub instances: u32,
    /// Packets that wait for it now.
    pub waiting: usize,
    /// What it was asked for.
    pub work: Work,
}
