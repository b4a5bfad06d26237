//! Mailboxes between the shards of a host.
//!
//! Invariant: a mailbox is locked only while packets are put in or taken out, and never together with another mailbox.
//! Shards on different threads can therefore pass packets to each other without a deadlock.

use crate::stack::shards::PassedPacket;
use core::task::Waker;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state shared by the shards of a host.
#[derive(Debug)]
pub(crate) struct ShardMesh {
    mailboxes: Vec<Mutex<ShardMailbox>>,
    /// Whether the device's indirection table has changed.
    flows_moved: AtomicBool,
}

/// Packets that other shards have passed to one shard.
#[derive(Debug, Default)]
struct ShardMailbox {
    packets: Vec<PassedPacket>,
    /// Waker of the shard's service task, if the task has ever polled the mailbox.
    reader: Option<Waker>,
    /// Whether the shard's service task has ended.
    closed: bool,
}

impl ShardMesh {
    pub(crate) fn new(shards: usize) -> ShardMesh {
        let mailboxes = (0..shards).map(|_| Mutex::default()).collect();
        ShardMesh { mailboxes, flows_moved: AtomicBool::new(false) }
    }

    /// Records that the device's indirection table is about to change.
    pub(crate) fn note_flows_moved(&self) {
        self.flows_moved.store(true, Ordering::Release);
    }

    pub(crate) fn flows_have_moved(&self) -> bool {
        self.flows_moved.load(Ordering::Acquire)
    }

    /// Takes the packets for `shard`. The next packet wakes `reader`.
    pub(crate) fn collect(&self, shard: usize, reader: &Waker) -> Vec<PassedPacket> {
        let mut mailbox = self.mailbox(shard);
        if !mailbox.reader.as_ref().is_some_and(|known| known.will_wake(reader)) {
            mailbox.reader = Some(reader.clone());
        }
        core::mem::take(&mut mailbox.packets)
    }

    /// Closes the mailbox of `shard` because its service task ends.
    pub(crate) fn close(&self, shard: usize) {
        *self.mailbox(shard) = ShardMailbox { closed: true, ..ShardMailbox::default() };
    }

    /// Delivers packets from `shard` to other shards. Returns the number of packets dropped because a mailbox was full.
    pub(crate) fn post(&self, shard: usize, passed: Vec<PassedPacket>) -> u64 {
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
        // Waking happens without a lock: a waker may run its task on this thread.
        wakers.into_iter().for_each(Waker::wake);
        dropped
    }

    /// Puts a packet into the mailbox of the next shard that is still served.
    fn put_in_next(&self, shard: usize, mut packet: PassedPacket, wakers: &mut SmallVec<[Waker; 4]>) -> bool {
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

    fn put(&self, shard: usize, packet: PassedPacket, wakers: &mut SmallVec<[Waker; 4]>) -> bool {
        let mut mailbox = self.mailbox(shard);
        if mailbox.closed || mailbox.packets.len() >= MAX_PACKETS {
            // A packet for a closed shard is no loss, because the shard has no flows any more.
            return mailbox.closed;
        }
        // A waker is needed only for the first packet: the reader then takes all of them.
        if mailbox.packets.is_empty() {
            wakers.extend(mailbox.reader.clone());
        }
        mailbox.packets.push(packet);
        true
    }

    fn mailbox(&self, shard: usize) -> MutexGuard<'_, ShardMailbox> {
        self.mailboxes[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Capacity of a mailbox in packets: the size of a device's receive ring.
const MAX_PACKETS: usize = 1024;
