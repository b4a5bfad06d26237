//! Netlink messages of a Linux kernel (`linux/netlink.h`).
//!
//! [`messages`] iterates over a datagram, [`attributes`] over a message's attributes, [`NetlinkBytes`] reads a
//! structure's fields, and [`message`] builds a message to the kernel. All numbers are in the machine's byte order
//! except addresses, SPIs and ports. Parsed values are borrowed, so that keys are not copied.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A message of a datagram.
///
/// See [`messages`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Message type, as numbered by its family. 3 is the end of a dump, 2 an error or its absence.
    pub kind: u16,
    /// Flags, `NLM_F_*`.
    pub flags: u16,
    /// Sequence number, equal to that of the answered request.
    pub sequence: u32,
    /// Payload after the header.
    pub payload: &'a [u8],
}

impl Message<'_> {
    /// Returns Linux's number of the error in an error message or at the end of a dump, or 0 if there was no error.
    pub fn errno(&self) -> u32 {
        NetlinkBytes(self.payload).u32(0).unwrap_or(0).wrapping_neg()
    }

    /// Returns whether a dump was interrupted: concurrent changes may be in it twice, or not at all.
    pub fn is_interrupted(&self) -> bool {
        self.flags & DUMP_INTERRUPTED != 0
    }
}

/// Iterates over the messages of a datagram. An item is `None` if the length field of a message is invalid; then the
/// iteration ends.
///
/// ```
/// use linux_mirror::netlink::{attributes, message, messages, NetlinkBytes};
///
/// let sent = message(0x10, 1, 7, &[9; 4], &[(5, b"attribute")]);
/// let read = messages(&sent).next().unwrap().unwrap();
/// assert_eq!((read.kind, read.flags, read.sequence), (0x10, 1, 7));
/// assert_eq!(NetlinkBytes(read.payload).u8(0), Some(9));
/// let (kind, value) = attributes(&read.payload[4..]).next().unwrap();
/// assert_eq!((kind, value.0), (5, &b"attribute"[..]));
/// ```
pub fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Option<Message<'_>>> {
    core::iter::from_fn(move || {
        if datagram.is_empty() {
            return None;
        }
        let length = NetlinkBytes(datagram).u32(0).map_or(0, |length| length as usize);
        // The message boundaries are unknown after an invalid length.
        let Some(message) = datagram.get(..length).filter(|message| message.len() >= HEADER) else {
            datagram = &[];
            return Some(None);
        };
        // The last message may lack its padding.
        datagram = datagram.get(aligned(length)..).unwrap_or(&[]);
        let (header, payload) = message.split_at(HEADER);
        let header = NetlinkBytes(header);
        Some(header.u16(4).zip(header.u16(6)).zip(header.u32(8)).map(|((kind, flags), sequence)| Message {
            kind,
            flags,
            sequence,
            payload,
        }))
    })
}

/// Iterates over the attributes of a message or of an attribute, as (type, value). A malformed attribute ends the
/// iteration.
///
/// See [`messages`] for an example.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, NetlinkBytes<'_>)> {
    core::iter::from_fn(move || {
        let length = usize::from(NetlinkBytes(bytes).u16(0)?);
        // The two highest bits are flags, not a part of the type.
        let kind = NetlinkBytes(bytes).u16(2)? & !NESTED_OR_ORDERED;
        let value = bytes.get(ATTRIBUTE_HEADER..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or(&[]);
        Some((kind, NetlinkBytes(value)))
    })
}

/// The bytes of a structure with fields at fixed offsets. Each reader returns `None` if the structure is too short.
///
/// See [`messages`] for an example.
#[derive(Clone, Copy, Debug)]
pub struct NetlinkBytes<'a>(pub &'a [u8]);

impl<'a> NetlinkBytes<'a> {
    /// Returns the `N` bytes at `at`.
    pub fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    /// Returns the byte at `at`.
    pub fn u8(self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    /// Returns a number in the machine's byte order.
    pub fn u16(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_ne_bytes)
    }

    /// Returns a number in the machine's byte order.
    pub fn u32(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    /// Returns a number in the machine's byte order.
    pub fn u64(self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_ne_bytes)
    }

    /// Returns a number in network byte order.
    pub fn port(self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_be_bytes)
    }

    /// Returns a number in network byte order.
    pub fn spi(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    /// Returns the address in a field of 16 bytes, of which IPv4 uses four.
    pub fn address(self, at: usize, family: u16) -> Option<IpAddr> {
        let bytes = self.array::<16>(at)?;
        match family {
            INET => Some(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
            INET6 => Some(Ipv6Addr::from(bytes).into()),
            _ => None,
        }
    }

    /// Returns a zero-terminated text, at most `length` bytes of it. All but graphic characters become `?`, because
    /// terminals would obey control characters.
    pub fn text(self, length: usize) -> String {
        let text = self.0.iter().take_while(|byte| **byte != 0).take(length);
        text.map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' }).collect()
    }

    /// Returns the bytes from `at` on.
    pub fn from(self, at: usize) -> NetlinkBytes<'a> {
        NetlinkBytes(self.0.get(at..).unwrap_or(&[]))
    }
}

/// Builds a message to the kernel from its type, flags `NLM_F_*`, sequence number, payload and attributes.
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

/// Rounds a length up to the alignment of attributes and messages, four bytes.
pub(crate) const fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

pub(crate) const INET: u16 = 2;
pub(crate) const INET6: u16 = 10;
/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 1;
/// `NLM_F_REPLACE`.
pub(crate) const REPLACE: u16 = 0x100;
/// `NLM_F_DUMP`.
pub(crate) const DUMP: u16 = 0x300;
/// `NLMSG_ERROR`.
pub(crate) const ERROR: u16 = 2;
/// `NLMSG_DONE`.
pub(crate) const DONE: u16 = 3;
/// Length of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// Length of `struct nlattr`.
pub(crate) const ATTRIBUTE_HEADER: usize = 4;
/// `NLA_F_NESTED | NLA_F_NET_BYTEORDER`.
const NESTED_OR_ORDERED: u16 = 0xc000;
/// `NLM_F_DUMP_INTR`.
const DUMP_INTERRUPTED: u16 = 0x10;
