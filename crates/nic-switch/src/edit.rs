//! Changes of header fields and of the checksums over them.
//!
//! Invariant: a correct checksum stays correct, and a wrong one stays wrong by the same difference (RFC 1624). A
//! datagram without a checksum stays without.

use crate::action::{ChecksumSet, Edit, VlanTag};
use crate::key::is_first;
use crate::matching::is_vlan;
use bytes::BytesMut;
use core::net::IpAddr;
use core::ops::Range;
use offload_formats::protocol::{ICMPV6, TCP, UDP};
use offload_formats::{Headers, InternetSum, IpVersion, Protocol, checksum};

/// Adds a tag in front of the existing tags.
pub(crate) fn push_vlan(frame: &mut BytesMut, ether_type: u16, control: u16) {
    let mut tagged = BytesMut::with_capacity(frame.len() + TAG);
    tagged.extend_from_slice(&frame[..ADDRESSES]);
    tagged.extend_from_slice(&ether_type.to_be_bytes());
    tagged.extend_from_slice(&control.to_be_bytes());
    tagged.extend_from_slice(&frame[ADDRESSES..]);
    *frame = tagged;
}

/// Removes the outermost tag and returns its EtherType and control information; `None` if there is no tag.
pub(crate) fn pop_vlan(frame: &mut BytesMut) -> Option<(u16, u16)> {
    let tag = outermost_tag(frame)?;
    frame.copy_within(..ADDRESSES, TAG);
    let _ = frame.split_to(TAG);
    Some(tag)
}

/// Changes the outermost tag, if there is one.
pub(crate) fn modify_vlan(frame: &mut BytesMut, tag: &VlanTag) {
    let Some((_, control)) = outermost_tag(frame) else { return };
    let mut control = control & !ID | tag.id;
    if let Some(priority) = tag.priority {
        // Without a new priority, the old one stays, as in tc.
        control = control & !PRIORITY | control_of(0, priority);
    }
    frame[ADDRESSES..ADDRESSES + 2].copy_from_slice(&tag.ether_type.to_be_bytes());
    frame[ADDRESSES + 2..ADDRESSES + TAG].copy_from_slice(&control.to_be_bytes());
}

/// Returns the EtherType and control information of the outermost tag.
pub(crate) fn outermost_tag(frame: &[u8]) -> Option<(u16, u16)> {
    let tag = frame.get(ADDRESSES..ADDRESSES + TAG + 2)?;
    let ether_type = u16::from_be_bytes([tag[0], tag[1]]);
    is_vlan(ether_type).then(|| (ether_type, u16::from_be_bytes([tag[2], tag[3]])))
}

/// Returns the control information of a tag.
pub(crate) fn control_of(id: u16, priority: u8) -> u16 {
    u16::from(priority) << 13 | id
}

/// Changes a field. A missing header is ignored.
pub(crate) fn edit(frame: &mut [u8], headers: &Headers, edit: &Edit) {
    match edit {
        Edit::DestinationMac(mac) => frame[..6].copy_from_slice(&mac.0),
        Edit::SourceMac(mac) => frame[6..ADDRESSES].copy_from_slice(&mac.0),
        Edit::SourcePort(protocol, port) => set_port(frame, headers, *protocol, 0, *port),
        Edit::DestinationPort(protocol, port) => set_port(frame, headers, *protocol, 2, *port),
        Edit::Source(address) => set_address(frame, headers, *address, 0),
        Edit::Destination(address) => set_address(frame, headers, *address, 1),
        Edit::TrafficClass(version, class) => set_class(frame, headers, *version, *class),
        Edit::HopLimit(version, limit) => set_hops(frame, headers, *version, |_| *limit),
        Edit::AddToHopLimit(version, more) => set_hops(frame, headers, *version, |limit| limit.wrapping_add(*more)),
    }
}

/// Recomputes checksums from scratch, as the sender of the frame would.
pub(crate) fn compute(frame: &mut [u8], headers: &Headers, checksums: &ChecksumSet) {
    let Some((version, network)) = headers.network() else { return };
    if checksums.ipv4 && version == IpVersion::V4 {
        checksum::fill_ipv4_header(&mut frame[network..]);
    }
    let Some(transport) = headers.transport() else { return };
    let is_wanted = match transport.protocol {
        Protocol::Tcp => checksums.tcp,
        _ => checksums.udp && frame[transport.checksum()..transport.checksum() + 2] != [0, 0],
    };
    // `fill_checksums` also writes the IPv4 header checksum, so that checksum is saved first.
    if is_wanted {
        let header = [frame.get(network + 10).copied(), frame.get(network + 11).copied()];
        transport.fill_checksums(frame);
        // The IPv4 checksum was not requested, so its old value is restored.
        if !checksums.ipv4
            && version == IpVersion::V4
            && let [Some(high), Some(low)] = header
        {
            frame[network + 10..network + 12].copy_from_slice(&[high, low]);
        }
    }
}

fn set_port(frame: &mut [u8], headers: &Headers, protocol: Protocol, at: usize, port: u16) {
    let number = if protocol == Protocol::Tcp { TCP } else { UDP };
    let Some((carried, upper)) = headers.upper().filter(|(carried, _)| *carried == number) else { return };
    // Only the first fragment has a transport header; other fragments have payload at this offset.
    if has_upper_header(frame, headers) && upper + at + 2 <= headers.end() {
        let sum = upper_checksum(frame, headers, carried, upper);
        change(frame, upper + at..upper + at + 2, &port.to_be_bytes(), &[sum]);
    }
}

fn set_address(frame: &mut [u8], headers: &Headers, address: IpAddr, which: usize) {
    let Some((_, network)) = headers.network().filter(|(version, _)| *version == IpVersion::of_address(&address))
    else {
        return;
    };
    // The pseudo headers of TCP, UDP and ICMPv6 contain the addresses.
    let upper = headers.upper().filter(|_| has_upper_header(frame, headers));
    let upper = upper.and_then(|(protocol, upper)| upper_checksum(frame, headers, protocol, upper));
    match address {
        IpAddr::V4(address) => {
            let at = network + 12 + 4 * which;
            change(frame, at..at + 4, &address.octets(), &[Some(ChecksumField::plain(network + 10)), upper]);
        }
        IpAddr::V6(address) => {
            let at = network + 8 + 16 * which;
            change(frame, at..at + 16, &address.octets(), &[upper]);
        }
    }
}

fn set_class(frame: &mut [u8], headers: &Headers, version: IpVersion, class: u8) {
    let Some((_, at)) = headers.network().filter(|(one, _)| *one == version) else { return };
    match version {
        IpVersion::V4 => change(frame, at + 1..at + 2, &[class], &[Some(ChecksumField::plain(at + 10))]),
        IpVersion::V6 => {
            frame[at] = frame[at] & 0xf0 | class >> 4;
            frame[at + 1] = frame[at + 1] & 0x0f | class << 4;
        }
    }
}

fn set_hops(frame: &mut [u8], headers: &Headers, version: IpVersion, hops: impl FnOnce(u8) -> u8) {
    let Some((_, at)) = headers.network().filter(|(one, _)| *one == version) else { return };
    match version {
        IpVersion::V4 => {
            // The IPv4 header checksum covers the time to live.
            let hops = hops(frame[at + 8]);
            change(frame, at + 8..at + 9, &[hops], &[Some(ChecksumField::plain(at + 10))]);
        }
        IpVersion::V6 => frame[at + 7] = hops(frame[at + 7]),
    }
}

/// Tests whether the frame contains the start of the IP payload: it is whole, or a first fragment.
fn has_upper_header(frame: &[u8], headers: &Headers) -> bool {
    let (Some((version, network)), Some((_, upper))) = (headers.network(), headers.upper()) else { return false };
    !headers.is_fragment() || is_first(frame, version, network, upper)
}

/// A checksum field of the frame.
#[derive(Clone, Copy)]
struct ChecksumField {
    at: usize,
    /// RFC 768: zero means no checksum, so a computed zero is sent as all ones.
    is_udp: bool,
}

impl ChecksumField {
    fn plain(at: usize) -> ChecksumField {
        ChecksumField { at, is_udp: false }
    }
}

/// Returns the checksum field of the IP payload, if its checksum covers the addresses.
fn upper_checksum(frame: &[u8], headers: &Headers, protocol: u8, upper: usize) -> Option<ChecksumField> {
    let field = match protocol {
        TCP => ChecksumField::plain(upper + 16),
        UDP => ChecksumField { at: upper + 6, is_udp: true },
        ICMPV6 => ChecksumField::plain(upper + 2),
        _ => return None,
    };
    let value = frame.get(field.at..field.at + 2).filter(|_| field.at + 2 <= headers.end())?;
    (!field.is_udp || value != [0, 0]).then_some(field)
}

/// Overwrites the bytes at `at` and updates the checksums `fields`. Headers start at even offsets.
fn change(frame: &mut [u8], at: Range<usize>, value: &[u8], fields: &[Option<ChecksumField>]) {
    // Checksums add whole 16-bit words.
    let words = at.start & !1..(at.end + 1) & !1;
    let (mut before, mut after) = (InternetSum::default(), InternetSum::default());
    before.add(&frame[words.clone()]);
    frame[at].copy_from_slice(value);
    after.add(&frame[words]);
    for field in fields.iter().flatten() {
        // RFC 1624 3, equation 3: HC' = ~(~HC + ~m + m').
        let mut sum = after;
        sum.add(&[!frame[field.at], !frame[field.at + 1]]);
        sum.add(&before.finish().to_be_bytes());
        let mended = sum.finish();
        let mended = if field.is_udp && mended == 0 { u16::MAX } else { mended };
        frame[field.at..field.at + 2].copy_from_slice(&mended.to_be_bytes());
    }
}

/// Length of the Ethernet addresses, and of a VLAN tag.
const ADDRESSES: usize = 12;
const TAG: usize = 4;
/// Bit masks of VLAN id and priority in a tag.
const ID: u16 = 0x0fff;
const PRIORITY: u16 = 0xe000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::Mac;
    use proptest::prelude::*;

    fn datagram(version: IpVersion, tagged: bool, payload: &[u8]) -> BytesMut {
        let mut frame = BytesMut::from(&[2u8; 12][..]);
        if tagged {
            frame.extend_from_slice(&[0x81, 0, 0x20, 7]);
        }
        frame.extend_from_slice(&version.ether_type().to_be_bytes());
        let network = frame.len();
        frame.resize(network + version.header_bytes() + 8, 0);
        match version {
            IpVersion::V4 => frame[network..network + 10].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, UDP]),
            IpVersion::V6 => frame[network..network + 8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, UDP, 64]),
        }
        frame.extend_from_slice(payload);
        let bytes = version.header_bytes() + 8 + payload.len();
        version.set_length(&mut frame[network..], bytes);
        let udp = network + version.header_bytes();
        frame[udp + 4..udp + 6].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
        Headers::parse(&frame).transport().expect("a datagram").fill_checksums(&mut frame);
        frame
    }

    fn edits() -> impl Strategy<Value = Vec<Edit>> {
        prop::collection::vec(
            prop_oneof![
                any::<[u8; 6]>().prop_map(|mac| Edit::SourceMac(Mac(mac))),
                any::<[u8; 4]>().prop_map(|address| Edit::Source(address.into())),
                any::<[u8; 16]>().prop_map(|address| Edit::Destination(address.into())),
                any::<u8>().prop_map(|class| Edit::TrafficClass(IpVersion::V4, class)),
                any::<u8>().prop_map(|class| Edit::TrafficClass(IpVersion::V6, class)),
                any::<u8>().prop_map(|more| Edit::AddToHopLimit(IpVersion::V4, more)),
                any::<u16>().prop_map(|port| Edit::SourcePort(Protocol::Udp, port)),
                any::<u16>().prop_map(|port| Edit::DestinationPort(Protocol::Tcp, port)),
            ],
            0..5,
        )
    }

    proptest! {
        #[test]
        fn checksums_equal_a_new_frames_checksums(
            six in any::<bool>(), tagged in any::<bool>(), payload in prop::collection::vec(any::<u8>(), 0..40), edits in edits(),
        ) {
            let version = if six { IpVersion::V6 } else { IpVersion::V4 };
            let mut frame = datagram(version, tagged, &payload);
            let headers = Headers::parse(&frame);
            edits.iter().for_each(|one| edit(&mut frame, &headers, one));
            let mut anew = frame.clone();
            headers.transport().unwrap().fill_checksums(&mut anew);
            prop_assert_eq!(frame, anew);
        }

        #[test]
        fn a_tag_pushed_comes_off_again(tags in prop::collection::vec((any::<bool>(), any::<u16>()), 0..4)) {
            let bare = datagram(IpVersion::V4, false, &[1, 2, 3]);
            let mut frame = bare.clone();
            let tag = |service: bool| if service { 0x88a8 } else { 0x8100 };
            tags.iter().for_each(|(service, control)| push_vlan(&mut frame, tag(*service), *control));
            for (service, control) in tags.iter().rev() {
                prop_assert_eq!(pop_vlan(&mut frame), Some((tag(*service), *control)));
            }
            prop_assert_eq!((pop_vlan(&mut frame), frame), (None, bare));
        }
    }

    #[test]
    fn a_datagram_without_a_checksum_stays_without() {
        let mut frame = datagram(IpVersion::V4, false, &[1]);
        frame[40..42].fill(0);
        let headers = Headers::parse(&frame);
        edit(&mut frame, &headers, &Edit::Source([9, 9, 9, 9].into()));
        compute(&mut frame, &headers, &ChecksumSet { ipv4: true, tcp: true, udp: true });
        assert_eq!(frame[40..42], [0, 0]);
        assert!(checksum::is_ipv4_header_right(&frame[14..]));
    }

    #[test]
    fn a_changed_tag_keeps_its_unnamed_fields() {
        let mut frame = datagram(IpVersion::V4, true, &[]);
        modify_vlan(&mut frame, &VlanTag { id: 9, priority: None, ether_type: 0x88a8 });
        assert_eq!(frame[12..16], [0x88, 0xa8, 0x20, 9]);
        modify_vlan(&mut frame, &VlanTag { id: 1, priority: Some(5), ether_type: 0x8100 });
        assert_eq!(frame[12..16], [0x81, 0, 0xa0, 1]);
    }
}
