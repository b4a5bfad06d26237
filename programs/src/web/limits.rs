//! Limits of clients at a server: time for each step, slots, and memory for unread answers.
//!
//! Invariant: a slot and a charge are returned on drop, however the connection ends.

use clap::Args;
use core::net::IpAddr;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use offload_base::slots::{ConnectionSlot, ConnectionSlots};
use offload_cli::options::bytes;
use std::sync::Arc;

/// Command-line options of the limits.
#[derive(Args, Clone, Debug)]
pub struct LimitOptions {
    /// Seconds for a client's TLS handshake
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = seconds(), requires = "end")]
    handshake_timeout: u64,
    /// Seconds from the first byte of a request to the end of its header
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = seconds(), requires = "end")]
    header_timeout: u64,
    /// Seconds for each 16 KiB of a request's body
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = seconds(), requires = "end")]
    body_timeout: u64,
    /// Seconds without a request, before the first request and between two
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = seconds(), requires = "end")]
    idle_timeout: u64,
    /// Seconds without an acknowledged byte, or without room for the next piece of an answer (256 KiB at most)
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = seconds(), requires = "end")]
    stall_timeout: u64,
    /// Maximum of connections at a time, over all ports of the web server. A further one replaces a connection without a request under way, and
    /// is reset if all have requests
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536), requires = "end")]
    max_connections: u32,
    /// Memory for answers that clients have not acknowledged, over all connections. If used up, each connection may
    /// still queue a quarter MiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = bytes, requires = "end")]
    max_memory: u64,
}

fn seconds() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=86_400)
}

impl LimitOptions {
    /// Returns the limit of simultaneous connections.
    pub fn max_connections(&self) -> usize {
        self.max_connections as usize
    }

    /// Returns the limits of these options.
    pub fn limits(&self) -> WebLimits {
        WebLimits {
            handshake: Duration::from_secs(self.handshake_timeout),
            header: Duration::from_secs(self.header_timeout),
            body: Duration::from_secs(self.body_timeout),
            idle: Duration::from_secs(self.idle_timeout),
            stall: Duration::from_secs(self.stall_timeout),
            capacity: Capacity::new(self.max_connections as usize, self.max_memory as usize),
        }
    }
}

/// Limits of the clients of one server, or of several. Clones share one [`Capacity`].
///
/// ```
/// use core::time::Duration;
/// use offload_programs::web::limits::WebLimits;
///
/// let limits = WebLimits::default();
/// assert_eq!((limits.handshake, limits.idle), (Duration::from_secs(10), Duration::from_secs(60)));
/// ```
#[derive(Clone, Debug)]
pub struct WebLimits {
    /// Time limit of a TLS handshake.
    pub handshake: Duration,
    /// Time limit from the first byte of a request to the end of its header.
    pub header: Duration,
    /// Time limit of each [`MIN_OF_A_BODY`] bytes of a request's body.
    pub body: Duration,
    /// Time limit without a request.
    pub idle: Duration,
    /// Time limit until the next piece of an answer is accepted, and until a byte is acknowledged.
    pub stall: Duration,
    /// The slots and the memory of all clients.
    pub capacity: Arc<Capacity>,
}

impl WebLimits {
    /// Returns limits that are never reached, for trusted clients.
    pub fn none() -> WebLimits {
        let never = Duration::from_secs(86_400);
        let capacity = Capacity::new(usize::MAX, usize::MAX);
        WebLimits { handshake: never, header: never, body: never, idle: never, stall: never, capacity }
    }
}

/// The default limits of the programs.
impl Default for WebLimits {
    fn default() -> WebLimits {
        WebLimits {
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            capacity: Capacity::new(1024, 256 << 20),
        }
    }
}

/// Slots for connections, and memory for unacknowledged bytes.
///
/// ```
/// use offload_programs::web::limits::Capacity;
///
/// let capacity = Capacity::new(1, 1 << 20);
/// let address = [192, 0, 2, 1].into();
/// let slot = capacity.enter(address).unwrap();
/// slot.set_busy();
/// assert!(capacity.enter(address).is_none());
/// drop(slot);
/// assert!(capacity.enter(address).is_some());
/// ```
#[derive(Debug)]
pub struct Capacity {
    slots: ConnectionSlots,
    most_bytes: usize,
    bytes: AtomicUsize,
}

impl Capacity {
    /// Creates a capacity of `most_connections` slots and `most_bytes` bytes.
    pub fn new(most_connections: usize, most_bytes: usize) -> Arc<Capacity> {
        Arc::new(Capacity { slots: ConnectionSlots::new(most_connections), most_bytes, bytes: AtomicUsize::new(0) })
    }

    /// Takes a slot for a connection from `address`, if need be the slot of a connection without a request under way.
    pub fn enter(&self, address: IpAddr) -> Option<ConnectionSlot> {
        self.slots.acquire(address)
    }

    /// Returns the charged bytes.
    pub fn charged(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of a file to read at a time.
    pub(super) fn piece_bytes(&self) -> usize {
        if self.is_used_up() { SMALL_PIECE } else { PIECE }
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.charged() >= self.most_bytes
    }
}

/// Memory in use, charged to a [`Capacity`].
#[derive(Debug)]
pub(super) struct Charge {
    capacity: Arc<Capacity>,
    bytes: usize,
}

impl Charge {
    pub(super) fn new(capacity: Arc<Capacity>, bytes: usize) -> Charge {
        let mut charge = Charge { capacity, bytes: 0 };
        charge.set(bytes);
        charge
    }

    /// Changes the charge.
    pub(super) fn set(&mut self, bytes: usize) {
        // Only the difference is added or subtracted, so that other charges may change at the same time.
        if bytes >= self.bytes {
            self.capacity.bytes.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            self.capacity.bytes.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Returns the charge.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the most bytes that a connection may queue now: no limit, or a small one if memory is used up.
    pub(super) fn most(&self) -> usize {
        if self.capacity.is_used_up() { FLOOR } else { usize::MAX }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Bytes of a body that a client must send in each [`WebLimits::body`].
pub const MIN_OF_A_BODY: u64 = 16 << 10;
/// Bytes of a file that are read at a time, and below, if memory is used up.
const PIECE: usize = 256 << 10;
const SMALL_PIECE: usize = 16 << 10;
/// Bytes that a connection may queue even if memory is used up.
const FLOOR: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_add_up_and_come_back() {
        let capacity = Capacity::new(1, 100);
        let (mut one, two) = (Charge::new(capacity.clone(), 60), Charge::new(capacity.clone(), 30));
        assert_eq!((capacity.charged(), one.most(), capacity.piece_bytes()), (90, usize::MAX, PIECE));
        one.set(70);
        assert_eq!((capacity.charged(), two.most(), capacity.piece_bytes()), (100, FLOOR, SMALL_PIECE));
        one.set(10);
        assert_eq!((capacity.charged(), one.bytes()), (40, 10));
        drop((one, two));
        assert_eq!(capacity.charged(), 0);
    }
}
