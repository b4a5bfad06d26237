//! The memory that a target's hosts may make it hold: data of writes that are not carried out, data of reads that their
//! hosts have not taken, and what each connection costs by itself.
//!
//! Each queue is promised room for one of the largest commands when it is connected, so that whatever others hold it goes
//! on; a connection for which there is no room is refused. What a queue holds beyond that comes from what is left, and has
//! to wait for it.
//!
//! Invariant: what was promised and what was taken beyond it is never more than the limit.

use super::bell::Bell;
use super::connection::ConnectionId;
use bytes::Bytes;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What all connections of a target share.
#[derive(Debug)]
pub(super) struct Memory {
    limit: usize,
    pool: Mutex<Pool>,
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Pool {
    free: usize,
    /// Who is to be called when there is more.
    waiting: BTreeSet<ConnectionId>,
}

/// One connection's share.
#[derive(Debug)]
pub(super) struct Account {
    memory: Arc<Memory>,
    connection: ConnectionId,
    // Changed under the pool's lock only.
    /// What the connection itself costs.
    fixed: AtomicUsize,
    /// What it may hold whatever others do.
    promised: AtomicUsize,
    used: AtomicUsize,
}

/// Memory that is held until this is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Memory {
    pub(super) fn new(limit: usize, bell: &Arc<Bell>) -> Arc<Memory> {
        let pool = Mutex::new(Pool { free: limit, waiting: BTreeSet::new() });
        Arc::new(Memory { limit, pool, bell: bell.clone() })
    }

    /// The account of a connection, with nothing promised yet.
    pub(super) fn open(self: &Arc<Memory>, connection: ConnectionId) -> Arc<Account> {
        let (fixed, promised, used) = Default::default();
        Arc::new(Account { memory: self.clone(), connection, fixed, promised, used })
    }

    /// What is promised and what is held beyond that.
    pub(super) fn used(&self) -> usize {
        self.limit - self.pool().free
    }

    fn give_back(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let waiting = {
            let mut pool = self.pool();
            pool.free += bytes;
            core::mem::take(&mut pool.waiting)
        };
        self.bell.ring(&Vec::from_iter(waiting));
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.free.checked_sub(bytes);
        self.free = left.unwrap_or(self.free);
        left.is_some()
    }
}

impl Account {
    /// Sets `fixed` bytes aside for what the connection itself costs, and promises it `more`; false if there is not as much.
    pub(super) fn promise(&self, fixed: usize, more: usize) -> bool {
        let mut pool = self.memory.pool();
        let used = self.used.load(Relaxed);
        let promised = self.promised.load(Relaxed);
        // What it holds beyond the old promise it has taken already.
        let taken = used.saturating_sub(promised).min(more);
        if !pool.take(fixed + more - taken) {
            return false;
        }
        self.fixed.fetch_add(fixed, Relaxed);
        self.promised.store(promised + more, Relaxed);
        true
    }

    /// Takes `bytes`; `None`: there is not as much now.
    pub(super) fn take(self: &Arc<Account>, bytes: usize) -> Option<Charge> {
        self.grow(&mut self.memory.pool(), bytes).then(|| Charge { account: self.clone(), bytes })
    }

    /// The same; if there is not as much, the connection is called when there is more.
    pub(super) fn take_or_wait(self: &Arc<Account>, bytes: usize) -> Option<Charge> {
        let mut pool = self.memory.pool();
        if self.grow(&mut pool, bytes) {
            return Some(Charge { account: self.clone(), bytes });
        }
        pool.waiting.insert(self.connection);
        None
    }

    /// Whether there is room for `bytes`; if not, the connection is called when there is more.
    pub(super) fn has_room_or_waits(&self, bytes: usize) -> bool {
        // What it was promised is there; only the connection itself makes it hold more.
        if self.used.load(Relaxed) + bytes <= self.promised.load(Relaxed) {
            return true;
        }
        let mut pool = self.memory.pool();
        let has_room = self.beyond(bytes) <= pool.free;
        if !has_room {
            pool.waiting.insert(self.connection);
        }
        has_room
    }

    fn grow(&self, pool: &mut Pool, bytes: usize) -> bool {
        let takes = pool.take(self.beyond(bytes));
        if takes {
            self.used.fetch_add(bytes, Relaxed);
        }
        takes
    }

    /// What `bytes` more take that the promise does not cover.
    fn beyond(&self, bytes: usize) -> usize {
        let (used, promised) = (self.used.load(Relaxed), self.promised.load(Relaxed));
        (used + bytes).saturating_sub(promised.max(used))
    }

    fn release(&self, bytes: usize) {
        let waiting = {
            let mut pool = self.memory.pool();
            let used = self.used.load(Relaxed);
            let promised = self.promised.load(Relaxed);
            self.used.store(used - bytes, Relaxed);
            let beyond = used.saturating_sub(promised.max(used - bytes));
            pool.free += beyond;
            // What is not beyond the promise is of use to this connection alone.
            if beyond > 0 {
                core::mem::take(&mut pool.waiting)
            } else {
                pool.waiting.take(&self.connection).into_iter().collect()
            }
        };
        self.memory.bell.ring(&Vec::from_iter(waiting));
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Charges keep it alive: nothing is held any more.
        self.memory.give_back(self.fixed.load(Relaxed) + self.promised.load(Relaxed));
    }
}

impl Charge {
    /// Takes `bytes` more; false if there is not as much now.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let grows = self.account.grow(&mut self.account.memory.pool(), bytes);
        self.bytes += if grows { bytes } else { 0 };
        grows
    }

    /// The bytes, charged until the last that was made of them is dropped.
    pub(super) fn attach(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Charged { bytes, _charge: self })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.release(self.bytes);
    }
}

struct Charged {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: ConnectionId = ConnectionId(1);
    const OTHER: ConnectionId = ConnectionId(2);

    fn accounts(limit: usize, promised: usize) -> (Arc<Memory>, Arc<Bell>, [Arc<Account>; 2]) {
        let bell = Arc::<Bell>::default();
        let memory = Memory::new(limit, &bell);
        let accounts = [ID, OTHER].map(|id| memory.open(id));
        assert!(accounts.iter().all(|account| account.promise(0, promised)));
        (memory, bell, accounts)
    }

    #[test]
    fn what_was_promised_is_there_whatever_others_hold() {
        let (memory, bell, [first, second]) = accounts(100, 20);
        let all = first.take(80).unwrap();
        assert!(first.take(1).is_none() && !memory.open(ID).promise(1, 0));
        let own = second.take(20).unwrap();
        assert!(second.take_or_wait(1).is_none() && !second.has_room_or_waits(1));
        assert_eq!(bell.take(), []);
        drop(all);
        assert_eq!(bell.take(), [OTHER], "once");
        let more = second.take_or_wait(60).unwrap();
        assert!(first.take_or_wait(21).is_none());
        drop(own);
        assert_eq!(bell.take(), [ID], "what it held beyond its promise is less now");
        drop((more, first, second));
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn bytes_are_charged_until_the_last_of_them_is_let_go() {
        let (memory, _, [first, second]) = accounts(100, 0);
        let mut bytes = first.take(60).unwrap().attach(Bytes::from(vec![7; 60]));
        let front = bytes.split_to(10);
        drop(bytes);
        assert!(second.take(50).is_none());
        assert_eq!(front, [7; 10][..]);
        drop(front);
        assert!(second.take(50).is_some());
        assert_eq!(memory.used(), 0);
    }

    proptest! {
        #[test]
        fn what_is_held_and_promised_is_what_was_taken(
            steps in prop::collection::vec((0usize..2, 0usize..5, 0usize..40), 1..60)
        ) {
            let (memory, _, accounts) = accounts(100, 10);
            let (mut held, mut promised) = ([Vec::new(), Vec::new()], [10, 10]);
            for (of, kind, bytes) in steps {
                match kind {
                    0 | 1 => held[of].extend(accounts[of].take(bytes)),
                    2 => drop(held[of].pop()),
                    3 => if accounts[of].promise(0, bytes) { promised[of] += bytes },
                    _ => if let Some(last) = held[of].last_mut() { let _whether = Charge::grow(last, bytes); },
                }
                let sums = held.each_ref().map(|charges| charges.iter().map(|charge| charge.bytes).sum::<usize>());
                let expected = sums[0].max(promised[0]) + sums[1].max(promised[1]);
                prop_assert_eq!(memory.used(), expected);
                prop_assert!(expected <= 100);
            }
        }
    }
}
