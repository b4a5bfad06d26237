//! Between the shards of a host: a mailbox for each, and who empties it.
//!
//! Invariant: no mailbox is locked for longer than it takes to put packets in or take them out, and none while another is;
//! so shards on different threads may hand packets to each other whichever way.

use crate::stack::shards::Passed;
use core::task::Waker;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the shards of a host share.
#[derive(Debug)]
pub(crate) struct Mesh {
    mailboxes: Vec<Mutex<Mailbox>>,
    /// The device does not spread packets by the table it began with.
    flows_moved: AtomicBool,
}

/// What others have handed to a shard.
#[derive(Debug, Default)]
struct Mailbox {
    packets: Vec<Passed>,
    /// The shard's service task, if it would sleep.
    reader: Option<Waker>,
    /// Nobody empties it any more.
    closed: bool,
}

impl Mesh {
    pub(crate) fn new(shards: usize) -> Mesh {
        let mailboxes = (0..shards).map(|_| Mutex::default()).collect();
        Mesh { mailboxes, flows_moved: AtomicBool::new(false) }
    }

    /// The table by which the device spreads packets is about to change.
    pub(crate) fn note_flows_moved(&self) {
        self.flows_moved.store(true, Ordering::Release);
    }

    pub(crate) fn flows_have_moved(&self) -> bool {
        self.flows_moved.load(Ordering::Acquire)
    }

    /// What came for `shard`; `reader` is woken at the next packet.
    pub(crate) fn collect(&self, shard: usize, reader: &Waker) -> Vec<Passed> {
        let mut mailbox = self.mailbox(shard);
        if !mailbox.reader.as_ref().is_some_and(|known| known.will_wake(reader)) {
            mailbox.reader = Some(reader.clone());
        }
        core::mem::take(&mut mailbox.packets)
    }

    /// Nobody looks after the packets of `shard` any more.
    pub(crate) fn close(&self, shard: usize) {
        *self.mailbox(shard) = Mailbox { closed: true, ..Mailbox::default() };
    }

    /// Hands on what `shard` has nothing to do with. Returns how many found no room.
    pub(crate) fn post(&self, shard: usize, passed: Vec<Passed>) -> u64 {
        let mut wakers = SmallVec::<[Waker; 4]>::new();
        let mut dropped = 0;
        for packet in passed {
            if packet.is_for_all() {
                for other in (0..self.mailboxes.len()).filter(|other| *other != shard) {
                    dropped += u64::from(!self.put(other, packet.copy_for_all(), &mut wakers));
                }
                continue;
            }
            dropped += u64::from(!self.put_in_next(shard, packet, &mut wakers));
        }
        wakers.into_iter().for_each(Waker::wake);
        dropped
    }

    /// Puts a packet into the mailbox of the next shard that there still is.
    fn put_in_next(&self, shard: usize, mut packet: Passed, wakers: &mut SmallVec<[Waker; 4]>) -> bool {
        let mut next = (shard + 1) % self.mailboxes.len();
        while self.mailbox(next).closed {
            if packet.left == 0 {
                return false;
            }
            packet.left -= 1;
            next = (next + 1) % self.mailboxes.len();
        }
        self.put(next, packet, wakers)
    }

    fn put(&self, shard: usize, packet: Passed, wakers: &mut SmallVec<[Waker; 4]>) -> bool {
        let mut mailbox = self.mailbox(shard);
        if mailbox.closed || mailbox.packets.len() >= MOST_PACKETS {
            // For a shard that is no more, there is nothing to be lost.
            return mailbox.closed;
        }
        if mailbox.packets.is_empty() {
            wakers.extend(mailbox.reader.clone());
        }
        mailbox.packets.push(packet);
        true
    }

    fn mailbox(&self, shard: usize) -> MutexGuard<'_, Mailbox> {
        self.mailboxes[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Packets in a mailbox: as many as a device's receive ring takes.
const MOST_PACKETS: usize = 1024;
