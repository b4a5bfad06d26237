//! A kernel's filters, from its netlink messages: what is there, then what becomes of it.
//!
//! ```text
//!   handle_datagram: messages --> changes       ask_again: the kernel dropped some --> everything is asked for again
//!   poll_request: dump of devices, then of each device's filters; one at a time, for the kernel has one dump a socket
//! ```
//!
//! Invariant: changes between `Begins` and `Ends` tell of everything that was there when it began and still is.

use crate::dump::{Dump, KernelRefused};
use crate::netlink::{DONE, DUMP, ERROR, Message, REQUEST, message, messages};
use crate::tc::filter::{self, Said};
use crate::tc::links::Links;
use crate::tc::unsupported::Unsupported;
use nic_switch::{Rule, Selection};

/// What became of a kernel's filters.
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
    /// All filters that there are follow.
    Begins,
    /// What was not said since it began is not there.
    Ends,
    /// A filter came, or is another now. One that is not supported has a rule that leaves its frames to the kernel, and a reason.
    There(Box<Rule>, Option<Unsupported>),
    /// These are gone.
    Gone(Selection),
}

/// What a kernel's netlink messages say, without the socket.
///
/// ```
/// use linux_mirror::tc::Watcher;
///
/// let mut watcher = Watcher::new();
/// let dump = watcher.poll_request().expect("it asks for devices");
/// assert_eq!(dump[4..6], 18u16.to_ne_bytes(), "RTM_GETLINK");
/// assert!(watcher.poll_request().is_none(), "one at a time");
/// ```
#[derive(Debug)]
pub struct Watcher {
    dump: Dump<Step>,
    /// The devices whose filters are still to be asked for.
    devices: Vec<u32>,
    links: Links,
    malformed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Links,
    Filters,
}

impl Default for Watcher {
    fn default() -> Watcher {
        Watcher::new()
    }
}

impl Watcher {
    /// It begins with a snapshot.
    pub fn new() -> Watcher {
        Watcher { dump: Dump::new(), devices: Vec::new(), links: Links::default(), malformed: 0 }
    }

    /// Asks for everything again: the kernel dropped messages (`ENOBUFS`), or somebody new listens.
    pub fn ask_again(&mut self) {
        self.dump.again = true;
    }

    /// What the kernel is to be sent next.
    pub fn poll_request(&mut self) -> Option<Vec<u8>> {
        if self.dump.begins() {
            self.links.clear();
            self.dump.ask(Step::Links, |sequence| message(GET_LINK, REQUEST | DUMP, sequence, &[0; 16], &[]));
        }
        self.dump.requests.pop_front()
    }

    /// Takes a datagram of the kernel's, and gives `take` what became of filters.
    ///
    /// # Errors
    /// If the kernel does not give them at all.
    pub fn handle_datagram(
        &mut self,
        datagram: &[u8],
        mut take: impl FnMut(FilterChange),
    ) -> Result<(), KernelRefused> {
        for message in messages(datagram) {
            match message {
                Some(message) => self.handle_message(&message, &mut take)?,
                None => self.malformed += 1,
            }
        }
        Ok(())
    }

    /// How many messages made no sense.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    fn handle_message(
        &mut self,
        message: &Message<'_>,
        take: &mut impl FnMut(FilterChange),
    ) -> Result<(), KernelRefused> {
        let answered = self.dump.answered_by(message);
        let answers = answered.is_some();
        let understood = match message.kind {
            // It may have ended before all was told.
            DONE | ERROR if answers => match message.errno() {
                0 if message.kind == DONE => {
                    self.go_on(take);
                    Some(())
                }
                0 => Some(()),
                // A device that went meanwhile has no filters.
                NO_DEVICE | INVALID if answered == Some(Step::Filters) => {
                    self.go_on(take);
                    Some(())
                }
                errno => return Err(KernelRefused::Filters { errno }),
            },
            NEW_LINK => self.links.put(message.payload).map(|changed| self.dump.again |= changed && !answers),
            DELETE_LINK => self.links.gone(message.payload).map(|changed| self.dump.again |= changed),
            NEW_FILTER => self.read(message.payload, true, take),
            DELETE_FILTER => self.read(message.payload, false, take),
            // With them, filters go that nobody tells of.
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
            Said::There(rule, why) => take(FilterChange::There(rule, why)),
            Said::Gone(selection) => take(FilterChange::Gone(selection)),
            Said::Nothing => {}
        }
        Some(())
    }

    /// The last question is answered.
    fn go_on(&mut self, take: &mut impl FnMut(FilterChange)) {
        match self.dump.step {
            None => return,
            Some(Step::Links) => {
                self.devices = self.links.numbers();
                take(FilterChange::Begins);
            }
            Some(Step::Filters) => {}
        }
        match self.devices.pop() {
            Some(device) => {
                let mut tcmsg = [0; 20];
                tcmsg[4..8].copy_from_slice(&device.to_ne_bytes());
                tcmsg[12..16].copy_from_slice(&filter::INGRESS[0].to_ne_bytes());
                self.dump.ask(Step::Filters, |sequence| message(GET_FILTER, REQUEST | DUMP, sequence, &tcmsg, &[]));
            }
            None => {
                self.dump.step = None;
                take(FilterChange::Ends);
            }
        }
    }
}

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const DELETE_QDISC: u16 = 37;
const NEW_FILTER: u16 = 44;
const DELETE_FILTER: u16 = 45;
const GET_FILTER: u16 = 46;
const DELETE_CHAIN: u16 = 101;
const NO_DEVICE: u32 = 19;
const INVALID: u32 = 22;
