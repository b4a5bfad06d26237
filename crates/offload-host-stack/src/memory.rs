//! What the queues of all connections of a stack take: Linux's tcp_mem.
//!
//! Invariant: `used` is the sum of what the stack's connections are charged; each call that changes a connection's queues
//! changes it by as much, and looks at no other connection.

use crate::config::TcpMemory;
use crate::counters::HostCounters;

/// The account of a stack.
#[derive(Debug)]
pub(crate) struct Memory {
    limits: TcpMemory,
    used: usize,
    pressed: bool,
}

/// How much of the memory is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// There is enough.
    #[default]
    Free,
    /// What queues want is little: peers are offered small windows, and applications small send queues.
    Pressed,
    /// Connections keep what they cannot do without; new ones are refused.
    Full,
}

impl Memory {
    pub(crate) fn new(limits: TcpMemory) -> Memory {
        Memory { limits, used: 0, pressed: false }
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn level(&self) -> Level {
        match self.pressed {
            _ if self.used > self.limits.most => Level::Full,
            true => Level::Pressed,
            false => Level::Free,
        }
    }

    /// A connection takes `after` instead of `before`.
    pub(crate) fn change(&mut self, before: usize, after: usize, counters: &mut HostCounters) {
        self.used = self.used + after - before;
        // It ends well below where it begins, or each segment would begin it anew.
        if self.used > self.limits.pressure && !self.pressed {
            self.pressed = true;
            counters.memory_pressures += 1;
        } else if self.used <= self.limits.pressure / 4 * 3 {
            self.pressed = false;
        }
    }
}

impl Level {
    /// How much a connection may want for a queue: `most`, if there is enough.
    pub(crate) fn wanted(self, most: usize) -> usize {
        match self {
            Level::Free => most,
            Level::Pressed => most.min(PRESSED_BYTES),
            Level::Full => most.min(LEAST_BYTES),
        }
    }
}

/// Enough for a few records.
const PRESSED_BYTES: usize = 64 << 10;
/// What each connection may have whatever the others take: the least of Linux's tcp_rmem and tcp_wmem.
pub(crate) const LEAST_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_begins_above_its_bound_and_ends_well_below() {
        let mut counters = HostCounters::default();
        let mut memory = Memory::new(TcpMemory { pressure: 1000, most: 2000 });
        let mut taken = 0;
        let levels = [1000, 1001, 2000, 2001, 900, 751, 750, 1001].map(|bytes| {
            memory.change(taken, bytes, &mut counters);
            taken = bytes;
            memory.level()
        });
        use Level::{Free, Full, Pressed};
        assert_eq!(levels, [Free, Pressed, Pressed, Full, Pressed, Pressed, Free, Pressed]);
        assert_eq!((memory.used(), counters.memory_pressures), (1001, 2));
    }
}
