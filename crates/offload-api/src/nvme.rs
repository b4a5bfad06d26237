//! NVMe/TCP contexts of a device: direct data placement, and data digests checked on receive and computed on transmit.
//!
//! The interface follows the ULP DDP series proposed for Linux: limits, adding and removing a flow, placing and
//! releasing the buffers of commands, resync. Terms: NVMe/TCP Transport Specification 1.0.

use crate::contexts::{Contexts, EngineInfo, NewContext, StageSpec};
use crate::direction::Direction;
use crate::key::Key;
use crate::refused::ContextRefusal;
use crate::rx::Piece;
use crate::unit::{Handle, Layer};
use core::fmt;
use offload_base::Seq;
use offload_formats::FlowKey;

/// The placement limits of a device.
///
/// ```
/// use offload_api::NvmeTcpLimits;
///
/// let limits = NvmeTcpLimits { max_pieces: 256, io_threshold: 32 << 10 };
/// assert!(limits.is_worthwhile(64 << 10, 2) && !limits.is_worthwhile(4096, 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeTcpLimits {
    /// Maximum number of pieces of a command's buffer.
    pub max_pieces: usize,
    /// Minimum data length of a command for which offload is worthwhile.
    pub io_threshold: usize,
}

impl NvmeTcpLimits {
    /// Tests whether the device should get a buffer of `bytes` bytes in `pieces` pieces.
    pub fn is_worthwhile(&self, bytes: usize, pieces: usize) -> bool {
        bytes >= self.io_threshold && pieces <= self.max_pieces
    }
}

/// The PDU framing that host and controller agreed on, and the checks by the device.
///
/// ```
/// use offload_api::NvmeTcpConfig;
///
/// let config = NvmeTcpConfig { data_digest: true, check: true, ..NvmeTcpConfig::default() };
/// assert!(!config.header_digest);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmeTcpConfig {
    /// Headers have digests.
    pub header_digest: bool,
    /// Data have digests.
    pub data_digest: bool,
    /// HPDA: data start at a multiple of `(alignment + 1) * 4` bytes.
    pub alignment: u8,
    /// The device checks data digests.
    pub check: bool,
}

/// The parameters of an NVMe/TCP context.
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
    /// A context that follows received PDUs.
    Receive {
        /// Sequence number of the next PDU.
        start: Seq,
        /// PDU framing.
        config: NvmeTcpConfig,
    },
    /// A context that works on sent PDUs. It gets the position of PDUs from parameters on its send ring.
    Transmit,
}

/// Stages for the data of one command. Data pass the stages on their way into the command's buffer (receive), or on
/// their way out of the host (transmit).
///
/// Stages work on whole blocks of 16 bytes, in PDUs without a digest or with a correct digest so far. Other bytes are
/// placed as received; [`Piece::opened`](crate::Piece::opened) tells the two apart. If a block continues in the next
/// packet, the device places the whole block with that packet ([`Piece::lead`](crate::Piece::lead)).
///
/// ```
/// use offload_api::{NvmeTcpStages, StageSpec};
///
/// let stages = NvmeTcpStages { command: 7, unit: 4096, stages: vec![StageSpec::new("add", 7u8)] };
/// assert_eq!(&*stages.stages[0].name, "add");
/// ```
#[derive(Debug)]
pub struct NvmeTcpStages {
    /// The command id. For a transmit context, the number by which PDUs [name](MarkedData) the stages.
    pub command: u16,
    /// Unit number for the stages: the first logical block.
    pub unit: u64,
    /// The stages, in the order for outgoing data.
    pub stages: Vec<StageSpec>,
}

/// A marker in the queued header of a data PDU from a host, for a device that passes the data through stages. The
/// marker replaces DATAL and the reserved bytes after it; the device or the sealer writes the real contents. The data
/// and their offset in the command must be whole blocks of 16 bytes.
///
/// ```
/// use offload_api::MarkedData;
///
/// let mut header = [0; 24];
/// let marked = MarkedData::new(3, 1 << 40).unwrap();
/// marked.write(&mut header);
/// assert_eq!(MarkedData::read(&header), Some(marked));
/// MarkedData::erase(&mut header, 4096);
/// assert_eq!((MarkedData::read(&header), &header[16..20]), (None, &4096u32.to_le_bytes()[..]));
/// assert_eq!(MarkedData::new(3, 1 << 48), None, "unit numbers have 48 bits");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkedData(u64);

impl MarkedData {
    /// Offset in a header.
    pub const AT: usize = 16;
    /// End in a header.
    pub const END: usize = 24;

    /// Makes the marker of the stages with this number, for data that start at `unit`. Returns `None` if a number is
    /// out of range.
    pub fn new(stages: u16, unit: u64) -> Option<MarkedData> {
        // A value of 0 would be indistinguishable from an unmarked header.
        (stages != 0 && unit < 1 << 48).then_some(MarkedData(u64::from(stages) << 48 | unit))
    }

    /// Reads the marker of a header; `None` if the data are to be sent unchanged.
    pub fn read(header: &[u8; Self::END]) -> Option<MarkedData> {
        let value = header.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        (value >> 48 != 0).then_some(MarkedData(value))
    }

    /// Writes the marker into a header.
    pub fn write(self, header: &mut [u8; Self::END]) {
        header[Self::AT..].copy_from_slice(&self.0.to_le_bytes());
    }

    /// Writes the real contents, for a PDU with `data` bytes of data.
    pub fn erase(header: &mut [u8; Self::END], data: u32) {
        header[Self::AT..].copy_from_slice(&u64::from(data).to_le_bytes());
    }

    /// Returns the number of the stages.
    pub fn stages(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// Returns the first unit of the data.
    pub fn unit(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
}

/// Name of the AES-XTS stage; its parameters are an [`XtsStage`].
pub const XTS_STAGE: &str = "xts";

/// Name of the protection information stage; its parameters are the format (`offload_transforms::protection::InPlace`).
/// The stage writes the information after each block on transmit and verifies it on receive. Units are blocks with
/// their protection information, and sent data start with a whole unit.
pub const PROTECTION_STAGE: &str = "protection";

/// Parameters of the stage [`XTS_STAGE`]: a data-encryption key that the device has as a context. No key crosses PCIe
/// with a command. The device refuses a key of another tenant or volume, or a removed key.
///
/// ```
/// use offload_api::{Handle, StageSpec, XTS_STAGE, XtsStage};
///
/// let key = XtsStage { key: Handle { index: 3, generation: 0 }, tenant: 7, volume: 1 };
/// let stage = StageSpec::new(XTS_STAGE, key);
/// assert_eq!(stage.spec.downcast_ref(), Some(&key));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XtsStage {
    /// Context of the key engine, on the same queue of the device.
    pub key: Handle,
    /// Tenant of the key.
    pub tenant: u32,
    /// Volume of the key.
    pub volume: u64,
}

/// The NVMe/TCP interface of a device for a host: a typed wrapper of [`Contexts`]. No method blocks; slow operations
/// end in a [`DeviceEvent`](crate::DeviceEvent), or when the last piece of a buffer returns to its owner.
///
/// ```
/// use nic_sim::{NicConfig, nic};
/// use offload_api::{FlowKey, NvmeTcpConfig, TypedContexts};
/// use offload_base::Seq;
///
/// let (_device, mut driver) = nic(NicConfig::default());
/// let flow = FlowKey::tcp("10.0.0.2:50000".parse().unwrap(), "10.0.0.1:4420".parse().unwrap());
/// let mut contexts = driver.nvme().unwrap();
/// let receiver = contexts.add(&flow, Seq(1000), &NvmeTcpConfig::default()).unwrap();
/// contexts.remove(receiver);
/// ```
pub struct NvmeTcpContexts<'a> {
    contexts: &'a mut dyn Contexts,
    engine: EngineInfo,
    layer: Layer,
}

impl<'a> NvmeTcpContexts<'a> {
    /// Name of the engine.
    pub const ENGINE: &'static str = "nvme-tcp";

    /// Wraps the contexts of a device, if the device has the engine.
    pub fn from_contexts(contexts: &'a mut dyn Contexts) -> Option<NvmeTcpContexts<'a>> {
        let engine = contexts.engine(Self::ENGINE)?;
        Some(NvmeTcpContexts { contexts, engine, layer: Layer::FIRST })
    }

    /// Selects the layer of the PDUs, for PDUs inside the units of another layer with contexts of its own. That layer
    /// calls this method; a protocol above it does not.
    #[must_use]
    pub fn at(self, layer: Layer) -> NvmeTcpContexts<'a> {
        NvmeTcpContexts { layer, ..self }
    }

    /// Returns the placement limits of the device.
    pub fn limits(&self) -> NvmeTcpLimits {
        // An engine without limits places nothing.
        let none = NvmeTcpLimits { max_pieces: 0, io_threshold: usize::MAX };
        self.engine.capabilities.get().copied().unwrap_or(none)
    }

    /// Makes the device follow received data of `flow`, from the PDU at `start`. The context works after
    /// [`Ready`](crate::DeviceEvent::Ready). Over TLS, sequence numbers are those of the content bytes on the wire.
    ///
    /// # Errors
    /// If the device refuses. The flow then stays in software.
    pub fn add(&mut self, flow: &FlowKey, start: Seq, config: &NvmeTcpConfig) -> Result<Handle, ContextRefusal> {
        let keys = vec![Key::Flow(*flow, self.layer)];
        self.create(flow, Direction::Receive, keys, NvmeTcpContext::Receive { start, config: *config })
    }

    /// Makes the device compute data digests of PDUs sent on `flow`. The context may be used at once. It applies to
    /// PDUs queued with the returned handle and with zeros in place of the digest. From the first such PDU on, all
    /// bytes must be queued with the handle in units of whole PDUs ([`TxTag::device`](crate::TxTag::device)), or be
    /// sealed by software. Over TLS, the digests are filled in before a context of the flow encrypts the records.
    ///
    /// # Errors
    /// If the device refuses. Software then computes the digests.
    pub fn add_transmit(&mut self, flow: &FlowKey) -> Result<Handle, ContextRefusal> {
        self.create(flow, Direction::Transmit, Vec::new(), NvmeTcpContext::Transmit)
    }

    fn create(
        &mut self,
        flow: &FlowKey,
        direction: Direction,
        keys: Vec<Key>,
        spec: NvmeTcpContext,
    ) -> Result<Handle, ContextRefusal> {
        let engine = self.engine.number;
        let new = NewContext { engine, direction, flow: Some(*flow), keys, spec: Box::new(spec) };
        self.contexts.create(new).map_err(|(refused, _)| refused)
    }

    /// Gives the device the buffer of `command`, pieces in order, before the command is sent. Placed data arrive as
    /// [`Placed`](crate::RxBuf::Placed) pieces of the buffer; the other pieces return to their owner when the device
    /// releases the buffer. If the device refuses, all pieces return to their owner at once.
    pub fn place(&mut self, handle: Handle, command: u16, buffer: Vec<Piece>) {
        self.contexts.place(handle, command.into(), buffer, None);
    }

    /// Gives the device a buffer with stages for its data. If the device is busy or lacks a stage, the buffer returns
    /// home at once.
    pub fn place_through(&mut self, handle: Handle, stages: NvmeTcpStages, buffer: Vec<Piece>) {
        self.contexts.place(handle, stages.command.into(), buffer, Some(Box::new(stages)));
    }

    /// Gives a transmit context the stages of PDUs with `stages.command` in their [`MarkedData`]. Returns false if the
    /// device is busy, or gets no data after a packet ([`EngineInfo::looks_ahead`]).
    pub fn seal_with(&mut self, handle: Handle, stages: NvmeTcpStages) -> bool {
        // A block split over packets needs the bytes after the first packet.
        self.engine.looks_ahead > 0 && self.contexts.command(handle, Box::new(stages)).is_ok()
    }

    /// Makes the device return its pieces of the buffer of `command`.
    pub fn release(&mut self, handle: Handle, command: u16) {
        self.contexts.release(handle, command.into());
    }

    /// Answers a resync request: whether a PDU starts at `header`.
    pub fn answer_resync(&mut self, handle: Handle, header: Seq, is_header: bool) {
        self.contexts.answer(handle, header, is_header.then_some(0));
    }

    /// Removes a context of either direction and returns all its buffers home; [`Removed`](crate::DeviceEvent::Removed)
    /// follows.
    pub fn remove(&mut self, handle: Handle) {
        self.contexts.remove(handle);
    }
}

impl fmt::Debug for NvmeTcpContexts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmeTcpContexts")
            .field("engine", &self.engine)
            .field("layer", &self.layer)
            .finish_non_exhaustive()
    }
}
