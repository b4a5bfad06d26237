//! Measurements of services, window by window.

use crate::Service;
use crate::queueing::QueueModel;

/// Demand of packets at a service.
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
pub struct ServiceDemand {
    packets: u64,
    serial: u64,
    /// Sum of the service times of one instance, in ns.
    sum: f64,
    sum_of_squares: f64,
    longest: f64,
}

impl ServiceDemand {
    pub(crate) fn note(&mut self, serial: bool, blocks: u32, block_ps: u64) {
        let ns = f64::from(blocks) * block_ps as f64 / 1000.0;
        self.packets += 1;
        self.serial += u64::from(serial);
        self.sum += ns;
        self.sum_of_squares += ns * ns;
        self.longest = self.longest.max(ns);
    }

    /// Adds the demand of another window.
    pub fn add(&mut self, other: &ServiceDemand) {
        self.packets += other.packets;
        self.serial += other.serial;
        self.sum += other.sum;
        self.sum_of_squares += other.sum_of_squares;
        self.longest = self.longest.max(other.longest);
    }

    /// Returns the number of packets, including refused ones.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the mean time of one instance for a packet.
    pub fn mean_ns(&self) -> f64 {
        self.sum / (self.packets.max(1)) as f64
    }

    /// Returns the total time of one instance.
    pub(crate) fn total_ns(&self) -> f64 {
        self.sum
    }

    /// Returns the time of one instance for the longest packet.
    pub(crate) fn longest_ns(&self) -> f64 {
        self.longest
    }

    /// Returns the squared coefficient of variation of the service times.
    pub fn variation(&self) -> f64 {
        let mean = self.mean_ns();
        if mean == 0.0 {
            return 0.0;
        }
        (self.sum_of_squares / self.packets.max(1) as f64 / (mean * mean) - 1.0).max(0.0)
    }

    /// Models the demand of a window of `window_ns` as a queue before these instances. If blocks need no order, all
    /// instances work on one packet, which is M/G/1 with a faster server. Otherwise the queue is M/G/c.
    pub fn queue(&self, window_ns: f64, instances: u32) -> QueueModel {
        let arrivals = self.packets as f64 / window_ns;
        // A single serial packet makes the model treat all packets as serial.
        let together = self.serial == 0;
        QueueModel {
            arrivals,
            service: if together { self.mean_ns() / f64::from(instances) } else { self.mean_ns() },
            variation: self.variation(),
            servers: if together { 1 } else { instances },
        }
    }
}

/// Measurements of a service in a window.
///
/// See [`ServiceDemand`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceWindow {
    /// The service.
    pub service: Service,
    /// Number of instances, including ones under configuration.
    pub instances: u32,
    /// Number of packets waiting now.
    pub waiting: usize,
    /// Demand in the window.
    pub work: ServiceDemand,
}
