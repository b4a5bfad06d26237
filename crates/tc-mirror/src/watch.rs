//! A kernel's filters, from its netlink messages: what is there, then what becomes of it.
//!
//! ```text
//!   handle_datagram: messages --> changes       ask_again: the kernel dropped some --> everything is asked for again
//!   poll_request: dump of devices, then of each device's filters; one at a time, for the kernel has one dump a socket
//! ```
//!
//! Invariant: changes between `Begins` and `Ends` tell of everything that was there when it began and still is.

use crate::filter::{self, Said};
use crate::links::Links;
use crate::unsupported::Unsupported;
use nic_switch::{Rule, Selection};
use sa_mirror::netlink::{Message, message, messages};

/// What became of a kernel's filters.
///
/// ```
/// use nic_switch::{Device, Selection, Vport};
/// use tc_mirror::FilterChange;
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
/// use tc_mirror::Watcher;
///
/// let mut watcher = Watcher::new();
/// let dump = watcher.poll_request().expect("it asks for devices");
/// assert_eq!(dump[4..6], 18u16.to_ne_bytes(), "RTM_GETLINK");
/// assert!(watcher.poll_request().is_none(), "one at a time");
/// ```
#[derive(Debug)]
pub struct Watcher {
    step: Step,
    /// The devices whose filters are still to be asked for.
    devices: Vec<u32>,
    /// The sequence number of what was asked for last, by which answers are known.
    asked: u32,
    request: Option<Vec<u8>>,
    /// Another snapshot is to follow this one.
    again: bool,
    sequence: u32,
    links: Links,
    malformed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Links,
    Filters,
}

/// The kernel does not give its devices or filters.
///
/// ```
/// let refused = tc_mirror::KernelRefused { errno: 1 };
/// assert!(refused.to_string().starts_with("the kernel does not list its filters: Operation not permitted"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel does not list its filters: {}: it needs CONFIG_NET_CLS_ACT and CONFIG_NET_CLS_FLOWER",
    std::io::Error::from_raw_os_error(*errno as i32)
)]
pub struct KernelRefused {
    /// Linux's number of the error.
    pub errno: u32,
}

impl Default for Watcher {
    fn default() -> Watcher {
        Watcher::new()
    }
}

impl Watcher {
    /// It begins with a snapshot.
    pub fn new() -> Watcher {
        Watcher {
            step: Step::Nothing,
            devices: Vec::new(),
            asked: 0,
            request: None,
            again: true,
            sequence: 0,
            links: Links::default(),
            malformed: 0,
        }
    }

    /// Asks for everything again: the kernel dropped messages (`ENOBUFS`), or somebody new listens.
    pub fn ask_again(&mut self) {
        self.again = true;
    }

    /// What the kernel is to be sent next.
    pub fn poll_request(&mut self) -> Option<Vec<u8>> {
        if self.step == Step::Nothing && core::mem::take(&mut self.again) {
            self.step = Step::Links;
            self.links.clear();
            self.ask(GET_LINK, &[0; 16]);
        }
        self.request.take()
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

    fn ask(&mut self, kind: u16, payload: &[u8]) {
        self.sequence = self.sequence.wrapping_add(1);
        self.asked = self.sequence;
        self.request = Some(message(kind, REQUEST | DUMP, self.asked, payload, &[]));
    }

    fn handle_message(
        &mut self,
        message: &Message<'_>,
        take: &mut impl FnMut(FilterChange),
    ) -> Result<(), KernelRefused> {
        let answers = self.step != Step::Nothing && message.sequence == self.asked;
        // What changed while it was read may be there twice, or not at all.
        self.again |= answers && message.is_interrupted();
        let understood = match message.kind {
            // It may have ended before all was told.
            DONE | ERROR if answers => match message.errno() {
                0 if message.kind == DONE => {
                    self.go_on(take);
                    Some(())
                }
                0 => Some(()),
                // A device that went meanwhile has no filters.
                NO_DEVICE | INVALID if self.step == Step::Filters => {
                    self.go_on(take);
                    Some(())
                }
                errno => return Err(KernelRefused { errno }),
            },
            NEW_LINK => self.links.put(message.payload).map(|changed| self.again |= changed && !answers),
            DELETE_LINK => self.links.gone(message.payload).map(|changed| self.again |= changed),
            NEW_FILTER => self.read(message.payload, true, take),
            DELETE_FILTER => self.read(message.payload, false, take),
            // With them, filters go that nobody tells of.
            DELETE_QDISC | DELETE_CHAIN => {
                self.again = true;
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
        match self.step {
            Step::Nothing => return,
            Step::Links => {
                self.step = Step::Filters;
                self.devices = self.links.numbers();
                take(FilterChange::Begins);
            }
            Step::Filters => {}
        }
        match self.devices.pop() {
            Some(device) => {
                let mut tcmsg = [0; 20];
                tcmsg[4..8].copy_from_slice(&device.to_ne_bytes());
                tcmsg[12..16].copy_from_slice(&INGRESS.to_ne_bytes());
                self.ask(GET_FILTER, &tcmsg);
            }
            None => {
                self.step = Step::Nothing;
                take(FilterChange::Ends);
            }
        }
    }
}

const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const DELETE_QDISC: u16 = 37;
const NEW_FILTER: u16 = 44;
const DELETE_FILTER: u16 = 45;
const GET_FILTER: u16 = 46;
const DELETE_CHAIN: u16 = 101;
/// Both of clsact and of the ingress qdisc.
const INGRESS: u32 = 0xffff_fff2;
const NO_DEVICE: u32 = 19;
const INVALID: u32 = 22;
