//! Encoding and decoding of messages.

use super::field::{FieldReader, FieldResult, MessageField, MessageWriter};
use super::{FrameError, VERSION};
use crate::sa::change::{KernelSaId, MirroredSa, SaChange, SaReport};
use offload_api::{Direction, OffloadKind, SaParams};
use zeroize::Zeroizing;

/// A message between agent and mirror.
///
/// ```
/// use linux_mirror::sa::{SaChange, FrameDecoder, Message, encode};
///
/// let mut said = Vec::new();
/// FrameDecoder::new().decode(&encode(&Message::Change(SaChange::AllSasGone)), |message| said.push(message));
/// assert!(matches!(said[0], Ok(Message::Change(SaChange::AllSasGone))));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Message {
    /// From the agent: it is present, and speaks this protocol version. A snapshot follows.
    Hello(u16),
    /// From the mirror: it is present, speaks this protocol version, and requests a snapshot.
    Ask(u16),
    /// From the agent: a change of SAs or policies in the kernel.
    Change(SaChange),
    /// From the mirror: news of an SA.
    Report(SaReport),
    /// From the mirror: pass on all pending messages of the kernel, then answer with [`Synced`](Self::Synced) and this
    /// number.
    Sync(u32),
    /// From the agent: all messages before the sync with this number were passed on.
    Synced(u32),
}

impl Message {
    /// Returns the agent's hello with the current version.
    pub fn hello() -> Message {
        Message::Hello(VERSION)
    }

    /// Returns the mirror's request for a snapshot.
    pub fn ask() -> Message {
        Message::Ask(VERSION)
    }

    /// Encodes the message, without a frame.
    pub(super) fn encoded(&self) -> Zeroizing<Vec<u8>> {
        let mut out = MessageWriter::new();
        let (kind, fields): (u8, &[&dyn MessageField]) = match self {
            Message::Hello(version) => (1, &[version]),
            Message::Ask(version) => (2, &[version]),
            Message::Change(change) => match change {
                SaChange::SnapshotBegins => (3, &[]),
                SaChange::SnapshotEnds => (4, &[]),
                SaChange::Sa(sa) => (5, &[&**sa]),
                SaChange::SaUnsupported(name, why) => (6, &[name, why]),
                SaChange::SaGone(name) => (7, &[name]),
                SaChange::AllSasGone => (8, &[]),
                SaChange::Policy(policy) => (9, &[policy]),
                SaChange::PolicyGone(index) => (10, &[index]),
                SaChange::AllPoliciesGone => (11, &[]),
                SaChange::Defaults { receive, transmit } => (12, &[receive, transmit]),
            },
            Message::Report(SaReport::Used(name, used)) => (13, &[name, used]),
            Message::Report(SaReport::Expired(name, hard)) => (14, &[name, hard]),
            Message::Sync(number) => (15, &[number]),
            Message::Synced(number) => (16, &[number]),
        };
        kind.write(&mut out);
        out.put(fields);
        out.0
    }

    pub(super) fn decode(mut from: FieldReader<'_>) -> FieldResult<Message> {
        // The numbers are the protocol's, and must not change within a version.
        let message = match from.get::<u8>()? {
            1 => Message::Hello(from.get()?),
            2 => Message::Ask(from.get()?),
            3 => Message::Change(SaChange::SnapshotBegins),
            4 => Message::Change(SaChange::SnapshotEnds),
            5 => Message::Change(SaChange::Sa(Box::new(from.get()?))),
            6 => Message::Change(SaChange::SaUnsupported(from.get()?, from.get()?)),
            7 => Message::Change(SaChange::SaGone(from.get()?)),
            8 => Message::Change(SaChange::AllSasGone),
            9 => Message::Change(SaChange::Policy(from.get()?)),
            10 => Message::Change(SaChange::PolicyGone(from.get()?)),
            11 => Message::Change(SaChange::AllPoliciesGone),
            12 => Message::Change(SaChange::Defaults { receive: from.get()?, transmit: from.get()? }),
            13 => Message::Report(SaReport::Used(from.get()?, from.get()?)),
            14 => Message::Report(SaReport::Expired(from.get()?, from.get()?)),
            15 => Message::Sync(from.get()?),
            16 => Message::Synced(from.get()?),
            other => return Err(FrameError::Kind(other)),
        };
        from.end().map(|()| message)
    }
}

impl MessageField for MirroredSa {
    fn write(&self, out: &mut MessageWriter) {
        let MirroredSa { params, direction, sent, received, used } = self;
        out.put(&[&self.name(), direction, &params.mode, &params.reqid, &params.key, &params.esn]);
        out.put(&[&params.replay_window, &params.encapsulation, &params.keep_alive, &params.lifetime]);
        out.put(&[&params.dont_fragment, &params.dscp, &params.dscp_out, &params.ecn, sent, received, used]);
    }

    fn read(from: &mut FieldReader<'_>) -> FieldResult<MirroredSa> {
        let KernelSaId { source, destination, spi } = from.get()?;
        let direction: Option<Direction> = from.get()?;
        let params = SaParams {
            // The mirror derives an unreported direction from the addresses; this value is a placeholder.
            direction: direction.unwrap_or(Direction::Transmit),
            spi,
            source,
            destination,
            mode: from.get()?,
            reqid: from.get()?,
            key: from.get()?,
            esn: from.get()?,
            replay_window: from.get()?,
            encapsulation: from.get()?,
            keep_alive: from.get()?,
            lifetime: from.get()?,
            dont_fragment: from.get()?,
            dscp: match from.get()? {
                Some(64..) => return Err(FrameError::Value("a DSCP")),
                dscp => dscp,
            },
            dscp_out: from.get()?,
            ecn: from.get()?,
            last_number: 0,
            offload: OffloadKind::None,
        };
        Ok(MirroredSa { params, direction, sent: from.get()?, received: from.get()?, used: from.get()? })
    }
}
