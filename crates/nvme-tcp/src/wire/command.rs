//! Submission queue entries.
//!
//! NVM Express Base Specification 2.0, 3.3.3.1, and NVMe over Fabrics in 3.3.4: 64 bytes, always with an SGL.

use super::{put, u16_at, u32_at, u64_at};
use core::fmt;

/// A submission queue entry: 64 bytes, read and written in place.
///
/// ```
/// use nvme_tcp::wire::{Command, IoOpcode, Sgl, DataDirection};
///
/// let read = Command::new(IoOpcode::Read as u8, 5).with_namespace(1).with_u64(10, 0x1000).with_u32(12, 7)
///     .with_sgl(Sgl::transport(4096));
/// assert_eq!((read.opcode(), read.identifier(), read.namespace()), (2, 5, 1));
/// assert_eq!((read.u64(10), read.sgl().length), (0x1000, 4096));
/// assert_eq!(read.transfer(), DataDirection::ToHost);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Command([u8; Command::LEN]);

impl Command {
    /// Bytes of a command.
    pub const LEN: usize = 64;

    /// Creates a command with an SGL (PSDT 01b), as NVMe over Fabrics requires. All other fields are zero.
    pub fn new(opcode: u8, identifier: u16) -> Command {
        let mut bytes = [0; Command::LEN];
        bytes[0] = opcode;
        bytes[1] = PSDT_SGL;
        put(&mut bytes, 2, &identifier.to_le_bytes());
        Command(bytes)
    }

    /// Creates a Fabrics command of type `kind`.
    pub fn fabrics(kind: FabricsType, identifier: u16) -> Command {
        let mut command = Command::new(AdminOpcode::Fabrics as u8, identifier);
        command.0[4] = kind as u8;
        command
    }

    /// Wraps the bytes of a received entry.
    pub fn from_bytes(bytes: [u8; Command::LEN]) -> Command {
        Command(bytes)
    }

    /// Returns the bytes to send.
    pub fn as_bytes(&self) -> &[u8; Command::LEN] {
        &self.0
    }

    /// Sets the namespace.
    #[must_use]
    pub fn with_namespace(mut self, namespace: u32) -> Command {
        put(&mut self.0, 4, &namespace.to_le_bytes());
        self
    }

    /// Sets double word `word` (0 to 15).
    #[must_use]
    pub fn with_u32(mut self, word: usize, value: u32) -> Command {
        put(&mut self.0, word * 4, &value.to_le_bytes());
        self
    }

    /// Sets double words `word` and `word + 1`.
    #[must_use]
    pub fn with_u64(mut self, word: usize, value: u64) -> Command {
        put(&mut self.0, word * 4, &value.to_le_bytes());
        self
    }

    /// Sets the SGL descriptor.
    #[must_use]
    pub fn with_sgl(mut self, sgl: Sgl) -> Command {
        put(&mut self.0, 24, &sgl.address.to_le_bytes());
        put(&mut self.0, 32, &sgl.length.to_le_bytes());
        put(&mut self.0, 36, &[0, 0, 0, sgl.identifier]);
        self
    }

    /// Sets the command identifier.
    #[must_use]
    pub fn with_identifier(mut self, identifier: u16) -> Command {
        put(&mut self.0, 2, &identifier.to_le_bytes());
        self
    }

    /// Returns the opcode. The queue decides whether it is an [`AdminOpcode`] or an [`IoOpcode`].
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Returns byte 1: fused operation and PSDT.
    pub fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Returns the command identifier, which the completion repeats.
    pub fn identifier(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// Returns the namespace.
    pub fn namespace(&self) -> u32 {
        u32_at(&self.0, 4)
    }

    /// Returns byte 4, the type of a Fabrics command.
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// Returns byte `at`.
    pub fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    /// Returns the 16 bits at byte `at`.
    pub fn u16(&self, at: usize) -> u16 {
        u16_at(&self.0, at)
    }

    /// Returns double word `word` (0 to 15).
    pub fn u32(&self, word: usize) -> u32 {
        u32_at(&self.0, word * 4)
    }

    /// Returns double words `word` and `word + 1`.
    pub fn u64(&self, word: usize) -> u64 {
        u64_at(&self.0, word * 4)
    }

    /// Returns the first logical block (SLBA) of a command on blocks.
    pub fn first_block(&self) -> u64 {
        self.u64(10)
    }

    /// Returns the SGL descriptor.
    pub fn sgl(&self) -> Sgl {
        Sgl { address: u64_at(&self.0, 24), length: u32_at(&self.0, 32), identifier: self.0[39] }
    }

    /// Returns the direction of the data: bits 1:0 of the opcode, or of the type of a Fabrics command.
    pub fn transfer(&self) -> DataDirection {
        // All Fabrics commands share one opcode, so their type carries the direction.
        let code = if self.opcode() == AdminOpcode::Fabrics as u8 { self.fabrics_type() } else { self.opcode() };
        match code & 3 {
            1 => DataDirection::ToController,
            2 => DataDirection::ToHost,
            _ => DataDirection::None,
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Command(opcode {:#04x}, id {}, namespace {:#x}, {:?}, cdw10.. {:08x?})",
            self.opcode(),
            self.identifier(),
            self.namespace(),
            self.sgl(),
            [10, 11, 12, 13, 14, 15].map(|word| self.u32(word))
        )
    }
}

/// Direction of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataDirection {
    /// No data.
    None,
    /// From the host to the controller.
    ToController,
    /// From the controller to the host.
    ToHost,
}

/// The SGL descriptor of a command. A command has exactly one.
///
/// ```
/// use nvme_tcp::wire::{Sgl, SglKind};
///
/// assert_eq!(Sgl::in_capsule(512).kind(), Some(SglKind::InCapsule));
/// assert_eq!(Sgl::transport(512).kind(), Some(SglKind::Transport));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sgl {
    /// Address; over TCP an offset into the capsule's data.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Type (upper half) and subtype.
    pub identifier: u8,
}

impl Sgl {
    /// Describes data that follow the command in its capsule.
    pub const fn in_capsule(length: u32) -> Sgl {
        Sgl { address: 0, length, identifier: 0x01 }
    }

    /// Describes data that travel in PDUs of their own.
    pub const fn transport(length: u32) -> Sgl {
        Sgl { address: 0, length, identifier: 0x5a }
    }

    /// Returns the kind of descriptor; `None` for a kind that NVMe/TCP does not use.
    pub const fn kind(&self) -> Option<SglKind> {
        match self.identifier {
            0x01 => Some(SglKind::InCapsule),
            0x5a => Some(SglKind::Transport),
            _ => None,
        }
    }
}

/// Kind of an SGL descriptor: the place of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglKind {
    /// In the capsule: a data block descriptor with an offset.
    InCapsule,
    /// In data PDUs: a transport data block descriptor.
    Transport,
}

macro_rules! opcodes {
    ($(#[$meta:meta])* $name:ident { $($(#[$item_meta:meta])* $item:ident = $value:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$item_meta])* $item = $value,)*
        }

        impl $name {
            /// All opcodes.
            pub const ALL: &'static [$name] = &[$($name::$item,)*];

            /// Returns the opcode with this value.
            pub fn from_u8(value: u8) -> Option<$name> {
                match value {
                    $($value => Some($name::$item),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    /// Commands of the admin queue.
    AdminOpcode {
        /// Reads a log page.
        GetLogPage = 0x02,
        /// Reads the description of a controller or a namespace.
        Identify = 0x06,
        /// Asks the controller to abort a command.
        Abort = 0x08,
        /// Sets a feature.
        SetFeatures = 0x09,
        /// Reads a feature.
        GetFeatures = 0x0a,
        /// Waits for an asynchronous event.
        AsyncEventRequest = 0x0c,
        /// Shows that the host is alive.
        KeepAlive = 0x18,
        /// A Fabrics command; see [`FabricsType`].
        Fabrics = 0x7f,
    }
}

opcodes! {
    /// Commands of the NVM command set, on I/O queues.
    IoOpcode {
        /// Makes written blocks durable.
        Flush = 0x00,
        /// Writes blocks.
        Write = 0x01,
        /// Reads blocks.
        Read = 0x02,
        /// Marks blocks unreadable.
        WriteUncorrectable = 0x04,
        /// Compares blocks with data.
        Compare = 0x05,
        /// Sets blocks to zero.
        WriteZeroes = 0x08,
        /// Gives hints about blocks, or deallocates blocks.
        DatasetManagement = 0x09,
        /// Reads blocks and discards the data.
        Verify = 0x0c,
    }
}

opcodes! {
    /// Fabrics command types.
    FabricsType {
        /// Writes a controller property.
        PropertySet = 0x00,
        /// Makes the connection an admin or I/O queue of a controller.
        Connect = 0x01,
        /// Reads a controller property.
        PropertyGet = 0x04,
        /// Deletes an I/O queue.
        Disconnect = 0x08,
    }
}

/// PSDT 01b in bits 7:6 of byte 1: an SGL, not PRPs.
const PSDT_SGL: u8 = 0x40;
