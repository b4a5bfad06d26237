//! Engines that follow the bytes of flows.

use crate::{Context, Engine, Payload};
use bytes::BytesMut;
use offload_api::{Handle, Verdict};
use offload_base::Seq;

/// An engine that follows the bytes of flows.
pub trait StreamEngine: Engine {
    /// Whether it counts units: then a transmit context is told the number of each that it is to begin at and that is not the
    /// next ([`count_from`](Self::count_from)).
    const COUNTS_UNITS: bool = true;

    /// Works on the payload of a received packet. `None`: it has nothing to say about it.
    fn receive(context: Context<'_, Self>, payload: &mut Payload<'_>, counters: &mut Self::Counters)
    -> Option<Verdict>;

    /// The next unit that a transmit context is told of has this number. False: it is no transmit context.
    fn count_from(context: Context<'_, Self>, number: u64) -> bool;

    /// A unit starts at `start`, and is the next to come. False: it is no transmit context. Places here and below are TCP sequence
    /// numbers of units that lie in none of another engine; in those of others, they count the bytes of the engine's own stream, up to
    /// 2^32 likewise.
    fn begin(context: Context<'_, Self>, start: Seq) -> bool;

    /// Whether the byte at `at` is the next of a transmit context; `None`: the context does not transmit.
    fn expects(state: &Self::State, at: Seq) -> Option<bool>;

    /// Makes of `bytes`, which are at `at`, what belongs on the wire, and appends it to `out`, as many as they are. Says how much it
    /// did, in the engine's own measure.
    fn transmit(context: Context<'_, Self>, at: Seq, bytes: &[u8], out: &mut BytesMut) -> Result<u64, OutOfStep>;

    /// The keys that stages of a context need for the payload of a received packet.
    fn keys_to_receive(_: Context<'_, Self>, _: &Payload<'_>, _key: &mut dyn FnMut(Handle)) {}

    /// And for bytes that are the next of a transmit context.
    fn keys_to_transmit(_: Context<'_, Self>, _bytes: &[u8], _key: &mut dyn FnMut(Handle)) {}

    /// Whether a transmit context works on a packet before that is cut into segments, by
    /// [`transmit_whole`](Self::transmit_whole): because it has to know what follows.
    fn works_on_whole_packets(_: &Context<'_, Self>) -> bool {
        false
    }

    /// The same as [`transmit`](Self::transmit) for all bytes of a packet, and then counts what it did; or for those that a resync
    /// brings an engine below, which is not counted. `ahead` is what follows in the unit, up to
    /// [`EngineInfo::looks_ahead`](offload_api::EngineInfo::looks_ahead) bytes.
    fn transmit_whole(
        _: Context<'_, Self>,
        _at: Seq,
        _bytes: &[u8],
        _ahead: &[u8],
        _out: &mut BytesMut,
        _: Option<&mut Self::Counters>,
    ) -> Result<(), OutOfStep> {
        Err(OutOfStep)
    }

    /// A frame leaves on which so much was done.
    fn note_sent(worked: u64, counters: &mut Self::Counters);
}

/// The bytes are not the next of an engine's stream, or not framed as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfStep;
