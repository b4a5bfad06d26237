//! Messages to bytes and back.

use super::field::{Reader, Writer};
use super::{FrameError, VERSION};
use crate::sa::change::{Change, MirroredPolicy, MirroredSa, Report, SaName, Unsupported, Used};
use offload_api::{Action, Direction, DontFragment, OffloadKind, SaParams, Selector, Template, UdpEncapsulation};
use zeroize::Zeroizing;

type Read<T> = Result<T, FrameError>;

/// What agent and mirror say to each other.
///
/// ```
/// use linux_mirror::sa::{Change, Decoder, Message, encode};
///
/// let mut said = Vec::new();
/// Decoder::new().decode(&encode(&Message::Change(Change::AllSasGone)), |message| said.push(message));
/// assert!(matches!(said[0], Ok(Message::Change(Change::AllSasGone))));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Message {
    /// The agent is there, and speaks this version. A snapshot follows.
    Hello(u16),
    /// The mirror is there, speaks this version, and wants a snapshot.
    Ask(u16),
    /// From the agent: what became of SAs and policies in the kernel.
    Change(Change),
    /// From the mirror: what became of SAs outside.
    Report(Report),
    /// From the mirror: tell of everything that the kernel has told until now, then say [`Synced`](Self::Synced) of this number.
    Sync(u32),
    /// From the agent: everything was told.
    Synced(u32),
}

impl Message {
    /// That an agent is there.
    pub fn hello() -> Message {
        Message::Hello(VERSION)
    }

    /// That a mirror is there.
    pub fn ask() -> Message {
        Message::Ask(VERSION)
    }

    /// As bytes, without a frame.
    pub(super) fn encoded(&self) -> Zeroizing<Vec<u8>> {
        let mut writer = Writer::new(self.kind());
        let out = &mut writer;
        match self {
            Message::Hello(version) | Message::Ask(version) => out.u16(*version),
            Message::Change(change) => match change {
                Change::SnapshotBegins | Change::SnapshotEnds | Change::AllSasGone | Change::AllPoliciesGone => {}
                Change::Sa(sa) => write_sa(out, sa),
                Change::SaUnsupported(name, why) => {
                    write_name(out, *name);
                    write_unsupported(out, why);
                }
                Change::SaGone(name) => write_name(out, *name),
                Change::Policy(policy) => write_policy(out, policy),
                Change::PolicyGone(index) => out.u32(*index),
                Change::Defaults { receive, transmit } => {
                    out.flag(*receive);
                    out.flag(*transmit);
                }
            },
            Message::Sync(number) | Message::Synced(number) => out.u32(*number),
            Message::Report(Report::Used(name, used)) => {
                write_name(out, *name);
                write_used(out, *used);
            }
            Message::Report(Report::Expired(name, hard)) => {
                write_name(out, *name);
                out.flag(*hard);
            }
        }
        writer.0
    }

    pub(super) fn decode(mut bytes: Reader<'_>) -> Read<Message> {
        let from = &mut bytes;
        let message = match from.u8()? {
            1 => Message::Hello(from.u16()?),
            2 => Message::Ask(from.u16()?),
            3 => Message::Change(Change::SnapshotBegins),
            4 => Message::Change(Change::SnapshotEnds),
            5 => Message::Change(Change::Sa(Box::new(read_sa(from)?))),
            6 => Message::Change(Change::SaUnsupported(read_name(from)?, read_unsupported(from)?)),
            7 => Message::Change(Change::SaGone(read_name(from)?)),
            8 => Message::Change(Change::AllSasGone),
            9 => Message::Change(Change::Policy(read_policy(from)?)),
            10 => Message::Change(Change::PolicyGone(from.u32()?)),
            11 => Message::Change(Change::AllPoliciesGone),
            12 => Message::Change(Change::Defaults { receive: from.flag()?, transmit: from.flag()? }),
            13 => Message::Report(Report::Used(read_name(from)?, read_used(from)?)),
            14 => Message::Report(Report::Expired(read_name(from)?, from.flag()?)),
            15 => Message::Sync(from.u32()?),
            16 => Message::Synced(from.u32()?),
            other => return Err(FrameError::Kind(other)),
        };
        bytes.end().map(|()| message)
    }

    fn kind(&self) -> u8 {
        match self {
            Message::Hello(_) => 1,
            Message::Ask(_) => 2,
            Message::Change(change) => match change {
                Change::SnapshotBegins => 3,
                Change::SnapshotEnds => 4,
                Change::Sa(_) => 5,
                Change::SaUnsupported(..) => 6,
                Change::SaGone(_) => 7,
                Change::AllSasGone => 8,
                Change::Policy(_) => 9,
                Change::PolicyGone(_) => 10,
                Change::AllPoliciesGone => 11,
                Change::Defaults { .. } => 12,
            },
            Message::Report(Report::Used(..)) => 13,
            Message::Report(Report::Expired(..)) => 14,
            Message::Sync(_) => 15,
            Message::Synced(_) => 16,
        }
    }
}

fn write_name(out: &mut Writer, name: SaName) {
    out.address(name.source);
    out.address(name.destination);
    out.u32(name.spi);
}

fn read_name(from: &mut Reader<'_>) -> Read<SaName> {
    Ok(SaName { source: from.address()?, destination: from.address()?, spi: from.u32()? })
}

fn write_used(out: &mut Writer, used: Used) {
    out.u64(used.bytes);
    out.u64(used.packets);
}

fn read_used(from: &mut Reader<'_>) -> Read<Used> {
    Ok(Used { bytes: from.u64()?, packets: from.u64()? })
}

fn write_sa(out: &mut Writer, sa: &MirroredSa) {
    let params = &sa.params;
    write_name(out, sa.name());
    out.option(sa.direction, Writer::direction);
    out.mode(params.mode);
    out.u32(params.reqid);
    out.key(&params.key);
    out.flag(params.esn);
    out.u32(params.replay_window);
    out.option(params.encapsulation, |out, encapsulation| {
        out.u16(encapsulation.source_port);
        out.u16(encapsulation.destination_port);
    });
    out.option(params.keep_alive, Writer::seconds);
    out.lifetime(&params.lifetime);
    out.u8(match params.dont_fragment {
        DontFragment::Copy => 0,
        DontFragment::Set => 1,
        DontFragment::Clear => 2,
    });
    out.option(params.dscp, Writer::u8);
    out.flag(params.dscp_out);
    out.flag(params.ecn);
    out.u64(sa.sent);
    out.u64(sa.received);
    write_used(out, sa.used);
}

fn read_sa(from: &mut Reader<'_>) -> Read<MirroredSa> {
    let SaName { source, destination, spi } = read_name(from)?;
    let direction = from.option(Reader::direction)?;
    let params = SaParams {
        direction: direction.unwrap_or(Direction::Transmit),
        spi,
        source,
        destination,
        mode: from.mode()?,
        reqid: from.u32()?,
        key: from.key()?,
        esn: from.flag()?,
        replay_window: from.u32()?,
        encapsulation: from
            .option(|from| Ok(UdpEncapsulation { source_port: from.u16()?, destination_port: from.u16()? }))?,
        keep_alive: from.option(Reader::seconds)?,
        lifetime: from.lifetime()?,
        dont_fragment: match from.u8()? {
            0 => DontFragment::Copy,
            1 => DontFragment::Set,
            2 => DontFragment::Clear,
            _ => return Err(FrameError::Value("don't fragment")),
        },
        dscp: match from.option(Reader::u8)? {
            Some(64..) => return Err(FrameError::Value("a DSCP")),
            dscp => dscp,
        },
        dscp_out: from.flag()?,
        ecn: from.flag()?,
        last_number: 0,
        offload: OffloadKind::None,
    };
    Ok(MirroredSa { params, direction, sent: from.u64()?, received: from.u64()?, used: read_used(from)? })
}

fn write_policy(out: &mut Writer, policy: &MirroredPolicy) {
    let selector = &policy.selector;
    out.u32(policy.index);
    out.direction(policy.direction);
    out.option(selector.source, Writer::prefix);
    out.option(selector.destination, Writer::prefix);
    out.option(selector.protocol, Writer::u8);
    out.option(selector.source_port, Writer::u16);
    out.option(selector.destination_port, Writer::u16);
    out.u32(policy.priority);
    match &policy.action {
        Ok(Action::Discard) => out.u8(0),
        Ok(Action::Bypass) => out.u8(1),
        Ok(Action::Protect(template)) => {
            out.u8(2);
            out.mode(template.mode);
            out.option(template.source, Writer::address);
            out.option(template.destination, Writer::address);
            out.u32(template.reqid);
        }
        Err(why) => {
            out.u8(3);
            write_unsupported(out, why);
        }
    }
}

fn read_policy(from: &mut Reader<'_>) -> Read<MirroredPolicy> {
    Ok(MirroredPolicy {
        index: from.u32()?,
        direction: from.direction()?,
        selector: Selector {
            source: from.option(Reader::prefix)?,
            destination: from.option(Reader::prefix)?,
            protocol: from.option(Reader::u8)?,
            source_port: from.option(Reader::u16)?,
            destination_port: from.option(Reader::u16)?,
        },
        priority: from.u32()?,
        action: match from.u8()? {
            0 => Ok(Action::Discard),
            1 => Ok(Action::Bypass),
            2 => Ok(Action::Protect(Template {
                mode: from.mode()?,
                source: from.option(Reader::address)?,
                destination: from.option(Reader::address)?,
                reqid: from.u32()?,
            })),
            3 => Err(read_unsupported(from)?),
            _ => return Err(FrameError::Value("an action")),
        },
    })
}

fn write_unsupported(out: &mut Writer, why: &Unsupported) {
    let (code, value) = match why {
        Unsupported::Protocol(protocol) => (0, u32::from(*protocol)),
        Unsupported::Algorithm(name) => {
            out.u8(1);
            return out.text(name);
        }
        Unsupported::Mode(mode) => (2, u32::from(*mode)),
        Unsupported::Mark => (3, 0),
        Unsupported::Selector => (4, 0),
        Unsupported::SaSelector => (5, 0),
        Unsupported::Flags(flags) => (6, *flags),
        Unsupported::Encapsulation(kind) => (7, u32::from(*kind)),
        Unsupported::Attribute(kind) => (8, u32::from(*kind)),
        Unsupported::Templates => (9, 0),
        Unsupported::TunnelEnds => (10, 0),
        Unsupported::PolicyType(kind) => (11, u32::from(*kind)),
    };
    out.u8(code);
    out.u32(value);
}

fn read_unsupported(from: &mut Reader<'_>) -> Read<Unsupported> {
    let code = from.u8()?;
    if code == 1 {
        return from.text().map(Unsupported::Algorithm);
    }
    let value = from.u32()?;
    let byte = || u8::try_from(value).map_err(|_| FrameError::Value("a reason"));
    let word = || u16::try_from(value).map_err(|_| FrameError::Value("a reason"));
    Ok(match code {
        0 => Unsupported::Protocol(byte()?),
        2 => Unsupported::Mode(byte()?),
        3 => Unsupported::Mark,
        4 => Unsupported::Selector,
        5 => Unsupported::SaSelector,
        6 => Unsupported::Flags(value),
        7 => Unsupported::Encapsulation(word()?),
        8 => Unsupported::Attribute(word()?),
        9 => Unsupported::Templates,
        10 => Unsupported::TunnelEnds,
        11 => Unsupported::PolicyType(byte()?),
        _ => return Err(FrameError::Value("a reason")),
    })
}
