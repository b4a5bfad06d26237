//! A frame and its metadata.

use bytes::Bytes;
use core::num::NonZeroU16;
use offload_api::Handle;

/// A frame in the switch.
///
/// ```
/// use bytes::Bytes;
/// use nic_switch::Frame;
///
/// let frame = Frame::from(Bytes::from_static(&[0; 60]));
/// assert_eq!(frame.cut, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Ethernet header and payload, without the frame check sequence.
    pub bytes: Bytes,
    /// Payload bytes per segment of a frame that is still to be cut (TSO, USO). Length fields and TCP or UDP checksums
    /// are invalid until then. `None` for a complete frame.
    pub cut: Option<NonZeroU16>,
    /// Offset of the frame to be cut: after the tunnel headers, or 0.
    pub inner: u16,
    /// The SA that opened the frame at the uplink, or that must protect it there. `None` for an outgoing frame lets the
    /// sender's policies decide.
    pub sa: Option<Handle>,
}

impl From<Bytes> for Frame {
    fn from(bytes: Bytes) -> Frame {
        Frame { bytes, cut: None, inner: 0, sa: None }
    }
}
