//! Netlink messages, as a Linux kernel makes and takes them (`linux/netlink.h`).
//!
//! [`messages`] of a datagram, their [`attributes`], [`Bytes`] of a structure, [`message`] to the kernel. All numbers are in the machine's
//! byte order but for addresses, SPIs and ports. What is read is borrowed, so that keys are not copied.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A message of a datagram.
///
/// See [`messages`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// What it is about, by its family's numbers; 3: the end of a dump, 2: an error, or that there was none.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// That of the request that it answers.
    pub sequence: u32,
    /// What follows its header.
    pub payload: &'a [u8],
}

impl Message<'_> {
    /// Of the end of a dump, or of an error: which error it tells of, by Linux's number; 0: none.
    pub fn errno(&self) -> u32 {
        Bytes(self.payload).u32(0).unwrap_or(0).wrapping_neg()
    }

    /// Whether a dump was disturbed: what changed meanwhile may be there twice, or not at all.
    pub fn is_interrupted(&self) -> bool {
        self.flags & DUMP_INTERRUPTED != 0
    }
}

/// The messages of a datagram; `None` in place of the rest if one contradicts its length.
///
/// ```
/// use linux_mirror::netlink::{attributes, message, messages, Bytes};
///
/// let sent = message(0x10, 1, 7, &[9; 4], &[(5, b"attribute")]);
/// let read = messages(&sent).next().unwrap().unwrap();
/// assert_eq!((read.kind, read.flags, read.sequence), (0x10, 1, 7));
/// assert_eq!(Bytes(read.payload).u8(0), Some(9));
/// let (kind, value) = attributes(&read.payload[4..]).next().unwrap();
/// assert_eq!((kind, value.0), (5, &b"attribute"[..]));
/// ```
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Option<Message<'_>>> {
    core::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let length = Bytes(datagram).u32(0).map_or(0, |length| length as usize);
        let Some(message) = datagram.get(..length).filter(|message| message.len() >= HEADER) else {
            datagram = &[];
            return Some(None);
        };
        datagram = datagram.get(aligned(length)..).unwrap_or(&[]);
        let (header, payload) = message.split_at(HEADER);
        let header = Bytes(header);
        Some(header.u16(4).zip(header.u16(6)).zip(header.u32(8)).map(|((kind, flags), sequence)| Message {
            kind,
            flags,
            sequence,
            payload,
        }))
    })
}

/// The attributes of a message, or within one: kinds and values. A damaged one ends them.
///
/// See [`messages`] for an example.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, Bytes<'_>)> {
    core::iter::from_fn(move || {
        let length = usize::from(Bytes(bytes).u16(0)?);
        let kind = Bytes(bytes).u16(2)? & !NESTED_OR_ORDERED;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or(&[]);
        Some((kind, Bytes(value)))
    })
}

/// Bytes of a structure, whose fields are at fixed places; `None` if it is too short.
///
/// See [`messages`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// So many bytes.
    pub fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    /// A byte.
    pub fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    /// A number in the machine's order.
    pub fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_ne_bytes)
    }

    /// A number in the machine's order.
    pub fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    /// A number in the machine's order.
    pub fn u64(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_ne_bytes)
    }

    /// A number in network order.
    pub fn port(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    /// A number in network order.
    pub fn spi(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    /// An address of 16 bytes, of which IPv4 uses four.
    pub fn address(self, at: usize, family: u16) -> Option<IpAddr> {
        let bytes = self.array::<16>(at)?;
        match family {
            INET => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
            INET6 => Some(Ipv6Addr::from(bytes).into()),
            _ => None,
        }
    }

    /// Text that ends with a zero, at most `length` bytes of it. People read it, and terminals obey control characters, so these become `?`.
    pub fn text(self, length: usize) -> String {
        let text = self.0.iter().take_while(|byte| **byte != 0).take(length);
        text.map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' }).collect()
    }

    /// The bytes from there on.
    pub fn from(self, at: usize) -> Bytes<'a> {
        Bytes(self.0.get(at..).unwrap_or(&[]))
    }
}

/// A message to the kernel: its kind, `NLM_F_*`, number, payload and attributes.
///
/// See [`messages`] for an example.
pub fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = vec![0; HEADER];
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    message[8..12].copy_from_slice(&sequence.to_ne_bytes());
    message.extend(payload);
    message.resize(aligned(message.len()), 0);
    for (kind, value) in attributes {
        message.extend(((ATTRIBUTE_HEADER + value.len()) as u16).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(*value);
        message.resize(aligned(message.len()), 0);
    }
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

/// Attributes and messages begin at multiples of four bytes.
pub(crate) const fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

pub(crate) const INET: u16 = 2;
pub(crate) const INET6: u16 = 10;
/// `NLM_F_REQUEST`, `NLM_F_REPLACE`, `NLM_F_DUMP`.
pub(crate) const REQUEST: u16 = 1;
pub(crate) const REPLACE: u16 = 0x100;
pub(crate) const DUMP: u16 = 0x300;
/// `NLMSG_ERROR`, `NLMSG_DONE`.
pub(crate) const ERROR: u16 = 2;
pub(crate) const DONE: u16 = 3;
/// `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// `struct nlattr`.
pub(crate) const ATTRIBUTE_HEADER: usize = 4;
const NESTED_OR_ORDERED: u16 = 0xc000;
/// `NLM_F_DUMP_INTR`.
const DUMP_INTERRUPTED: u16 = 0x10;
