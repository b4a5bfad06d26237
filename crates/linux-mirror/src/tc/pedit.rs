//! `act_pedit`: words of a header, each with a mask, to fields.

use crate::netlink::{Bytes, attributes};
use crate::tc::actions::Options;
use nic_switch::{Edit, Mac};
use offload_formats::{IpVersion, Protocol};
use std::collections::BTreeMap;

/// `TCA_PEDIT_PARMS_EX`.
pub(crate) const PARAMETERS: u16 = 4;

/// The fields that are changed; `None`: not all of what is changed are whole fields that the switch changes.
pub(crate) fn read(parameters: Bytes<'_>, options: &Options<'_>) -> Option<Vec<Edit>> {
    let count = usize::from(parameters.u8(COUNT)?);
    let mut kinds = attributes(options.get(&KINDS)?.0).map(|(_, kind)| {
        let kind: Options<'_> = attributes(kind.0).collect();
        Some((kind.get(&HEADER_TYPE)?.u16(0)?, kind.get(&COMMAND)?.u16(0)?))
    });
    let mut edits = Vec::new();
    // A field may be several words, which follow each other: what is written of one header, whole bytes only.
    let mut written = (0, BTreeMap::new());
    for number in 0..count {
        let at = WORDS + number * WORD;
        let (kept, value): ([u8; 4], [u8; 4]) = (parameters.array(at)?, parameters.array(at + VALUE)?);
        let offset = parameters.u32(at + OFFSET)? as usize;
        // A place that is told by the packet.
        if parameters.u32(at + OFFSET_MASK)? != 0 {
            return None;
        }
        let (header, operation) = kinds.next()??;
        // The one field that is no whole bytes.
        if (header, operation, offset, kept) == (IPV6, SET, 0, [0xf0, 0x0f, 0xff, 0xff]) {
            fields(written.0, core::mem::take(&mut written.1), &mut edits)?;
            edits.push(Edit::TrafficClass(IpVersion::V6, value[0] << 4 | value[1] >> 4));
            continue;
        }
        let mut bytes = BTreeMap::new();
        for (byte, (kept, value)) in kept.into_iter().zip(value).enumerate() {
            match kept {
                0xff => {}
                0 => drop(bytes.insert(offset.checked_add(byte)?, value)),
                _ => return None,
            }
        }
        // Each in its turn: what is added to is what was written before.
        if operation != SET || written.0 != header || bytes.keys().any(|byte| written.1.contains_key(byte)) {
            fields(written.0, core::mem::take(&mut written.1), &mut edits)?;
        }
        match operation {
            SET => {
                written.0 = header;
                written.1.extend(bytes);
            }
            ADD => edits.push(added(header, &bytes)?),
            _ => return None,
        }
    }
    fields(written.0, written.1, &mut edits)?;
    Some(edits)
}

/// The one field that can be added to.
fn added(header: u16, bytes: &BTreeMap<usize, u8>) -> Option<Edit> {
    let (version, place) = match header {
        IPV4 => (IpVersion::V4, 8),
        IPV6 => (IpVersion::V6, 7),
        _ => return None,
    };
    let limit = *bytes.get(&place)?;
    (bytes.len() == 1).then_some(Edit::AddToHopLimit(version, limit))
}

/// The fields that bytes of a header are, which are all of them.
fn fields(header: u16, mut bytes: BTreeMap<usize, u8>, edits: &mut Vec<Edit>) -> Option<()> {
    let version = if header == IPV6 { IpVersion::V6 } else { IpVersion::V4 };
    match header {
        ETHERNET => {
            edits.extend(take(&mut bytes, 0).map(|mac| Edit::DestinationMac(Mac(mac))));
            edits.extend(take(&mut bytes, 6).map(|mac| Edit::SourceMac(Mac(mac))));
        }
        IPV4 => {
            edits.extend(take::<1>(&mut bytes, 1).map(|[class]| Edit::TrafficClass(version, class)));
            edits.extend(take::<1>(&mut bytes, 8).map(|[limit]| Edit::HopLimit(version, limit)));
            edits.extend(take::<4>(&mut bytes, 12).map(|address| Edit::Source(address.into())));
            edits.extend(take::<4>(&mut bytes, 16).map(|address| Edit::Destination(address.into())));
        }
        IPV6 => {
            edits.extend(take::<1>(&mut bytes, 7).map(|[limit]| Edit::HopLimit(version, limit)));
            edits.extend(take::<16>(&mut bytes, 8).map(|address| Edit::Source(address.into())));
            edits.extend(take::<16>(&mut bytes, 24).map(|address| Edit::Destination(address.into())));
        }
        TCP | UDP => {
            let protocol = if header == TCP { Protocol::Tcp } else { Protocol::Udp };
            edits.extend(take(&mut bytes, 0).map(|port| Edit::SourcePort(protocol, u16::from_be_bytes(port))));
            edits.extend(take(&mut bytes, 2).map(|port| Edit::DestinationPort(protocol, u16::from_be_bytes(port))));
        }
        _ => {}
    }
    bytes.is_empty().then_some(())
}

/// The field of so many bytes at a place, if all of it is written.
fn take<const N: usize>(bytes: &mut BTreeMap<usize, u8>, at: usize) -> Option<[u8; N]> {
    let mut field = [0; N];
    for (offset, byte) in field.iter_mut().enumerate() {
        *byte = *bytes.get(&(at + offset))?;
    }
    bytes.retain(|place, _| !(at..at + N).contains(place));
    Some(field)
}

/// `TCA_PEDIT_KEYS_EX`.
const KINDS: u16 = 5;
/// `TCA_PEDIT_KEY_EX_HTYPE`, `TCA_PEDIT_KEY_EX_CMD`.
const HEADER_TYPE: u16 = 1;
const COMMAND: u16 = 2;
/// `struct tc_pedit_sel`: how many words, and where.
const COUNT: usize = 20;
const WORDS: usize = 24;
/// `struct tc_pedit_key`: its size, and where its `val`, `off` and `offmask` are.
const WORD: usize = 24;
const VALUE: usize = 4;
const OFFSET: usize = 8;
const OFFSET_MASK: usize = 16;
/// `TCA_PEDIT_KEY_EX_HDR_TYPE_*`.
const ETHERNET: u16 = 1;
const IPV4: u16 = 2;
const IPV6: u16 = 3;
const TCP: u16 = 4;
const UDP: u16 = 5;
/// `TCA_PEDIT_KEY_EX_CMD_*`.
const SET: u16 = 0;
const ADD: u16 = 1;
