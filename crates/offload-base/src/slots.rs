//! The connection slots of a server, and the choice of a connection to revoke when no slot is free.
//!
//! Invariant: at most `limit` connections hold a slot, and a connection with a request in progress is never revoked.
//! Strangers are connections without an authenticated request so far. Strangers are revoked before idle connections,
//! and of each kind the network with the most slots loses one first, so one address cannot shut out the other
//! addresses.

use core::cmp::Reverse;
use core::future::poll_fn;
use core::net::IpAddr;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The connection slots of a server. Clones share the slots.
///
/// ```
/// use offload_base::slots::ConnectionSlots;
///
/// let slots = ConnectionSlots::new(1);
/// let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
/// let first = slots.acquire(one).unwrap();
/// first.set_busy();
/// assert!(slots.acquire(other).is_none(), "a request is under way");
/// first.set_idle();
/// let second = slots.acquire(other).unwrap();
/// assert!(first.is_revoked() && !second.is_revoked());
/// ```
#[derive(Clone, Debug)]
pub struct ConnectionSlots(Arc<SharedSlots>);

#[derive(Debug)]
struct SharedSlots {
    limit: usize,
    state: Mutex<SlotTable>,
}

#[derive(Debug, Default)]
struct SlotTable {
    /// The held slots, by number.
    held: HashMap<u64, SlotHolder>,
    strangers: RevocationOrder,
    idle: RevocationOrder,
    /// Wakers of callers that wait for a slot, first come first served.
    waiting: BTreeMap<u64, Waker>,
    /// Number of the next slot, waiting caller or idle period.
    next: u64,
}

#[derive(Debug)]
struct SlotHolder {
    network: IpAddr,
    standing: ConnectionStanding,
    revocation: Arc<Mutex<Revocation>>,
}

/// A flag that tells a connection that its slot was revoked.
#[derive(Debug, Default)]
struct Revocation {
    is_revoked: bool,
    waker: Option<Waker>,
}

/// The state of a connection. The number is the age of the connection's entry in its crowd.
#[derive(Clone, Copy, Debug)]
enum ConnectionStanding {
    Stranger(u64),
    Busy,
    Idle(u64),
}

impl ConnectionSlots {
    /// Makes slots for `limit` connections.
    pub fn new(limit: usize) -> ConnectionSlots {
        ConnectionSlots(Arc::new(SharedSlots { limit, state: Mutex::default() }))
    }

    /// Takes a slot for a stranger from `address`, and revokes another connection's slot if no slot is free. Returns
    /// `None` if every connection has a request in progress.
    pub fn acquire(&self, address: IpAddr) -> Option<ConnectionSlot> {
        let (slot, revoked) = {
            let mut state = self.0.lock();
            self.take(&mut state, address)?
        };
        revoked.into_iter().for_each(Waker::wake);
        Some(slot)
    }

    /// Takes a slot like [`acquire`](ConnectionSlots::acquire), but waits until one can be had.
    pub async fn acquire_waiting(&self, address: IpAddr) -> ConnectionSlot {
        let ticket = SlotTicket { slots: self, number: self.0.lock().number() };
        poll_fn(|cx| {
            let mut state = self.0.lock();
            // Only the caller that has waited longest may take a slot, so a later caller cannot overtake it.
            if state.waiting.first_key_value().is_none_or(|(first, _)| *first >= ticket.number)
                && let Some((slot, revoked)) = self.take(&mut state, address)
            {
                drop(state);
                revoked.into_iter().for_each(Waker::wake);
                return Poll::Ready(slot);
            }
            let replaced = state.waiting.insert(ticket.number, cx.waker().clone());
            drop(state);
            // A waker may be the last owner of its task, and the task may own a slot: drop it without the lock.
            drop(replaced);
            Poll::Pending
        })
        .await
    }

    /// Takes a slot, and returns it with the waker of the revoked connection, if any. The caller wakes and drops wakers
    /// after unlocking, because a waker may be the last owner of a task that owns a slot.
    fn take(&self, state: &mut SlotTable, address: IpAddr) -> Option<(ConnectionSlot, Option<Waker>)> {
        let mut revoked = None;
        if state.held.len() >= self.0.limit {
            // Strangers come first: an idle connection has proved that it belongs to a known client.
            let victim = state.strangers.first().or_else(|| state.idle.first())?;
            revoked = state.remove(victim)?.revoke();
        }
        let (number, network) = (state.number(), network_of(address));
        state.strangers.insert(network, number, number);
        let (standing, revocation) = (ConnectionStanding::Stranger(number), Arc::default());
        let slot = ConnectionSlot { shared: self.0.clone(), number, revocation: Arc::clone(&revocation) };
        state.held.insert(number, SlotHolder { network, standing, revocation });
        Some((slot, revoked))
    }
}

/// The slot of one connection. Dropping it frees the slot.
///
/// See [`ConnectionSlots`] for an example.
#[derive(Debug)]
pub struct ConnectionSlot {
    shared: Arc<SharedSlots>,
    number: u64,
    revocation: Arc<Mutex<Revocation>>,
}

impl ConnectionSlot {
    /// Notes that a request of an authenticated client is in progress. The slot cannot be revoked.
    pub fn set_busy(&self) {
        self.shared.lock().set(self.number, |_| ConnectionStanding::Busy);
    }

    /// Notes that a busy connection waits for its next request. The slot can be revoked. A stranger remains a stranger.
    pub fn set_idle(&self) {
        let mut state = self.shared.lock();
        if state.held.get(&self.number).is_some_and(|holder| matches!(holder.standing, ConnectionStanding::Busy)) {
            state.set(self.number, ConnectionStanding::Idle);
            state.wake_first();
        }
    }

    /// Tests whether the slot was revoked.
    pub fn is_revoked(&self) -> bool {
        lock(&self.revocation).is_revoked
    }

    /// Polls until the slot is revoked. The connection must then be closed.
    pub fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut revocation = lock(&self.revocation);
        if revocation.is_revoked {
            return Poll::Ready(());
        }
        if !revocation.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            revocation.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until the slot is revoked. The connection must then be closed.
    pub async fn revoked(&self) {
        poll_fn(|cx| self.poll_revoked(cx)).await;
    }

    /// Runs `work`. Returns `None` if the slot is revoked first.
    pub async fn unless_revoked<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => self.poll_revoked(cx).map(|()| None),
        })
        .await
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if state.remove(self.number).is_some() {
            state.wake_first();
        }
    }
}

/// A waiting caller's place in the queue, released when the caller takes a slot or is dropped.
struct SlotTicket<'a> {
    slots: &'a ConnectionSlots,
    number: u64,
}

impl Drop for SlotTicket<'_> {
    fn drop(&mut self) {
        let mut state = self.slots.0.lock();
        let removed = state.waiting.remove(&self.number);
        // The caller may have been woken for a slot and dropped before taking it. The slot then goes to the next
        // caller.
        state.wake_first();
        drop(state);
        drop(removed);
    }
}

impl SharedSlots {
    fn lock(&self) -> MutexGuard<'_, SlotTable> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SlotHolder {
    fn revoke(self) -> Option<Waker> {
        let mut revocation = lock(&self.revocation);
        revocation.is_revoked = true;
        revocation.waker.take()
    }
}

impl SlotTable {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn remove(&mut self, number: u64) -> Option<SlotHolder> {
        let holder = self.held.remove(&number)?;
        self.leave_crowd(&holder);
        Some(holder)
    }

    fn leave_crowd(&mut self, holder: &SlotHolder) {
        match holder.standing {
            ConnectionStanding::Stranger(age) => self.strangers.remove(holder.network, age),
            ConnectionStanding::Idle(age) => self.idle.remove(holder.network, age),
            ConnectionStanding::Busy => {}
        }
    }

    fn set(&mut self, number: u64, standing: impl FnOnce(u64) -> ConnectionStanding) {
        let Some(mut holder) = self.held.remove(&number) else { return };
        self.leave_crowd(&holder);
        holder.standing = standing(self.number());
        if let ConnectionStanding::Idle(age) = holder.standing {
            self.idle.insert(holder.network, age, number);
        }
        self.held.insert(number, holder);
    }

    fn wake_first(&self) {
        if let Some(waker) = self.waiting.values().next() {
            waker.wake_by_ref();
        }
    }
}

/// The slots of one kind, ordered for revocation: the network with the most slots comes first, and of equal networks
/// the one with the oldest slot.
#[derive(Debug, Default)]
struct RevocationOrder {
    /// Slot numbers by age, per network.
    networks: HashMap<IpAddr, BTreeMap<u64, u64>>,
    ranks: BTreeSet<(usize, Reverse<u64>, IpAddr)>,
}

impl RevocationOrder {
    fn insert(&mut self, network: IpAddr, age: u64, number: u64) {
        self.change(network, |slots| {
            slots.insert(age, number);
        });
    }

    fn remove(&mut self, network: IpAddr, age: u64) {
        self.change(network, |slots| {
            slots.remove(&age);
        });
    }

    fn change(&mut self, network: IpAddr, change: impl FnOnce(&mut BTreeMap<u64, u64>)) {
        let slots = self.networks.entry(network).or_default();
        let rank = |slots: &BTreeMap<u64, u64>| Some((slots.len(), Reverse(*slots.keys().next()?), network));
        if let Some(rank) = rank(slots) {
            self.ranks.remove(&rank);
        }
        change(slots);
        if let Some(rank) = rank(slots) {
            self.ranks.insert(rank);
        } else {
            self.networks.remove(&network);
        }
    }

    /// Returns the slot to revoke first.
    fn first(&self) -> Option<u64> {
        let (_, Reverse(age), network) = self.ranks.last()?;
        self.networks.get(network)?.get(age).copied()
    }
}

/// Returns the network within which one host can choose its address: an IPv4 address, or a 64-bit IPv6 prefix (RFC 4291
/// 2.5.1).
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Counts the revoked slots.
    fn revoked(slots: &[ConnectionSlot]) -> usize {
        slots.iter().filter(|slot| slot.is_revoked()).count()
    }

    #[test]
    fn one_address_cannot_shut_out_others() {
        let slots = ConnectionSlots::new(100);
        let [crowd, known, other] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(address);
        let idle = slots.acquire(known).unwrap();
        idle.set_busy();
        idle.set_idle();
        let early = slots.acquire(other).unwrap();
        let many: Vec<_> = (0..1000).map(|_| slots.acquire(crowd).unwrap()).collect();
        assert_eq!((revoked(&many), idle.is_revoked(), early.is_revoked()), (902, false, false));
        let late = slots.acquire(other).unwrap();
        assert_eq!((revoked(&many), late.is_revoked()), (903, false));
        // The oldest connections are revoked first.
        assert!(many[..903].iter().all(ConnectionSlot::is_revoked));
    }

    /// A task that is never polled, and is freed with its last waker.
    struct UnpolledTask {
        slot: ConnectionSlot,
    }

    impl std::task::Wake for UnpolledTask {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn task_that_ends_with_its_waker_frees_its_slot() {
        let slots = ConnectionSlots::new(1);
        let task = Arc::new(UnpolledTask { slot: slots.acquire(address("192.0.2.1")).unwrap() });
        let known = Arc::downgrade(&task);
        let waker = Waker::from(task.clone());
        assert!(task.slot.poll_revoked(&mut Context::from_waker(&waker)).is_pending());
        drop((task, waker));
        assert_eq!(known.strong_count(), 1, "the slot has the last waker");
        let busy = slots.acquire(address("192.0.2.2")).unwrap();
        assert_eq!(known.strong_count(), 0);
        busy.set_busy();
        // The future of a waiting caller is dropped, or polled by another task.
        for moves in [false, true] {
            let twice = ConnectionSlots::new(1);
            let task = Arc::new(UnpolledTask { slot: twice.acquire(address("192.0.2.1")).unwrap() });
            task.slot.set_busy();
            let known = Arc::downgrade(&task);
            let waker = Waker::from(task);
            let mut waiting = Box::pin(twice.acquire_waiting(address("192.0.2.2")));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(waker);
            if moves {
                let _ = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            }
            drop(waiting);
            assert_eq!(known.strong_count(), 0);
        }
    }

    #[test]
    fn idle_connections_are_revoked_without_strangers() {
        let slots = ConnectionSlots::new(3);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(address);
        let [first, second, busy] = [one, one, other].map(|from| slots.acquire(from).unwrap());
        for slot in [&first, &second, &busy] {
            slot.set_busy();
        }
        assert!(slots.acquire(other).is_none());
        second.set_idle();
        first.set_idle();
        let new = slots.acquire(other).unwrap();
        assert_eq!([&first, &second, &busy, &new].map(ConnectionSlot::is_revoked), [false, true, false, false]);
        // A revoked connection no longer affects the slots.
        second.set_busy();
        drop(second);
        new.set_busy();
        first.set_busy();
        assert!(slots.acquire(other).is_none());
        drop(busy);
        assert!(slots.acquire(other).is_some());
    }

    #[test]
    fn addresses_of_one_ipv6_subnet_count_as_one() {
        let slots = ConnectionSlots::new(4);
        let other = slots.acquire(address("2001:db8:0:2::1")).unwrap();
        let many: Vec<_> =
            (0..9_u128).map(|low| slots.acquire(IpAddr::V6(((0x2001_0db8 << 96) | low).into()))).collect();
        assert!(!other.is_revoked() && many.iter().all(Option::is_some));
        assert_eq!(network_of(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }

    #[test]
    fn revoked_connection_and_waiting_caller_are_woken() {
        struct SlotWakeCount(core::sync::atomic::AtomicUsize);
        impl std::task::Wake for SlotWakeCount {
            fn wake(self: Arc<SlotWakeCount>) {
                self.0.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
            }
        }
        let count = Arc::new(SlotWakeCount(0.into()));
        let woken = || count.0.swap(0, core::sync::atomic::Ordering::Relaxed);
        let waker = Waker::from(count.clone());
        let cx = &mut Context::from_waker(&waker);
        let slots = ConnectionSlots::new(1);
        let from = address("192.0.2.1");
        let first = slots.acquire(from).unwrap();
        first.set_busy();
        assert!(first.poll_revoked(cx).is_pending());
        let mut one = Box::pin(slots.acquire_waiting(from));
        let mut two = pin!(slots.acquire_waiting(from));
        assert!(one.as_mut().poll(cx).is_pending() && two.as_mut().poll(cx).is_pending());
        assert_eq!(woken(), 0);
        first.set_idle();
        assert_eq!(woken(), 1);
        // The woken caller is dropped, and the next caller is served.
        assert!(two.as_mut().poll(cx).is_pending());
        drop(one);
        assert_eq!(woken(), 1);
        let Poll::Ready(second) = two.as_mut().poll(cx) else { panic!("a slot is free") };
        assert!(woken() >= 1 && first.poll_revoked(cx).is_ready() && !second.is_revoked());
    }

    /// Keeps the limit under any sequence of events. The crowds list the same slots as the table.
    #[test]
    fn any_events_keep_the_slot_limit() {
        let mut random = crate::Seed(7).stream("slots");
        let slots = ConnectionSlots::new(8);
        let mut all: Vec<ConnectionSlot> = Vec::new();
        for _ in 0..20_000 {
            let at = random.below(all.len() as u64 + 1) as usize;
            match (random.below(4), all.get(at)) {
                (0, Some(_)) => drop(all.swap_remove(at)),
                (1, Some(slot)) => slot.set_busy(),
                (2, Some(slot)) => slot.set_idle(),
                _ => {
                    let from = IpAddr::from([192, 0, 2, random.below(3) as u8]);
                    all.extend(slots.acquire(from));
                    let busy = all.iter().filter(|slot| !slot.is_revoked()).count();
                    assert!(busy <= 8);
                }
            }
            let state = slots.0.lock();
            let in_crowds: usize = [&state.strangers, &state.idle]
                .map(|crowd| crowd.networks.values().map(BTreeMap::len).sum())
                .iter()
                .sum();
            let busy = state.held.values().filter(|holder| matches!(holder.standing, ConnectionStanding::Busy)).count();
            assert_eq!(in_crowds + busy, state.held.len());
            drop(state);
            all.retain(|slot| !slot.is_revoked());
        }
        drop(all);
        let state = slots.0.lock();
        assert!(state.held.is_empty() && state.strangers.ranks.is_empty() && state.idle.ranks.is_empty());
    }
}
