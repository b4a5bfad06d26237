//! A frame and what is still to be done to it.

use bytes::Bytes;
use core::num::NonZeroU16;
use offload_api::Handle;

/// A frame on its way through the switch.
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
    /// Ethernet's header and what follows, without its checksum.
    pub bytes: Bytes,
    /// Bytes of payload of each segment that the frame is still to be cut into (TSO, USO). Until then its length fields and
    /// the checksums of TCP and UDP say nothing. `None`: the frame is as it is.
    pub cut: Option<NonZeroU16>,
    /// Where the frame begins that is to be cut: behind the headers of a tunnel, or 0.
    pub inner: u16,
    /// The SA that protected the frame on the uplink, or that is to protect it there. `None` of a frame that leaves by the
    /// uplink: the sender's policies decide.
    pub sa: Option<Handle>,
}

impl From<Bytes> for Frame {
    fn from(bytes: Bytes) -> Frame {
        Frame { bytes, cut: None, inner: 0, sa: None }
    }
}
