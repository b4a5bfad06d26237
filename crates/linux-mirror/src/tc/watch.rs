//! A watcher of a kernel's filters: parses netlink messages into a snapshot and later changes.
//!
//! ```text
//!   handle_datagram: messages --> changes       ask_again: the kernel dropped messages --> a new snapshot is requested
//!   poll_request: dump of devices, then of each device's filters; one at a time: a kernel allows one dump per socket
//! ```
//!
//! Invariant: the changes between `Begins` and `Ends` cover all filters that existed at the start and still exist.

use crate::dump::{KernelError, PendingDump};
use crate::netlink::{DONE, DUMP, ERROR, Message, REQUEST, message, messages};
use crate::tc::filter::{self, ParsedFilter};
use crate::tc::links::Links;
use crate::tc::unsupported::UnsupportedFilter;
use nic_switch::{Rule, Selection};

/// A change of a kernel's filters.
///
/// ```
/// use nic_switch::{Device, Selection, Vport};
/// use linux_mirror::tc::FilterChange;
///
/// let all = Selection { device: Device::Port(Vport::Uplink), chain: 0, priority: None, handle: None };
/// assert_ne!(FilterChange::Gone(all), FilterChange::Begins);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterChange {
    /// Start of a snapshot: all existing filters follow.
    Begins,
    /// End of a snapshot. A filter not named since its start does not exist.
    Ends,
    /// A filter was added or changed. An unsupported one has a rule that leaves its frames to the kernel, and a reason.
    There(Box<Rule>, Option<UnsupportedFilter>),
    /// The selected filters were deleted.
    Gone(Selection),
}

/// A watcher of a kernel's filters, without the socket.
///
/// ```
/// use linux_mirror::tc::FilterWatcher;
///
/// let mut watcher = FilterWatcher::new();
/// let dump = watcher.poll_request().expect("the watcher first requests the devices");
/// assert_eq!(dump[4..6], 18u16.to_ne_bytes(), "RTM_GETLINK");
/// assert!(watcher.poll_request().is_none(), "one dump at a time");
/// ```
#[derive(Debug)]
pub struct FilterWatcher {
    dump: PendingDump<DumpStep>,
    /// Devices with filters that remain to be requested.
    devices: Vec<u32>,
    links: Links,
    malformed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DumpStep {
    Links,
    Filters,
}

impl Default for FilterWatcher {
    fn default() -> FilterWatcher {
        FilterWatcher::new()
    }
}

impl FilterWatcher {
    /// Returns a watcher that begins with a snapshot.
    pub fn new() -> FilterWatcher {
        FilterWatcher { dump: PendingDump::new(), devices: Vec::new(), links: Links::default(), malformed: 0 }
    }

    /// Requests a new snapshot, because the kernel dropped messages (`ENOBUFS`) or a new mirror listens.
    pub fn request_snapshot(&mut self) {
        self.dump.again = true;
    }

    /// Returns the next message for the kernel.
    pub fn poll_request(&mut self) -> Option<Vec<u8>> {
        if self.dump.poll_start() {
            self.links.clear();
            self.dump.query(DumpStep::Links, |sequence| message(GET_LINK, REQUEST | DUMP, sequence, &[0; 16], &[]));
        }
        self.dump.requests.pop_front()
    }

    /// Parses a datagram of the kernel, and passes the changes to `take`.
    ///
    /// # Errors
    /// Fails if the kernel refuses to list devices or filters.
    pub fn handle_datagram(&mut self, datagram: &[u8], mut take: impl FnMut(FilterChange)) -> Result<(), KernelError> {
        for message in messages(datagram) {
            match message {
                Some(message) => self.handle_message(&message, &mut take)?,
                None => self.malformed += 1,
            }
        }
        Ok(())
    }

    /// Returns the number of malformed messages.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    fn handle_message(
        &mut self,
        message: &Message<'_>,
        take: &mut impl FnMut(FilterChange),
    ) -> Result<(), KernelError> {
        let answered = self.dump.query_answered_by(message);
        let answers = answered.is_some();
        let understood = match message.kind {
            // A dump may end early with an error.
            DONE | ERROR if answers => match message.errno() {
                0 if message.kind == DONE => {
                    self.continue_dump(take);
                    Some(())
                }
                0 => Some(()),
                // A device deleted meanwhile has no filters.
                NO_DEVICE | INVALID if answered == Some(DumpStep::Filters) => {
                    self.continue_dump(take);
                    Some(())
                }
                errno => return Err(KernelError::Filters { errno }),
            },
            // A device that appears or is renamed after the dump has filters that were never requested.
            NEW_LINK => self.links.put(message.payload).map(|changed| self.dump.again |= changed && !answers),
            DELETE_LINK => self.links.remove(message.payload).map(|changed| self.dump.again |= changed),
            NEW_FILTER => self.read(message.payload, true, take),
            DELETE_FILTER => self.read(message.payload, false, take),
            // The kernel does not announce the filters that are deleted with a qdisc or a chain.
            DELETE_QDISC | DELETE_CHAIN => {
                self.dump.again = true;
                Some(())
            }
            _ => Some(()),
        };
        self.malformed += u64::from(understood.is_none());
        Ok(())
    }

    fn read(&mut self, payload: &[u8], there: bool, take: &mut impl FnMut(FilterChange)) -> Option<()> {
        match filter::read(payload, there, &self.links)? {
            ParsedFilter::There(rule, why) => take(FilterChange::There(rule, why)),
            ParsedFilter::Gone(selection) => take(FilterChange::Gone(selection)),
            ParsedFilter::Nothing => {}
        }
        Some(())
    }

    /// Continues the snapshot with the next query.
    fn continue_dump(&mut self, take: &mut impl FnMut(FilterChange)) {
        match self.dump.step {
            None => return,
            Some(DumpStep::Links) => {
                self.devices = self.links.numbers();
                take(FilterChange::Begins);
            }
            Some(DumpStep::Filters) => {}
        }
        match self.devices.pop() {
            Some(device) => {
                let mut tcmsg = [0; 20];
                tcmsg[4..8].copy_from_slice(&device.to_ne_bytes());
                // A dump needs a parent; this parent covers both qdiscs.
                tcmsg[12..16].copy_from_slice(&filter::INGRESS[0].to_ne_bytes());
                self.dump
                    .query(DumpStep::Filters, |sequence| message(GET_FILTER, REQUEST | DUMP, sequence, &tcmsg, &[]));
            }
            None => {
                self.dump.step = None;
                take(FilterChange::Ends);
            }
        }
    }
}

/// `RTM_NEWLINK`.
const NEW_LINK: u16 = 16;
/// `RTM_DELLINK`.
const DELETE_LINK: u16 = 17;
/// `RTM_GETLINK`.
const GET_LINK: u16 = 18;
/// `RTM_DELQDISC`.
const DELETE_QDISC: u16 = 37;
/// `RTM_NEWTFILTER`.
const NEW_FILTER: u16 = 44;
/// `RTM_DELTFILTER`.
const DELETE_FILTER: u16 = 45;
/// `RTM_GETTFILTER`.
const GET_FILTER: u16 = 46;
/// `RTM_DELCHAIN`.
const DELETE_CHAIN: u16 = 101;
/// `ENODEV`.
const NO_DEVICE: u32 = 19;
/// `EINVAL`.
const INVALID: u32 = 22;
