//! Turns for work that occupies the disk or a core: a few at a time, shared fairly among users.
//!
//! Invariant: a user has at most as many turns, and requests in the common queue, as there are turns. A request of
//! another user therefore waits behind these few only, however many requests the first user sends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) struct FairQueue {
    all: Arc<Semaphore>,
    shares: UserShares,
}

/// A turn. Dropping it gives the turn back.
pub(super) struct FairSlot {
    _share: OwnedSemaphorePermit,
    _turn: OwnedSemaphorePermit,
}

impl FairQueue {
    pub(super) fn new(count: usize) -> FairQueue {
        let count = count.max(1);
        FairQueue { all: Arc::new(Semaphore::new(count)), shares: UserShares::new(count) }
    }

    /// Waits for a turn of `user`.
    pub(super) async fn take(&self, user: &str) -> FairSlot {
        let share = acquire(self.shares.for_user(user)).await;
        FairSlot { _share: share, _turn: acquire(self.all.clone()).await }
    }
}

/// The users' shares of a limited resource, each with the same maximum.
pub(super) struct UserShares {
    each: usize,
    users: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl UserShares {
    pub(super) fn new(each: usize) -> UserShares {
        UserShares { each, users: Mutex::default() }
    }

    /// Takes one unit for `user`, unless the user has the maximum already.
    pub(super) fn take(&self, user: &str) -> Option<OwnedSemaphorePermit> {
        self.for_user(user).try_acquire_owned().ok()
    }

    fn for_user(&self, user: &str) -> Arc<Semaphore> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = users.get(user) {
            return share.clone();
        }
        // Tokens come and go; a user without requests needs no entry.
        users.retain(|_, share| Arc::strong_count(share) > 1);
        users.entry(user.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.each))).clone()
    }
}

async fn acquire(semaphore: Arc<Semaphore>) -> OwnedSemaphorePermit {
    semaphore.acquire_owned().await.expect("nobody closes it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn user_waits_behind_a_few_requests_of_another() {
        let turns = FairQueue::new(2);
        let take = |user: &'static str| Box::pin(turns.take(user));
        let held: Vec<FairSlot> = (0..2).map(|_| take("many").now_or_never().unwrap()).collect();
        let mut many: Vec<_> = (0..100).map(|_| take("many")).collect();
        assert!(many.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        let mut other = take("other");
        assert!(other.as_mut().now_or_never().is_none());
        drop(held);
        assert!(other.as_mut().now_or_never().is_some(), "the other user is first in the common queue");
        // Dropped requests hold no turn.
        drop((many, other));
        assert!(turns.all.available_permits() == 2 && turns.shares.for_user("new").available_permits() == 2);
        assert_eq!(turns.shares.users.lock().unwrap().len(), 1);
    }
}
