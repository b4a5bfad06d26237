//! Policies: `struct xfrm_userpolicy_info` and its attributes.

use super::attribute;
use crate::netlink::{NetlinkBytes, attributes};
use crate::sa::change::{MirroredPolicy, UnsupportedSa};
use offload_api::{Action, Direction, EspMode, Prefix, Selector, Template};
use offload_formats::protocol::ESP;

/// Parses `struct xfrm_userpolicy_info` and the attributes after it. The outer `None` means an invalid message, the
/// inner one a policy for forwarded packets or for a single socket, which have no effect on a host here.
pub(crate) fn read(payload: &[u8]) -> Option<Option<MirroredPolicy>> {
    let info = NetlinkBytes(payload.get(..INFO)?);
    let direction = match info.u8(DIRECTION)? {
        0 => Direction::Receive,
        1 => Direction::Transmit,
        // Forwarded packets and per-socket policies have no counterpart on a host here.
        _ => return Some(None),
    };
    let (mut selector, whole) = selector(info)?;
    let mut action = if whole { action(info.u8(ACTION)? != 0, &payload[INFO..]) } else { Err(UnsupportedSa::Selector) };
    // For these protocols the kernel stores other fields in place of the ports, which the packets here do not show. A
    // policy that passes packets by such a field is left out; one that drops or protects is widened to the whole
    // protocol and drops.
    if selector.protocol.is_some_and(|protocol| NO_PORTS.contains(&protocol)) && action != Ok(Action::Bypass) {
        let ports = (selector.source_port.take(), selector.destination_port.take());
        action = if ports == (None, None) { action } else { Err(UnsupportedSa::Selector) };
    }
    let (index, priority) = (info.u32(INDEX)?, info.u32(PRIORITY)?);
    Some(Some(MirroredPolicy { index, direction, selector, priority, action }))
}

/// Parses the index of a deleted policy: `struct xfrm_userpolicy_id`, followed by XFRMA_POLICY.
pub(crate) fn read_deleted(payload: &[u8]) -> Option<u32> {
    let (_, info) = attributes(payload.get(ID..)?).find(|(kind, _)| *kind == attribute::POLICY)?;
    info.u32(INDEX)
}

/// Parses `struct xfrm_user_polexpire`. Returns the policy's index, and whether the policy is gone.
pub(crate) fn read_expired(payload: &[u8]) -> Option<(u32, bool)> {
    let bytes = NetlinkBytes(payload);
    Some((bytes.u32(INDEX)?, bytes.u8(INFO)? != 0))
}

/// Returns whether a flush concerns the mirrored (main) policies.
pub(crate) fn is_of_main(payload: &[u8]) -> bool {
    attributes(payload).all(|(kind, value)| kind != attribute::POLICY_TYPE || value.u8(0) == Some(0))
}

/// Parses `struct xfrm_userpolicy_default`. Returns whether received and sent packets pass.
pub(crate) fn read_defaults(payload: &[u8]) -> Option<(bool, bool)> {
    let bytes = NetlinkBytes(payload);
    Some((bytes.u8(0)? != DEFAULT_BLOCK, bytes.u8(2)? != DEFAULT_BLOCK))
}

/// Parses a policy's selector. The flag is false if the kernel's selector is narrower than the result.
fn selector(info: NetlinkBytes<'_>) -> Option<(Selector, bool)> {
    let family = info.u16(40)?;
    let prefix = |at, bits| Some(Prefix::new(info.address(at, family)?, info.u8(bits)?));
    let (destination, source) = match family {
        0 => (None, None),
        _ => (prefix(0, 42)?, prefix(16, 43)?),
    };
    let mut whole = (family == 0 || destination.is_some() && source.is_some()) && info.u32(48)? == 0;
    let mut port = |at, mask| match info.u16(mask)? {
        u16::MAX => Some(Some(info.port(at)?)),
        0 => Some(None),
        _ => {
            whole = false;
            Some(None)
        }
    };
    let (destination_port, source_port) = (port(32, 34)?, port(36, 38)?);
    let protocol = Some(info.u8(44)?).filter(|protocol| *protocol != 0);
    Some((Selector { source, destination, protocol, source_port, destination_port }, whole))
}

/// Parses a policy's action.
fn action(blocks: bool, rest: &[u8]) -> Result<Action, UnsupportedSa> {
    let mut template = None;
    for (kind, value) in attributes(rest) {
        match kind {
            attribute::TEMPLATES => template = templates(value)?,
            attribute::MARK | attribute::INTERFACE if value.0.iter().any(|byte| *byte != 0) => {
                return Err(UnsupportedSa::Mark);
            }
            attribute::POLICY_TYPE => match value.u8(0) {
                Some(0) | None => {}
                Some(other) => return Err(UnsupportedSa::PolicyType(other)),
            },
            attribute::MARK | attribute::INTERFACE | attribute::LAST_USED | attribute::PAD | attribute::OFFLOAD => {}
            other => return Err(UnsupportedSa::Attribute(other)),
        }
    }
    Ok(match (blocks, template) {
        (true, _) => Action::Discard,
        (false, Some(template)) => Action::Protect(template),
        (false, None) => Action::Bypass,
    })
}

/// Parses the single template of a policy.
fn templates(value: NetlinkBytes<'_>) -> Result<Option<Template>, UnsupportedSa> {
    if value.0.is_empty() {
        return Ok(None);
    }
    let one = || {
        let family = value.u16(24)?;
        let reqid = value.u32(44)?;
        // strongSwan also names the newest SA. The newest SA of the reqid is used here in any case.
        let names_one = value.u32(16)? != 0 && reqid == 0;
        let wanted = !names_one && value.u8(20)? == ESP && value.u8(50)? == 0;
        Some((wanted, value.address(0, family)?, value.address(28, family)?, reqid, value.u8(48)?))
    };
    let Some((true, destination, source, reqid, mode)) = one().filter(|_| value.0.len() == TEMPLATE) else {
        return Err(UnsupportedSa::Templates);
    };
    match mode {
        0 => Ok(Some(Template::transport(reqid))),
        1 if source.is_unspecified() || destination.is_unspecified() => Err(UnsupportedSa::TunnelEnds),
        1 => Ok(Some(Template { mode: EspMode::Tunnel, source: Some(source), destination: Some(destination), reqid })),
        other => Err(UnsupportedSa::Mode(other)),
    }
}

/// Length of `struct xfrm_userpolicy_info`.
const INFO: usize = 168;
/// Offset of the priority.
const PRIORITY: usize = 152;
/// Offset of the index.
const INDEX: usize = 156;
/// Offset of the direction.
const DIRECTION: usize = 160;
/// Offset of the action.
const ACTION: usize = 161;
/// Length of `struct xfrm_userpolicy_id`.
const ID: usize = 64;
/// Length of `struct xfrm_user_tmpl`.
const TEMPLATE: usize = 64;
/// `XFRM_USERPOLICY_BLOCK`.
const DEFAULT_BLOCK: u8 = 1;
/// Protocols without ports: ICMP, GRE, ICMPv6 and Mobile IPv6. Their selectors hold type and code, or a key
/// (`xfrm_flowi_sport`).
const NO_PORTS: [u8; 4] = [1, 47, 58, 135];
