//! Limits of clients at a server: time for each step, slots, and memory for unread answers.
//!
//! Invariant: a slot and a charge are given back when they are dropped, however the connection ends.

use clap::Args;
use core::net::IpAddr;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use offload_base::slots::{ConnectionSlot, ConnectionSlots};
use offload_cli::options::bytes;
use std::sync::Arc;

/// The limits on the command line.
#[derive(Args, Clone, Debug)]
pub struct LimitOptions {
    /// Seconds that a client has for its TLS handshake
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = seconds(), requires = "end")]
    handshake_timeout: u64,
    /// Seconds from the first byte of a request to the end of its header
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = seconds(), requires = "end")]
    header_timeout: u64,
    /// Seconds that a client has for each 16 KiB of a request's body
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = seconds(), requires = "end")]
    body_timeout: u64,
    /// Seconds without a request, the first or another
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = seconds(), requires = "end")]
    idle_timeout: u64,
    /// Seconds without a byte acknowledged, or without room for the next piece of an answer (256 KiB at most)
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = seconds(), requires = "end")]
    stall_timeout: u64,
    /// Maximum of connections at a time, over all ports of the web server. A further one replaces a connection without a request under way, and
    /// is reset if all have requests
    #[arg(long, value_name = "COUNT", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536), requires = "end")]
    max_connections: u32,
    /// Memory for answers that clients have not taken, over all connections. Once it is used up, each connection has a
    /// quarter MiB
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = bytes, requires = "end")]
    max_memory: u64,
}

fn seconds() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=86_400)
}

impl LimitOptions {
    /// Connections at a time.
    pub fn max_connections(&self) -> usize {
        self.max_connections as usize
    }

    /// What they say.
    pub fn limits(&self) -> Limits {
        Limits {
            handshake: Duration::from_secs(self.handshake_timeout),
            header: Duration::from_secs(self.header_timeout),
            body: Duration::from_secs(self.body_timeout),
            idle: Duration::from_secs(self.idle_timeout),
            stall: Duration::from_secs(self.stall_timeout),
            capacity: Capacity::new(self.max_connections as usize, self.max_memory as usize),
        }
    }
}

/// What clients of one server, or of several, may take. Cloned, it is the same [`Capacity`].
///
/// ```
/// use core::time::Duration;
/// use offload_programs::web::limits::Limits;
///
/// let limits = Limits::default();
/// assert_eq!((limits.handshake, limits.idle), (Duration::from_secs(10), Duration::from_secs(60)));
/// ```
#[derive(Clone, Debug)]
pub struct Limits {
    /// For a TLS handshake.
    pub handshake: Duration,
    /// From the first byte of a request to the end of its header.
    pub header: Duration,
    /// For each [`LEAST_OF_A_BODY`] bytes of a request's body.
    pub body: Duration,
    /// Without a request.
    pub idle: Duration,
    /// For the next piece of an answer to be taken, and for a byte to be acknowledged.
    pub stall: Duration,
    /// The slots and the memory of all clients.
    pub capacity: Arc<Capacity>,
}

impl Limits {
    /// Limits that nobody meets: for clients that are known.
    pub fn none() -> Limits {
        let never = Duration::from_secs(86_400);
        let capacity = Capacity::new(usize::MAX, usize::MAX);
        Limits { handshake: never, header: never, body: never, idle: never, stall: never, capacity }
    }
}

/// What the programs have unless their options say something else.
impl Default for Limits {
    fn default() -> Limits {
        Limits {
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            capacity: Capacity::new(1024, 256 << 20),
        }
    }
}

/// Slots for connections, and memory for bytes that clients have not taken.
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
    /// For so many connections, and so many bytes.
    pub fn new(most_connections: usize, most_bytes: usize) -> Arc<Capacity> {
        Arc::new(Capacity { slots: ConnectionSlots::new(most_connections), most_bytes, bytes: AtomicUsize::new(0) })
    }

    /// Takes a slot for a connection from `address`, if need be the slot of a connection without a request under way.
    pub fn enter(&self, address: IpAddr) -> Option<ConnectionSlot> {
        self.slots.acquire(address)
    }

    /// Bytes charged now.
    pub fn charged(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How much of a file is read at a time now.
    pub(super) fn piece_bytes(&self) -> usize {
        if self.is_used_up() { SMALL_PIECE } else { PIECE }
    }

    pub(super) fn is_used_up(&self) -> bool {
        self.charged() >= self.most_bytes
    }
}

/// Memory that something holds.
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

    /// So much it is now.
    pub(super) fn set(&mut self, bytes: usize) {
        if bytes >= self.bytes {
            self.capacity.bytes.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            self.capacity.bytes.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// So much it is.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What a connection may have queued now: everything that the transport takes, or a little.
    pub(super) fn most(&self) -> usize {
        if self.capacity.is_used_up() { FLOOR } else { usize::MAX }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// What a client has to send of a body in [`Limits::body`].
pub const LEAST_OF_A_BODY: u64 = 16 << 10;
/// What is read of a file at a time, and what is when memory is used up.
const PIECE: usize = 256 << 10;
const SMALL_PIECE: usize = 16 << 10;
/// What a connection may queue in any case.
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
