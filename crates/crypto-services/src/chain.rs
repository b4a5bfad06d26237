//! Chains of services.

use crate::Service;

/// A service of a chain with its number of instances.
///
/// See [`ServiceChain`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChainStage {
    /// The service.
    pub service: Service,
    /// Number of instances; blocks are distributed among the instances in turn.
    pub instances: u32,
}

impl ChainStage {
    /// Returns the nanoseconds between two blocks with all instances busy.
    pub fn interval_ns(&self) -> f64 {
        self.service.cost().block_ns / f64::from(self.instances)
    }
}

/// A cipher as a sequence of services that each block of a packet passes.
///
/// ```
/// use crypto_services::{ServiceChain, Service};
///
/// let mut chain = ServiceChain::new(&[Service::Aes128, Service::Counter, Service::Ghash])?;
/// assert_eq!(chain.bottleneck().service, Service::Aes128);
/// // Only the bottleneck is multiplied, and once GHASH is it, more AES brings nothing.
/// while chain.bottleneck().service == Service::Aes128 {
///     chain.grow();
/// }
/// assert_eq!(chain.bottleneck().service, Service::Ghash);
/// assert_eq!(chain.stages()[0].instances, 6);
/// # Ok::<(), crypto_services::ChainError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceChain {
    stages: Vec<ChainStage>,
}

/// Error in a list of services. A mistake of the caller.
///
/// ```
/// use crypto_services::{ServiceChain, ChainError};
///
/// assert_eq!(ServiceChain::new(&[]).err(), Some(ChainError::Empty));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// The list is empty.
    #[error("a chain has one service at least")]
    Empty,
    /// A service occurs twice. Use more instances instead.
    #[error("{0:?} stands in the chain twice: give it more instances instead")]
    Twice(Service),
}

impl ServiceChain {
    /// Creates a chain with one instance of each service.
    ///
    /// # Errors
    /// [`ChainError`] if the list is empty or contains a service twice.
    pub fn new(services: &[Service]) -> Result<ServiceChain, ChainError> {
        if services.is_empty() {
            return Err(ChainError::Empty);
        }
        for (index, service) in services.iter().enumerate() {
            if services[..index].contains(service) {
                return Err(ChainError::Twice(*service));
            }
        }
        Ok(ServiceChain {
            stages: services.iter().map(|service| ChainStage { service: *service, instances: 1 }).collect(),
        })
    }

    /// Returns the services in order.
    pub fn stages(&self) -> &[ChainStage] {
        &self.stages
    }

    /// Returns the service with the longest time between two blocks; the first one if there are several.
    pub fn bottleneck(&self) -> ChainStage {
        self.stages[self.slowest()]
    }

    /// Adds an instance to the bottleneck.
    pub fn grow(&mut self) {
        let slowest = self.slowest();
        self.stages[slowest].instances += 1;
    }

    /// Returns the area of all instances, in units of an AES-128 instance.
    pub fn area(&self) -> f64 {
        self.stages.iter().map(|stage| stage.service.cost().area * f64::from(stage.instances)).sum()
    }

    /// Returns the throughput in bits per second for long packets.
    pub fn capacity(&self) -> f64 {
        8.0 * crate::service::BLOCK * 1e9 / self.bottleneck().interval_ns()
    }

    /// Returns the chain with the fewest instances that carry this bit rate; `None` if it does not fit `area`.
    ///
    /// ```
    /// use crypto_services::{ServiceChain, Service};
    ///
    /// let chain = ServiceChain::new(&[Service::Aes128])?;
    /// let needed = chain.sized_for(25e9, f64::MAX).expect("there is room");
    /// assert_eq!(needed.stages()[0].instances, 52); // at 0.48 Gb/s each
    /// assert!(chain.sized_for(25e9, 51.0).is_none());
    /// # Ok::<(), crypto_services::ChainError>(())
    /// ```
    pub fn sized_for(&self, bits_a_second: f64, area: f64) -> Option<ServiceChain> {
        let interval = 8.0 * crate::service::BLOCK * 1e9 / bits_a_second;
        let mut sized = self.clone();
        for stage in &mut sized.stages {
            // Casts of large numbers saturate.
            stage.instances = ((stage.service.cost().block_ns / interval).ceil() as u32).max(1);
        }
        (sized.area() <= area).then_some(sized)
    }

    fn slowest(&self) -> usize {
        let mut slowest = 0;
        for (index, stage) in self.stages.iter().enumerate() {
            // Strictly greater, so that the first of equal stages wins.
            if stage.interval_ns() > self.stages[slowest].interval_ns() {
                slowest = index;
            }
        }
        slowest
    }
}
