//! Turns at work that keeps the disk or a core busy: a few at a time, and fair among users.
//!
//! Invariant: a user has at most as many turns and waiting requests before the common queue as there are turns, so that a request of
//! another user waits behind these few only, however many requests the first user sends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) struct Turns {
    count: usize,
    all: Arc<Semaphore>,
    users: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A turn, given back when it is dropped.
pub(super) struct Turn {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Turns {
    pub(super) fn new(count: usize) -> Turns {
        let count = count.max(1);
        Turns { count, all: Arc::new(Semaphore::new(count)), users: Mutex::default() }
    }

    /// Waits for a turn of `user`.
    pub(super) async fn take(&self, user: &str) -> Turn {
        let of_user = acquire(self.of_user(user)).await;
        Turn { _of_user: of_user, _of_all: acquire(self.all.clone()).await }
    }

    fn of_user(&self, user: &str) -> Arc<Semaphore> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = users.get(user) {
            return turns.clone();
        }
        // Tokens come and go; a user without a request needs no entry.
        users.retain(|_, turns| Arc::strong_count(turns) > 1);
        users.entry(user.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(self.count))).clone()
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
        let turns = Turns::new(2);
        let take = |user: &'static str| Box::pin(turns.take(user));
        let held: Vec<Turn> = (0..2).map(|_| take("many").now_or_never().unwrap()).collect();
        let mut many: Vec<_> = (0..100).map(|_| take("many")).collect();
        assert!(many.iter_mut().all(|one| one.as_mut().now_or_never().is_none()));
        let mut other = take("other");
        assert!(other.as_mut().now_or_never().is_none());
        drop(held);
        assert!(other.as_mut().now_or_never().is_some(), "it is first in the common queue");
        // Requests that were dropped hold nothing.
        drop((many, other));
        assert!(turns.all.available_permits() == 2 && turns.of_user("new").available_permits() == 2);
        assert_eq!(turns.users.lock().unwrap().len(), 1);
    }
}
