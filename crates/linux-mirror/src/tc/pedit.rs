//! `act_pedit`: translates masked words of a header into edits of fields.

use crate::netlink::{NetlinkBytes, attributes};
use crate::tc::actions::ActionAttributes;
use nic_switch::{Edit, Mac};
use offload_formats::{IpVersion, Protocol};
use std::collections::BTreeMap;

/// `TCA_PEDIT_PARMS_EX`.
pub(crate) const PARAMETERS: u16 = 4;

/// Parses the edits. Returns `None` if a change is not an edit of whole fields that the switch supports.
pub(crate) fn read(parameters: NetlinkBytes<'_>, options: &ActionAttributes<'_>) -> Option<Vec<Edit>> {
    let count = usize::from(parameters.u8(COUNT)?);
    let mut kinds = attributes(options.get(&KINDS)?.0).map(|(_, kind)| {
        let kind: ActionAttributes<'_> = attributes(kind.0).collect();
        Some((kind.get(&HEADER_TYPE)?.u16(0)?, kind.get(&COMMAND)?.u16(0)?))
    });
    let mut edits = Vec::new();
    // A field may span several consecutive words. Written bytes of one header are collected here, as whole bytes.
    let mut written = (0, BTreeMap::new());
    for number in 0..count {
        let at = WORDS + number * WORD;
        let (kept, value): ([u8; 4], [u8; 4]) = (parameters.array(at)?, parameters.array(at + VALUE)?);
        let offset = parameters.u32(at + OFFSET)? as usize;
        // The position depends on the packet.
        if parameters.u32(at + OFFSET_MASK)? != 0 {
            return None;
        }
        let (header, operation) = kinds.next()??;
        // The traffic class of IPv6 is the only field that does not consist of whole bytes.
        if (header, operation, offset, kept) == (IPV6, SET, 0, [0xf0, 0x0f, 0xff, 0xff]) {
            split_fields(written.0, core::mem::take(&mut written.1), &mut edits)?;
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
        // Edits keep their order, because an addition applies to an earlier edit's result.
        if operation != SET || written.0 != header || bytes.keys().any(|byte| written.1.contains_key(byte)) {
            split_fields(written.0, core::mem::take(&mut written.1), &mut edits)?;
        }
        match operation {
            SET => {
                written.0 = header;
                written.1.extend(bytes);
            }
            ADD => edits.push(parse_addition(header, &bytes)?),
            _ => return None,
        }
    }
    split_fields(written.0, written.1, &mut edits)?;
    Some(edits)
}

/// Returns the edit for an addition. Only the hop limit can be added to.
fn parse_addition(header: u16, bytes: &BTreeMap<usize, u8>) -> Option<Edit> {
    let (version, place) = match header {
        IPV4 => (IpVersion::V4, 8),
        IPV6 => (IpVersion::V6, 7),
        _ => return None,
    };
    let limit = *bytes.get(&place)?;
    (bytes.len() == 1).then_some(Edit::AddToHopLimit(version, limit))
}

/// Splits written bytes of a header into fields. Returns `None` if bytes are left over.
fn split_fields(header: u16, mut bytes: BTreeMap<usize, u8>, edits: &mut Vec<Edit>) -> Option<()> {
    // The version matters only for the two IP headers.
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

/// Takes the field of `N` bytes at `at`, if all of its bytes were written.
fn take<const N: usize>(bytes: &mut BTreeMap<usize, u8>, at: usize) -> Option<[u8; N]> {
    let mut field = [0; N];
    for (offset, byte) in field.iter_mut().enumerate() {
        *byte = *bytes.get(&(at + offset))?;
    }
    // Taken bytes are removed, so that the caller can detect bytes outside all known fields.
    bytes.retain(|place, _| !(at..at + N).contains(place));
    Some(field)
}

/// `TCA_PEDIT_KEYS_EX`.
const KINDS: u16 = 5;
/// `TCA_PEDIT_KEY_EX_HTYPE`.
const HEADER_TYPE: u16 = 1;
/// `TCA_PEDIT_KEY_EX_CMD`.
const COMMAND: u16 = 2;
/// Offset of the number of words in `struct tc_pedit_sel`.
const COUNT: usize = 20;
/// Offset of the words in `struct tc_pedit_sel`.
const WORDS: usize = 24;
/// Length of `struct tc_pedit_key`.
const WORD: usize = 24;
/// Offset of `val` in `struct tc_pedit_key`.
const VALUE: usize = 4;
/// Offset of `off` in `struct tc_pedit_key`.
const OFFSET: usize = 8;
/// Offset of `offmask` in `struct tc_pedit_key`.
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
