//! Memory accounting over the queues of all connections of a stack, like Linux's tcp_mem.
//!
//! Invariant: `used` is the sum of the charges of all connections. Each call that changes a connection's queues adjusts
//! `used` by the difference, without a look at other connections.

use crate::config::TcpMemory;
use crate::counters::HostCounters;

/// Memory account of a stack.
#[derive(Debug)]
pub(crate) struct Memory {
    limits: TcpMemory,
    used: usize,
    pressed: bool,
}

/// Degree of memory use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemoryLevel {
    /// Below the pressure threshold.
    #[default]
    Free,
    /// Under pressure: receive windows and send queues are limited.
    Pressed,
    /// Exhausted: connections keep a minimum, and new connections are refused.
    Full,
}

impl Memory {
    pub(crate) fn new(limits: TcpMemory) -> Memory {
        Memory { limits, used: 0, pressed: false }
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn level(&self) -> MemoryLevel {
        match self.pressed {
            _ if self.used > self.limits.most => MemoryLevel::Full,
            true => MemoryLevel::Pressed,
            false => MemoryLevel::Free,
        }
    }

    /// Changes the charge of one connection from `before` to `after`.
    pub(crate) fn change(&mut self, before: usize, after: usize, counters: &mut HostCounters) {
        self.used = self.used + after - before;
        // Pressure ends well below its threshold. Otherwise each segment could begin and end pressure again.
        if self.used > self.limits.pressure && !self.pressed {
            self.pressed = true;
            counters.memory_pressures += 1;
        } else if self.used <= self.limits.pressure / 4 * 3 {
            self.pressed = false;
        }
    }
}

impl MemoryLevel {
    /// Returns the limit of one queue at this level, where `most` is the limit without pressure.
    pub(crate) fn wanted(self, most: usize) -> usize {
        match self {
            MemoryLevel::Free => most,
            MemoryLevel::Pressed => most.min(PRESSED_BYTES),
            MemoryLevel::Full => most.min(MIN_QUEUE_BYTES),
        }
    }
}

/// Queue limit under pressure: room for a few records.
const PRESSED_BYTES: usize = 64 << 10;
/// Guaranteed queue memory of each connection: the minimum of Linux's tcp_rmem and tcp_wmem.
pub(crate) const MIN_QUEUE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_ends_well_below_its_threshold() {
        let mut counters = HostCounters::default();
        let mut memory = Memory::new(TcpMemory { pressure: 1000, most: 2000 });
        let mut taken = 0;
        let levels = [1000, 1001, 2000, 2001, 900, 751, 750, 1001].map(|bytes| {
            memory.change(taken, bytes, &mut counters);
            taken = bytes;
            memory.level()
        });
        use MemoryLevel::{Free, Full, Pressed};
        assert_eq!(levels, [Free, Pressed, Pressed, Full, Pressed, Pressed, Free, Pressed]);
        assert_eq!((memory.used(), counters.memory_pressures), (1001, 2));
    }
}
