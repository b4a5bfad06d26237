//! Engines that follow the bytes of flows.

use crate::{Context, Engine, ReceivedPayload};
use bytes::BytesMut;
use offload_api::{Handle, Verdict};
use offload_base::Seq;

/// An engine that follows the bytes of flows.
pub trait StreamEngine: Engine {
    /// Whether the engine counts units. If so, a transmit context is told the number of each unit that is not the next
    /// one ([`count_from`](Self::count_from)).
    const COUNTS_UNITS: bool = true;

    /// Processes the payload of a received packet. Returns `None` if the engine has no verdict.
    fn receive(
        context: Context<'_, Self>,
        payload: &mut ReceivedPayload<'_>,
        counters: &mut Self::Counters,
    ) -> Option<Verdict>;

    /// Sets the number of the next unit that a transmit context is told of. Returns false if the context does not
    /// transmit.
    fn count_from(context: Context<'_, Self>, number: u64) -> bool;

    /// Moves a transmit context to a unit that starts at `start`, and comes next. Returns false if the context does not
    /// transmit. For a flow's lowest engine, positions are TCP sequence numbers. For an engine in the units of another,
    /// positions count the bytes of the engine's own stream, modulo 2^32.
    fn begin(context: Context<'_, Self>, start: Seq) -> bool;

    /// Tests whether the byte at `at` is the next byte of a transmit context. Returns `None` if the context does not
    /// transmit.
    fn expects(state: &Self::State, at: Seq) -> Option<bool>;

    /// Converts `bytes` at `at` to the bytes of the wire, and appends equally many to `out`. Returns the amount of work
    /// in the engine's own measure.
    fn transmit(context: Context<'_, Self>, at: Seq, bytes: &[u8], out: &mut BytesMut) -> Result<u64, OutOfStep>;

    /// Calls `key` for each key that stages of a context need for the payload of a received packet.
    fn keys_to_receive(_: Context<'_, Self>, _: &ReceivedPayload<'_>, _key: &mut dyn FnMut(Handle)) {}

    /// Calls `key` for each key that stages need for the next bytes of a transmit context.
    fn keys_to_transmit(_: Context<'_, Self>, _bytes: &[u8], _key: &mut dyn FnMut(Handle)) {}

    /// Tests whether a transmit context must process a packet before segmentation, by
    /// [`transmit_whole`](Self::transmit_whole), because the engine needs the bytes that follow.
    fn works_on_whole_packets(_: &Context<'_, Self>) -> bool {
        false
    }

    /// Does [`transmit`](Self::transmit) for all bytes of a packet. Counts the work if counters are given; the bytes of
    /// a resync for an engine below are not counted. `ahead` holds the bytes that follow in the unit, up to
    /// [`EngineInfo::looks_ahead`](offload_api::EngineInfo::looks_ahead) of them.
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

    /// Counts the work on a frame that leaves.
    fn note_sent(worked: u64, counters: &mut Self::Counters);
}

/// The error for bytes that are not the next ones of an engine's stream, or are not framed correctly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfStep;
