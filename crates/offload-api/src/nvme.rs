//! NVMe/TCP contexts of a device: data placed where they belong, digests checked on the way in and made on the way out.
//!
//! The shape is that of the ULP DDP series proposed for Linux: limits, a flow added and removed, buffers of commands
//! given and taken back, resync. Terms: NVMe/TCP Transport Specification 1.0.

use crate::contexts::{Contexts, EngineInfo, NewContext, StageSpec};
use crate::direction::Direction;
use crate::key::Key;
use crate::refused::Refused;
use crate::rx::Piece;
use crate::unit::{Handle, Layer};
use core::fmt;
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

/// What a receive context is told of a command whose data are to pass stages on their way to its buffer. Stages work on the
/// whole blocks of 16 bytes, of PDUs whose digest is right so far, or that have none; the rest is placed as
/// it comes. [`Piece::opened`](crate::Piece::opened) says which is which. Of a block that goes on in the next packet nothing is placed
/// before that comes; it is then placed as a whole ([`Piece::lead`](crate::Piece::lead)).
///
/// ```
/// use offload_api::{NvmeTcpStages, StageSpec};
///
/// let stages = NvmeTcpStages { command: 7, unit: 4096, stages: vec![StageSpec::new("add", 7u8)] };
/// assert_eq!(&*stages.stages[0].name, "add");
/// ```
#[derive(Debug)]
pub struct NvmeTcpStages {
    /// The command; of a transmit context, by what PDUs [name](MarkedData) the stages.
    pub command: u16,
    /// The number that stages are told: of the first logical block.
    pub unit: u64,
    /// In the order in which data passed them on their way out.
    pub stages: Vec<StageSpec>,
}

/// What the queued header of a PDU with data from a host has in place of DATAL and the reserved bytes behind it, if a device is to
/// pass the data through stages. The device, or the sealer, writes what belongs there. Data and their place in the command are whole
/// blocks of 16 bytes.
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
/// assert_eq!(MarkedData::new(3, 1 << 48), None, "numbers of units have 48 bits here");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkedData(u64);

impl MarkedData {
    /// Where it is in a header.
    pub const AT: usize = 16;
    /// Behind it.
    pub const END: usize = 24;

    /// Of stages by their number, and that of the unit with which the command's data begin. `None`: there is no room for these.
    pub fn new(stages: u16, unit: u64) -> Option<MarkedData> {
        (stages != 0 && unit < 1 << 48).then_some(MarkedData(u64::from(stages) << 48 | unit))
    }

    /// What a header has; `None`: its data are to be left as they are.
    pub fn read(header: &[u8; Self::END]) -> Option<MarkedData> {
        let value = header.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        (value >> 48 != 0).then_some(MarkedData(value))
    }

    /// Writes it.
    pub fn write(self, header: &mut [u8; Self::END]) {
        header[Self::AT..].copy_from_slice(&self.0.to_le_bytes());
    }

    /// Writes what belongs there of a PDU with so many bytes of data.
    pub fn erase(header: &mut [u8; Self::END], data: u32) {
        header[Self::AT..].copy_from_slice(&u64::from(data).to_le_bytes());
    }

    /// The stages.
    pub fn stages(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The number of the unit.
    pub fn unit(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
}

/// The stage AES-XTS, which is made from an [`XtsStage`].
pub const XTS_STAGE: &str = "xts";

/// The stage of protection information, which is made from its format (`offload_transforms::protection::InPlaceProtection`): it writes what is
/// behind each block on the way out, and verifies it on the way in. Units are blocks with their protection information, and data that leave
/// begin with one.
pub const PROTECTION_STAGE: &str = "protection";

/// What the stage [`XTS_STAGE`] is made from: a data-encryption key that the device has as a context. No key crosses PCIe with
/// a command. A key of another tenant or volume than these, or one that was given up, is not used.
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
    /// The context of the engine of data-encryption keys, of the same queue of the device.
    pub key: Handle,
    /// Whose key it is.
    pub tenant: u32,
    /// The volume that it is for.
    pub volume: u64,
}

/// What an NVMe/TCP host may ask of a device: [`Contexts`] in the words of NVMe/TCP. Nothing here blocks: what takes time ends
/// in a [`DeviceEvent`](crate::DeviceEvent), or when the last piece of a buffer has come home.
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
    /// What the engine is called.
    pub const ENGINE: &'static str = "nvme-tcp";

    /// Those of a device, if it has the engine.
    pub fn of(contexts: &'a mut dyn Contexts) -> Option<NvmeTcpContexts<'a>> {
        let engine = contexts.engine(Self::ENGINE)?;
        Some(NvmeTcpContexts { contexts, engine, layer: Layer::FIRST })
    }

    /// The same for PDUs that are the content of another layer's units, which contexts of the flow's open and seal. A protocol
    /// over such a layer does not say so: the layer does.
    #[must_use]
    pub fn at(self, layer: Layer) -> NvmeTcpContexts<'a> {
        NvmeTcpContexts { layer, ..self }
    }

    /// What the device can do.
    pub fn limits(&self) -> NvmeTcpLimits {
        let none = NvmeTcpLimits { max_pieces: 0, io_threshold: usize::MAX };
        self.engine.capabilities.get().copied().unwrap_or(none)
    }

    /// Has the device follow what arrives on `flow`, from the PDU that begins at `start`. It works from
    /// [`Ready`](crate::DeviceEvent::Ready) on. Over TLS, sequence numbers are those of the bytes of content on the wire.
    ///
    /// # Errors
    /// Whatever the device cannot take; the flow then stays in software.
    pub fn add(&mut self, flow: &FlowKey, start: Seq, config: &NvmeTcpConfig) -> Result<Handle, Refused> {
        let keys = vec![Key::Flow(*flow, self.layer)];
        self.create(flow, Direction::Receive, keys, NvmeTcpContext::Receive { start, config: *config })
    }

    /// Has the device fill in the data digests of PDUs that are sent on `flow`: those queued with the handle as their
    /// context, the digests' places zero. It may be used at once. All bytes from the first such PDU on are to have it,
    /// in units that are whole PDUs ([`TxTag::device`](crate::TxTag::device)), or be sealed by software. Over TLS they are filled
    /// in before the records are encrypted, which a context of the flow's does too.
    ///
    /// # Errors
    /// Whatever the device cannot take; digests are then software's.
    pub fn add_transmit(&mut self, flow: &FlowKey) -> Result<Handle, Refused> {
        self.create(flow, Direction::Transmit, Vec::new(), NvmeTcpContext::Transmit)
    }

    fn create(
        &mut self,
        flow: &FlowKey,
        direction: Direction,
        keys: Vec<Key>,
        spec: NvmeTcpContext,
    ) -> Result<Handle, Refused> {
        let engine = self.engine.number;
        let new = NewContext { engine, direction, flow: Some(*flow), keys, spec: Box::new(spec) };
        self.contexts.create(new).map_err(|(refused, _)| refused)
    }

    /// Gives the device the buffer of `command`, the pieces in order, before the command is sent. Data that it places
    /// come as [`Placed`](crate::RxBuf::Placed) pieces of it; the rest comes home when the device is done with it.
    /// Refused, all of it does at once.
    pub fn place(&mut self, handle: Handle, command: u16, buffer: Vec<Piece>) {
        self.contexts.place(handle, command.into(), buffer, None);
    }

    /// The same for data that pass stages on their way. If the device cannot be told now, or has no such stages, the buffer comes
    /// home at once.
    pub fn place_through(&mut self, handle: Handle, stages: NvmeTcpStages, buffer: Vec<Piece>) {
        self.contexts.place(handle, stages.command.into(), buffer, Some(Box::new(stages)));
    }

    /// Has a transmit context pass the data of PDUs from a host through stages: of those whose queued headers name `stages.command`,
    /// as [`MarkedData`] tells. False: the device cannot be told now, or is not told what follows a packet
    /// ([`EngineInfo::looks_ahead`]).
    pub fn seal_with(&mut self, handle: Handle, stages: NvmeTcpStages) -> bool {
        self.engine.looks_ahead > 0 && self.contexts.command(handle, Box::new(stages)).is_ok()
    }

    /// Has the device send home what it has of the buffer of `command`.
    pub fn release(&mut self, handle: Handle, command: u16) {
        self.contexts.release(handle, command.into());
    }

    /// Answers a resync request: whether a PDU begins at `header`.
    pub fn answer_resync(&mut self, handle: Handle, header: Seq, is_header: bool) {
        self.contexts.answer(handle, header, is_header.then_some(0));
    }

    /// Gives the context up, sending or receiving, and sends all buffers home; [`Removed`](crate::DeviceEvent::Removed) follows.
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
