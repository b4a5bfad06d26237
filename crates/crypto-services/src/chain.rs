//! Services in a row.

use crate::Service;

/// A service of a chain, and how many instances of it there are.
///
/// See [`Chain`] for an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// The service.
    pub service: Service,
    /// Blocks go to them in turn.
    pub instances: u32,
}

impl Stage {
    /// Nanoseconds between blocks, with all instances at work.
    pub fn interval_ns(&self) -> f64 {
        self.service.cost().block_ns / f64::from(self.instances)
    }
}

/// A cipher: services that each block of a packet passes.
///
/// ```
/// use crypto_services::{Chain, Service};
///
/// let mut chain = Chain::new(&[Service::Aes128, Service::Counter, Service::Ghash])?;
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
pub struct Chain {
    stages: Vec<Stage>,
}

/// These services are no chain: the caller's mistake.
///
/// ```
/// use crypto_services::{Chain, ChainError};
///
/// assert_eq!(Chain::new(&[]).err(), Some(ChainError::Empty));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// There is no service.
    #[error("a chain has one service at least")]
    Empty,
    /// It stands in the chain twice: give it more instances instead.
    #[error("{0:?} stands in the chain twice: give it more instances instead")]
    Twice(Service),
}

impl Chain {
    /// With an instance of each.
    ///
    /// # Errors
    /// [`ChainError`] says why not.
    pub fn new(services: &[Service]) -> Result<Chain, ChainError> {
        if services.is_empty() {
            return Err(ChainError::Empty);
        }
        for (index, service) in services.iter().enumerate() {
            if services[..index].contains(service) {
                return Err(ChainError::Twice(*service));
            }
        }
        Ok(Chain { stages: services.iter().map(|service| Stage { service: *service, instances: 1 }).collect() })
    }

    /// Its services, in order.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The service that takes longest from block to block; of two alike, the first.
    pub fn bottleneck(&self) -> Stage {
        self.stages[self.slowest()]
    }

    /// Gives the bottleneck one more instance.
    pub fn grow(&mut self) {
        let slowest = self.slowest();
        self.stages[slowest].instances += 1;
    }

    /// Area of all instances, in units of an AES-128 instance.
    pub fn area(&self) -> f64 {
        self.stages.iter().map(|stage| stage.service.cost().area * f64::from(stage.instances)).sum()
    }

    /// Bits a second, of long packets.
    pub fn capacity(&self) -> f64 {
        8.0 * crate::service::BLOCK * 1e9 / self.bottleneck().interval_ns()
    }

    /// The least instances of each that carry so many bits a second; none if they do not fit `area`.
    ///
    /// ```
    /// use crypto_services::{Chain, Service};
    ///
    /// let chain = Chain::new(&[Service::Aes128])?;
    /// let needed = chain.sized_for(25e9, f64::MAX).expect("there is room");
    /// assert_eq!(needed.stages()[0].instances, 52); // at 0.48 Gb/s each
    /// assert!(chain.sized_for(25e9, 51.0).is_none());
    /// # Ok::<(), crypto_services::ChainError>(())
    /// ```
    pub fn sized_for(&self, bits_a_second: f64, area: f64) -> Option<Chain> {
        let interval = 8.0 * crate::service::BLOCK * 1e9 / bits_a_second;
        let mut sized = self.clone();
        for stage in &mut sized.stages {
            // A cast of what is too much gives the largest number.
            stage.instances = ((stage.service.cost().block_ns / interval).ceil() as u32).max(1);
        }
        (sized.area() <= area).then_some(sized)
    }

    fn slowest(&self) -> usize {
        let mut slowest = 0;
        for (index, stage) in self.stages.iter().enumerate() {
            if stage.interval_ns() > self.stages[slowest].interval_ns() {
                slowest = index;
            }
        }
        slowest
    }
}
