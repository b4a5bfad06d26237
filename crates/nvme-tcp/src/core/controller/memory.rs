//! The memory budget of a target: data of pending writes, data of reads that hosts have not taken, and the fixed cost
//! of each connection.
//!
//! Each queue is promised memory for one of the largest commands at its Connect, so that the queue makes progress
//! regardless of others. A connection without enough memory is refused. Beyond the promise, memory comes from the free
//! rest. An account that finds too little free memory waits in line. The first account in line is called when enough
//! memory is free, and no later account gets memory before. Every wait therefore ends, however many small pieces others
//! request, and each released piece of memory calls only accounts whose requests it satisfies.
//!
//! Invariants: promises plus memory taken beyond promises never exceed the limit. If there is enough memory for the
//! first waiting account, that account has been called.

use super::bell::ConnectionBell;
use super::connection::ConnectionId;
use bytes::Bytes;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory shared by all connections of a target.
#[derive(Debug)]
pub(super) struct TargetMemory {
    limit: usize,
    pool: Mutex<MemoryPool>,
    bell: Arc<ConnectionBell>,
}

#[derive(Debug)]
struct MemoryPool {
    free: usize,
    /// The line, by place.
    waiting: BTreeMap<usize, MemoryRequest>,
    /// Bytes reserved for connections that were called and have not come back, by their former places.
    called: BTreeMap<usize, usize>,
    /// Sum of `called`.
    called_bytes: usize,
    /// Next place at the end of the line.
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct MemoryRequest {
    connection: ConnectionId,
    /// Bytes needed beyond the promise.
    bytes: usize,
}

/// The account of one connection.
#[derive(Debug)]
pub(super) struct MemoryAccount {
    memory: Arc<TargetMemory>,
    connection: ConnectionId,
    // Changed only under the pool's lock.
    /// Bytes that the connection itself costs.
    fixed: AtomicUsize,
    /// Bytes that the connection may hold regardless of others.
    promised: AtomicUsize,
    used: AtomicUsize,
    /// Place in the line, kept until the request succeeds; 0 if not waiting.
    place: AtomicUsize,
    /// Bytes of the waiting request.
    wanted: AtomicUsize,
}

/// A charge: memory held until the charge is dropped.
#[derive(Debug)]
pub(super) struct MemoryCharge {
    account: Arc<MemoryAccount>,
    bytes: usize,
}

impl TargetMemory {
    pub(super) fn new(limit: usize, bell: &Arc<ConnectionBell>) -> Arc<TargetMemory> {
        let pool = Mutex::new(MemoryPool {
            free: limit,
            waiting: BTreeMap::new(),
            called: BTreeMap::new(),
            called_bytes: 0,
            next: 1,
        });
        Arc::new(TargetMemory { limit, pool, bell: bell.clone() })
    }

    /// Opens an account with no promise.
    pub(super) fn open(self: &Arc<TargetMemory>, connection: ConnectionId) -> Arc<MemoryAccount> {
        let (fixed, promised, used, place, wanted) = Default::default();
        Arc::new(MemoryAccount { memory: self.clone(), connection, fixed, promised, used, place, wanted })
    }

    /// Returns the sum of promised bytes and of bytes held beyond promises.
    pub(super) fn used(&self) -> usize {
        self.limit - self.pool().free
    }

    /// Changes the pool and calls the waiting connections that now have enough memory.
    fn change<R>(&self, change: impl FnOnce(&mut MemoryPool) -> R) -> R {
        let (result, called) = {
            // Rung without the pool's lock, because a listener may take other locks.
            let mut pool = self.pool();
            let result = change(&mut pool);
            (result, pool.call())
        };
        self.bell.ring(&called);
        result
    }

    fn pool(&self) -> MutexGuard<'_, MemoryPool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryPool {
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.free.checked_sub(bytes);
        self.free = left.unwrap_or(self.free);
        left.is_some()
    }

    /// Returns the free bytes that are not reserved for a called connection.
    fn left(&self) -> usize {
        self.free.saturating_sub(self.called_bytes)
    }

    /// Removes and returns the waiting connections that have enough memory.
    fn call(&mut self) -> Vec<ConnectionId> {
        let mut connections = Vec::new();
        // Strictly in order: a small request behind a large one must not overtake it.
        while let Some((place, MemoryRequest { connection, bytes })) =
            self.waiting.first_key_value().map(|(k, v)| (*k, *v))
            && bytes <= self.left()
        {
            self.mark_called(place, bytes);
            connections.push(connection);
        }
        connections
    }

    fn mark_called(&mut self, place: usize, bytes: usize) {
        self.waiting.remove(&place);
        self.called.insert(place, bytes);
        self.called_bytes += bytes;
    }

    /// Forgets a place: its connection no longer waits, or was called and has come back.
    fn forget(&mut self, place: usize) {
        self.waiting.remove(&place);
        self.called_bytes -= self.called.remove(&place).unwrap_or(0);
    }
}

impl MemoryAccount {
    /// Reserves `fixed` bytes for the connection itself and promises `more`. Returns false if there is not enough
    /// memory.
    pub(super) fn promise(&self, fixed: usize, more: usize) -> bool {
        self.memory.change(|pool| {
            let used = self.used.load(Relaxed);
            let promised = self.promised.load(Relaxed);
            // Bytes held beyond the old promise are taken already, and the new promise covers them.
            let taken = used.saturating_sub(promised).min(more);
            if !pool.take(fixed + more - taken) {
                return false;
            }
            self.fixed.fetch_add(fixed, Relaxed);
            self.promised.store(promised + more, Relaxed);
            true
        })
    }

    /// Takes `bytes`. Returns `None` if there is not enough memory or others wait before; the connection is called
    /// later.
    pub(super) fn take_or_wait(self: &Arc<MemoryAccount>, bytes: usize) -> Option<MemoryCharge> {
        let taken = self.memory.change(|pool| {
            let place = self.place.swap(0, Relaxed);
            pool.forget(place);
            let beyond = self.beyond(bytes);
            // An account that asks again keeps its old place, so asking costs nothing.
            let is_first = pool.waiting.first_key_value().is_none_or(|(first, _)| place > 0 && place < *first);
            // A request within the promise never waits, whatever others hold.
            if beyond == 0 || (is_first && beyond <= pool.left()) {
                pool.free -= beyond;
                self.used.fetch_add(bytes, Relaxed);
                return true;
            }
            let place = if place > 0 { place } else { pool.next };
            pool.next = pool.next.max(place + 1);
            self.place.store(place, Relaxed);
            self.wanted.store(bytes, Relaxed);
            pool.waiting.insert(place, MemoryRequest { connection: self.connection, bytes: beyond });
            false
        });
        taken.then(|| MemoryCharge { account: self.clone(), bytes })
    }

    /// Creates a charge of zero bytes that keeps the connection's reservation alive.
    pub(super) fn keep(self: &Arc<MemoryAccount>) -> MemoryCharge {
        MemoryCharge { account: self.clone(), bytes: 0 }
    }

    /// Leaves the line.
    pub(super) fn stop_waiting(&self) {
        if self.place.load(Relaxed) > 0 {
            self.memory.change(|pool| pool.forget(self.place.swap(0, Relaxed)));
        }
    }

    /// Returns the part of `bytes` that the promise does not cover.
    fn beyond(&self, bytes: usize) -> usize {
        let (used, promised) = (self.used.load(Relaxed), self.promised.load(Relaxed));
        (used + bytes).saturating_sub(promised.max(used))
    }

    fn release(&self, bytes: usize) {
        let is_covered = self.memory.change(|pool| {
            let used = self.used.load(Relaxed);
            let promised = self.promised.load(Relaxed);
            self.used.store(used - bytes, Relaxed);
            pool.free += used.saturating_sub(promised.max(used - bytes));
            // Other connections cannot use this part of the promise, so this connection is called even if it is not the
            // first in line.
            let place = self.place.load(Relaxed);
            let Some(waits) = pool.waiting.get_mut(&place) else { return false };
            waits.bytes = self.beyond(self.wanted.load(Relaxed));
            let is_covered = waits.bytes == 0;
            if is_covered {
                pool.mark_called(place, 0);
            }
            is_covered
        });
        if is_covered {
            self.memory.bell.ring(&[self.connection]);
        }
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        // Charges keep the account alive, so no memory is held any more.
        self.memory.change(|pool| {
            pool.forget(self.place.load(Relaxed));
            pool.free += self.fixed.load(Relaxed) + self.promised.load(Relaxed);
        });
    }
}

impl MemoryCharge {
    /// Takes `bytes` more. Returns false if there is not enough memory or others wait.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let account = &self.account;
        let grows = account.memory.change(|pool| {
            let beyond = account.beyond(bytes);
            let grows = beyond == 0 || (pool.waiting.is_empty() && beyond <= pool.left());
            if grows {
                pool.free -= beyond;
                account.used.fetch_add(bytes, Relaxed);
            }
            grows
        });
        self.bytes += if grows { bytes } else { 0 };
        grows
    }

    /// Attaches the charge to `bytes`. It is released when the last clone is dropped.
    pub(super) fn attach(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(ChargedBytes { bytes, _charge: self })
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.account.release(self.bytes);
    }
}

struct ChargedBytes {
    bytes: Bytes,
    _charge: MemoryCharge,
}

impl AsRef<[u8]> for ChargedBytes {
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

    fn accounts(limit: usize, promised: usize) -> (Arc<TargetMemory>, Arc<ConnectionBell>, [Arc<MemoryAccount>; 2]) {
        let bell = Arc::<ConnectionBell>::default();
        let memory = TargetMemory::new(limit, &bell);
        let accounts = [ID, OTHER].map(|id| memory.open(id));
        assert!(accounts.iter().all(|account| account.promise(0, promised)));
        (memory, bell, accounts)
    }

    #[test]
    fn promised_memory_is_always_available() {
        let (memory, bell, [first, second]) = accounts(100, 20);
        let all = first.take_or_wait(80).unwrap();
        assert!(first.take_or_wait(1).is_none() && !memory.open(ID).promise(1, 0));
        first.stop_waiting();
        let own = second.take_or_wait(20).unwrap();
        assert!(second.take_or_wait(60).is_none());
        assert_eq!(bell.take(), []);
        drop(all);
        assert_eq!(bell.take(), [OTHER], "called once");
        let more = second.take_or_wait(60).unwrap();
        assert!(first.take_or_wait(21).is_none());
        drop(own);
        assert_eq!(bell.take(), [ID], "it holds less beyond its promise now");
        drop((more, first, second));
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn bytes_are_charged_until_the_last_clone_drops() {
        let (memory, bell, [first, second]) = accounts(100, 0);
        let mut bytes = first.take_or_wait(60).unwrap().attach(Bytes::from(vec![7; 60]));
        let front = bytes.split_to(10);
        drop(bytes);
        assert!(second.take_or_wait(50).is_none());
        assert_eq!(front, [7; 10][..]);
        drop(front);
        assert_eq!(bell.take(), [OTHER]);
        assert!(second.take_or_wait(50).is_some());
        assert_eq!(memory.used(), 0);
    }

    /// Small requests do not overtake a large one.
    #[test]
    fn waiting_accounts_are_called_in_order() {
        let bell = Arc::<ConnectionBell>::default();
        let memory = TargetMemory::new(100, &bell);
        let [a, b, c, d] = [1, 2, 3, 4].map(|id| memory.open(ConnectionId(id)));
        let mut held: Vec<MemoryCharge> = (0..10).map(|_| a.take_or_wait(10).unwrap()).collect();
        assert!(b.take_or_wait(50).is_none() && c.take_or_wait(10).is_none() && d.take_or_wait(20).is_none());
        held.truncate(6);
        assert_eq!(bell.take(), [], "40 bytes are not enough for the first");
        assert!(a.take_or_wait(10).is_none(), "a later request must not overtake");
        held.truncate(5);
        assert_eq!(bell.take(), [ConnectionId(2)]);
        assert!(c.take_or_wait(10).is_none(), "reserved for the connection that was called");
        let large = b.take_or_wait(50).unwrap();
        held.truncate(2);
        assert_eq!(bell.take(), [ConnectionId(3), ConnectionId(4)], "30 bytes are enough for two of them");
        drop((c.take_or_wait(10).unwrap(), d));
        assert_eq!(bell.take(), [ConnectionId(1)], "memory that others return goes to the next");
        drop((held, large));
        assert_eq!(bell.take(), []);
        a.stop_waiting();
        assert!(b.take_or_wait(100).is_some());
    }

    #[test]
    fn each_waiting_account_is_called_once() {
        const COUNT: usize = 1000;
        let bell = Arc::<ConnectionBell>::default();
        let memory = TargetMemory::new(COUNT, &bell);
        let holder = memory.open(ConnectionId(0));
        let held: Vec<MemoryCharge> = (0..COUNT).map(|_| holder.take_or_wait(1).unwrap()).collect();
        let waiting: Vec<_> = (1..=COUNT as u64).map(|id| memory.open(ConnectionId(id))).collect();
        assert!(waiting.iter().all(|account| account.take_or_wait(1).is_none()));
        let (mut taken, mut called) = (Vec::new(), 0);
        for charge in held {
            drop(charge);
            for ConnectionId(id) in bell.take() {
                taken.extend(waiting[id as usize - 1].take_or_wait(1));
                called += 1;
            }
        }
        assert_eq!((taken.len(), called), (COUNT, COUNT));
    }

    proptest! {
        #[test]
        fn used_memory_matches_charges_and_promises(
            steps in prop::collection::vec((0usize..2, 0usize..5, 0usize..40), 1..60)
        ) {
            let (memory, _, accounts) = accounts(100, 10);
            let (mut held, mut promised) = ([Vec::new(), Vec::new()], [10, 10]);
            for (of, kind, bytes) in steps {
                match kind {
                    0 | 1 => held[of].extend(accounts[of].take_or_wait(bytes)),
                    2 => drop(held[of].pop()),
                    3 => if accounts[of].promise(0, bytes) { promised[of] += bytes },
                    _ => if let Some(last) = held[of].last_mut() { let _ = MemoryCharge::grow(last, bytes); },
                }
                let sums = held.each_ref().map(|charges| charges.iter().map(|charge| charge.bytes).sum::<usize>());
                let expected = sums[0].max(promised[0]) + sums[1].max(promised[1]);
                prop_assert_eq!(memory.used(), expected);
                prop_assert!(expected <= 100);
                let pool = memory.pool();
                let enough = pool.waiting.first_key_value().is_some_and(|(_, first)| first.bytes <= pool.left());
                prop_assert!(!enough, "a connection waits although there is enough: {:?}", pool);
                prop_assert_eq!(pool.called_bytes, pool.called.values().sum::<usize>());
            }
        }
    }
}
