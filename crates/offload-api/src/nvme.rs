//! The NVMe/TCP face of a device: data placed where they belong, digests checked on the way in and made on the way out.
//!
//! The shape is that of the ULP DDP series proposed for Linux: limits, a flow added and removed, buffers of commands
//! given and taken back, resync. Terms: NVMe/TCP Transport Specification 1.0.

use crate::rx::Piece;
use crate::tls::Refused;
use crate::unit::Handle;
use offload_base::Seq;
use offload_formats::FlowKey;

/// What a device can do for NVMe/TCP.
///
/// ```
/// use offload_api::NvmeTcpLimits;
///
/// let limits = NvmeTcpLimits { max_pieces: 256, io_threshold: 32 << 10 };
/// assert!(limits.is_worthwhile(64 << 10, 2) && !limits.is_worthwhile(4096, 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeTcpLimits {
    /// Pieces that a command's buffer may have.
    pub max_pieces: usize,
    /// Commands that move less are not worth it.
    pub io_threshold: usize,
}

impl NvmeTcpLimits {
    /// Whether a buffer of `bytes` bytes in `pieces` pieces is one for the device.
    pub fn is_worthwhile(&self, bytes: usize, pieces: usize) -> bool {
        bytes >= self.io_threshold && pieces <= self.max_pieces
    }
}

/// How a controller frames PDUs, as the ends agreed, and what the device is to do with them.
///
/// ```
/// use offload_api::NvmeTcpConfig;
///
/// let config = NvmeTcpConfig { data_digest: true, check: true, ..NvmeTcpConfig::default() };
/// assert!(!config.header_digest);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmeTcpConfig {
    /// Headers carry digests.
    pub header_digest: bool,
    /// Data carry digests.
    pub data_digest: bool,
    /// HPDA: data begin at a multiple of `(alignment + 1) * 4` bytes.
    pub alignment: u8,
    /// Data digests are to be checked.
    pub check: bool,
    /// The PDUs are the content of TLS records, which a context of the flow's opens. (Set by the TLS layer that they pass.)
    pub over_tls: bool,
}

/// What an NVMe/TCP context is made from.
///
/// ```
/// use offload_api::{NvmeTcpConfig, NvmeTcpContext};
/// use offload_base::Seq;
///
/// let receives = NvmeTcpContext::Receive { start: Seq(1000), config: NvmeTcpConfig::default() };
/// assert_ne!(receives, NvmeTcpContext::Transmit);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmeTcpContext {
    /// It follows what arrives.
    Receive {
        /// Where the next PDU starts.
        start: Seq,
        /// How PDUs are framed.
        config: NvmeTcpConfig,
    },
    /// It works on what leaves, and learns where PDUs start from parameters on its send ring.
    Transmit,
}

/// What an NVMe/TCP host may ask of a device. Nothing here blocks: what takes time ends in a
/// [`DeviceEvent`](crate::DeviceEvent), or when the last piece of a buffer has come home.
pub trait NvmeTcpDevice {
    /// What the device can do.
    fn limits(&mut self) -> NvmeTcpLimits;

    /// Has the device follow what arrives on `flow`, from the PDU that begins at `start`. It works from
    /// [`Ready`](crate::DeviceEvent::Ready) on. Over TLS, sequence numbers are those of the bytes of content on the wire.
    ///
    /// # Errors
    /// Whatever the device cannot take; the flow then stays in software.
    fn add(&mut self, flow: &FlowKey, start: Seq, config: &NvmeTcpConfig) -> Result<Handle, Refused>;

    /// Has the device fill in the data digests of PDUs that are sent on `flow`: those queued with the handle as their
    /// context, the digests' places zero. It may be used at once. All bytes from the first such PDU on are to have it,
    /// in units that are whole PDUs ([`TxTag::device`](crate::TxTag::device)), or be sealed by software. Over TLS they are filled in before the
    /// records are encrypted, which a context of the flow's does too.
    ///
    /// # Errors
    /// Whatever the device cannot take; digests are then software's.
    fn add_transmit(&mut self, flow: &FlowKey) -> Result<Handle, Refused>;

    /// Gives the device the buffer of `command`, the pieces in order, before the command is sent. Data that it places
    /// come as [`Placed`](crate::RxBuf::Placed) pieces of it; the rest comes home when the device is done with it.
    /// Refused, all of it does at once.
    fn place(&mut self, handle: Handle, command: u16, buffer: Vec<Piece>);

    /// Has the device send home what it has of the buffer of `command`.
    fn release(&mut self, handle: Handle, command: u16);

    /// Answers a resync request: whether a PDU begins at `header`.
    fn answer_resync(&mut self, handle: Handle, header: Seq, is_header: bool);

    /// Gives the context up, sending or receiving, and sends all buffers home; [`Removed`](crate::DeviceEvent::Removed) follows.
    fn remove(&mut self, handle: Handle);
}
