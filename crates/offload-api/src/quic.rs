//! QUIC contexts of a device: 1-RTT packets sealed on the way out and opened on the way in (RFC 9001 5), on any number of paths
//! (draft-ietf-quic-multipath-21).
//!
//! A connection has a context in each direction. A packet to be sealed is handed over complete and plain, with room for its
//! tag, and an [ask](QuicAsk); the sender's stack numbers it. Received packets are found by UDP port and destination
//! connection ID; those that the device opened are as they were sent, but that the header is readable, the payload plain and
//! the tag still behind it. What it could not open is as it came.

use crate::contexts::{Contexts, NewContext};
use crate::direction::Direction;
use crate::key::{Key, KeyBytes};
use crate::mark::{Marks, PacketMark};
use crate::refused::Refused;
use crate::tx::PacketAsk;
use crate::unit::{Handle, engines};
use core::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// What protects the packets of a connection.
///
/// ```
/// use offload_api::QuicCipher;
///
/// assert_eq!(QuicCipher::Aes128Gcm.confidentiality_limit(), 1 << 23);
/// assert_eq!(QuicCipher::ChaCha20Poly1305.key_len(), 32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QuicCipher {
    /// AEAD_AES_128_GCM.
    Aes128Gcm,
    /// AEAD_AES_256_GCM.
    Aes256Gcm,
    /// AEAD_AES_128_CCM.
    Aes128Ccm,
    /// AEAD_CHACHA20_POLY1305.
    ChaCha20Poly1305,
}

impl QuicCipher {
    /// All of them.
    pub const ALL: [QuicCipher; 4] =
        [QuicCipher::Aes128Gcm, QuicCipher::Aes256Gcm, QuicCipher::Aes128Ccm, QuicCipher::ChaCha20Poly1305];

    /// Bytes of a key: of packets, and of headers.
    pub const fn key_len(self) -> usize {
        match self {
            QuicCipher::Aes128Gcm | QuicCipher::Aes128Ccm => 16,
            QuicCipher::Aes256Gcm | QuicCipher::ChaCha20Poly1305 => 32,
        }
    }

    /// Most packets that may be sealed under one key (RFC 9001 6.6).
    pub const fn confidentiality_limit(self) -> u64 {
        match self {
            QuicCipher::Aes128Gcm | QuicCipher::Aes256Gcm => 1 << 23,
            // 2^21.5, rounded down.
            QuicCipher::Aes128Ccm => 2_965_820,
            QuicCipher::ChaCha20Poly1305 => u64::MAX,
        }
    }

    /// Most packets of a connection that may fail to open (RFC 9001 6.6).
    pub const fn integrity_limit(self) -> u64 {
        match self {
            QuicCipher::Aes128Gcm | QuicCipher::Aes256Gcm => 1 << 52,
            QuicCipher::Aes128Ccm => 2_965_820,
            QuicCipher::ChaCha20Poly1305 => 1 << 36,
        }
    }
}

/// The key and IV of one generation. Never printed; overwritten when dropped.
///
/// ```
/// use offload_api::{QuicCipher, QuicKey};
///
/// let key = QuicKey::new(QuicCipher::Aes128Gcm, &[7; 16], [1; 12]).unwrap();
/// assert_eq!((key.key().len(), key.iv()), (16, &[1; 12]));
/// assert!(!format!("{key:?}").contains('7'));
/// assert!(QuicKey::new(QuicCipher::Aes256Gcm, &[7; 16], [1; 12]).is_none(), "too short");
/// ```
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct QuicKey {
    #[zeroize(skip)]
    cipher: QuicCipher,
    key: [u8; 32],
    iv: [u8; 12],
}

impl QuicKey {
    /// A key; `None` if it is not as long as the cipher wants.
    pub fn new(cipher: QuicCipher, key: &[u8], iv: [u8; 12]) -> Option<QuicKey> {
        Some(QuicKey { cipher, key: padded(cipher, key)?, iv })
    }

    /// The algorithm.
    pub fn cipher(&self) -> QuicCipher {
        self.cipher
    }

    /// The cipher's key.
    pub fn key(&self) -> &[u8] {
        &self.key[..self.cipher.key_len()]
    }

    /// What nonces are made from.
    pub fn iv(&self) -> &[u8; 12] {
        &self.iv
    }
}

impl fmt::Debug for QuicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuicKey({:?}, ..)", self.cipher)
    }
}

/// The key that hides first bytes and numbers, the same for all generations. Never printed; overwritten when dropped.
///
/// ```
/// use offload_api::{QuicCipher, QuicHeaderKey};
///
/// let key = QuicHeaderKey::new(QuicCipher::Aes256Gcm, &[7; 32]).unwrap();
/// assert_eq!(key.key().len(), 32);
/// assert!(QuicHeaderKey::new(QuicCipher::Aes128Gcm, &[7; 32]).is_none(), "too long");
/// ```
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct QuicHeaderKey {
    #[zeroize(skip)]
    cipher: QuicCipher,
    key: [u8; 32],
}

impl QuicHeaderKey {
    /// A key; `None` if it is not as long as the cipher wants.
    pub fn new(cipher: QuicCipher, key: &[u8]) -> Option<QuicHeaderKey> {
        Some(QuicHeaderKey { cipher, key: padded(cipher, key)? })
    }

    /// The algorithm.
    pub fn cipher(&self) -> QuicCipher {
        self.cipher
    }

    /// Its bytes.
    pub fn key(&self) -> &[u8] {
        &self.key[..self.cipher.key_len()]
    }
}

impl fmt::Debug for QuicHeaderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuicHeaderKey({:?}, ..)", self.cipher)
    }
}

/// What a context is made from.
///
/// ```
/// use offload_api::quic::QuicCommand;
/// use offload_api::{QuicCipher, QuicContext, QuicHeaderKey, QuicKey};
///
/// let key = |byte| QuicKey::new(QuicCipher::Aes128Gcm, &[byte; 16], [byte; 12]).unwrap();
/// let header = QuicHeaderKey::new(QuicCipher::Aes128Gcm, &[1; 16]).unwrap();
/// let context = QuicContext { header, generation: 0, key: key(2) };
/// // At a key update, the key of the next generation follows.
/// let update = QuicCommand::SetKey { generation: context.generation + 1, key: key(3) };
/// assert!(matches!(update, QuicCommand::SetKey { generation: 1, .. }));
/// ```
#[derive(Debug)]
pub struct QuicContext {
    /// The header key.
    pub header: QuicHeaderKey,
    /// The generation that the key is of.
    pub generation: u64,
    /// The key of that generation.
    pub key: QuicKey,
}

/// What a context can be told.
#[derive(Debug)]
pub enum QuicCommand {
    /// The key of a generation, in place of the one with the same key phase.
    SetKey {
        /// Which generation.
        generation: u64,
        /// Its key.
        key: QuicKey,
    },
    /// A destination connection ID is of this path, whose largest number that was opened is `largest`, or none was.
    Learn {
        /// What packets show.
        key: KeyBytes,
        /// The path.
        path: u32,
        /// The largest number so far.
        largest: Option<u64>,
    },
    /// It is no longer.
    Forget {
        /// What packets show.
        key: KeyBytes,
    },
}

/// How the engine can be changed: what connection IDs are at a local port.
///
/// ```
/// use offload_api::quic::QuicPort;
///
/// let (listens, closed) = (QuicPort { port: 443, cid_bytes: Some(8) }, QuicPort { port: 443, cid_bytes: None });
/// assert_ne!(listens, closed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicPort {
    /// The port.
    pub port: u16,
    /// Bytes of the connection IDs that are this host's choice there; `None`: there is no QUIC any more.
    pub cid_bytes: Option<u8>,
}

/// What a device is asked to do with a packet, or several of one size: each is all of its datagram, plain, with room for its tag.
///
/// ```
/// use offload_api::{Handle, PacketAsk, QuicAsk};
///
/// let context = Handle { index: 3, generation: 0 };
/// let ask = QuicAsk { context, path: 2, number: 1 << 40, generation: 0x1_0007, cid_bytes: 8 };
/// assert_eq!(QuicAsk::from(PacketAsk::from(ask)), QuicAsk { generation: 7, ..ask });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicAsk {
    /// The context.
    pub context: Handle,
    /// The path.
    pub path: u32,
    /// The number of the packet, or of the first. Those of the others are the next that end as their headers say.
    pub number: u64,
    /// The generation of the key; its lowest 16 bits are told.
    pub generation: u64,
    /// Bytes of the destination connection ID.
    pub cid_bytes: u8,
}

impl From<QuicAsk> for PacketAsk {
    fn from(ask: QuicAsk) -> PacketAsk {
        let QuicAsk { context, path, number, generation, cid_bytes } = ask;
        let args = u64::from(path) << 32 | u64::from(generation as u16) << 8 | u64::from(cid_bytes);
        PacketAsk { context, number, args }
    }
}

impl From<PacketAsk> for QuicAsk {
    fn from(PacketAsk { context, number, args }: PacketAsk) -> QuicAsk {
        let (path, generation, cid_bytes) = ((args >> 32) as u32, args >> 8 & 0xffff, args as u8);
        QuicAsk { context, path, number, generation, cid_bytes }
    }
}

/// What the device said about a received packet, or several that it joined.
///
/// ```
/// use offload_api::mark::{Marks, PacketMark};
/// use offload_api::{Handle, QuicVerdict, engines};
///
/// let context = Handle { index: Handle::indices(engines::QUIC, 1).start, generation: 0 };
/// let mut marks = Marks::default();
/// assert_eq!(QuicVerdict::of(&marks), QuicVerdict::NotOpened);
/// marks.set_packet(PacketMark::Opened { context, number: 9, packets: 2, code: 3 });
/// assert_eq!(QuicVerdict::of(&marks), QuicVerdict::Opened { context, first: 9, packets: 2, generation: 3 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuicVerdict {
    /// It is as it came.
    #[default]
    NotOpened,
    /// It is open; the path is that of the connection ID in it.
    Opened {
        /// By this context.
        context: Handle,
        /// The number of the packet, or of the first.
        first: u64,
        /// How many there are, under numbers that follow each other.
        packets: u16,
        /// The lowest 8 bits of the generation of the key.
        generation: u8,
    },
    /// It is as it came, and what this context has did not open it.
    Failed {
        /// The context.
        context: Handle,
    },
}

impl QuicVerdict {
    /// What the QUIC engine said, if the marks are of it.
    pub fn of(marks: &Marks) -> QuicVerdict {
        match marks.packet() {
            PacketMark::Opened { context, number: first, packets, code } if context.engine() == engines::QUIC => {
                QuicVerdict::Opened { context, first, packets, generation: code }
            }
            PacketMark::Failed { context } if context.engine() == engines::QUIC => QuicVerdict::Failed { context },
            _ => QuicVerdict::NotOpened,
        }
    }
}

/// What a QUIC stack may ask of a device: [`Contexts`] in the words of QUIC. Nothing here blocks; what happens to contexts comes
/// as [`ContextNews`](crate::ContextNews).
///
/// ```
/// use nic_sim::{NicConfig, QuicEngineConfig, nic};
/// use offload_api::{NetDevice, QuicContexts};
///
/// let (_device, mut driver) = nic(NicConfig::default());
/// let mut contexts = QuicContexts::of(driver.contexts().unwrap()).expect("every NIC has them");
/// contexts.listen(443, 8)?;
/// let engines = QuicEngineConfig { contexts: 0 }.into();
/// let (_device, mut without) = nic(NicConfig { engines, ..NicConfig::default() });
/// assert!(QuicContexts::of(without.contexts().unwrap()).is_none());
/// # Ok::<(), offload_api::Refused>(())
/// ```
pub struct QuicContexts<'a> {
    contexts: &'a mut dyn Contexts,
    engine: u8,
}

impl QuicContexts<'_> {
    /// What the engine is called.
    pub const ENGINE: &'static str = "quic";

    /// Those of a device, if it has any.
    pub fn of(contexts: &mut dyn Contexts) -> Option<QuicContexts<'_>> {
        let engine = contexts.engine(QuicContexts::ENGINE)?.number;
        Some(QuicContexts { contexts, engine })
    }

    /// Packets to `port` have destination connection IDs of so many bytes.
    ///
    /// # Errors
    /// If there is no room for it now.
    pub fn listen(&mut self, port: u16, cid_bytes: u8) -> Result<(), Refused> {
        self.change(QuicPort { port, cid_bytes: Some(cid_bytes) })
    }

    /// There is no QUIC at `port` any more.
    ///
    /// # Errors
    /// If there is no room for it now.
    pub fn silence(&mut self, port: u16) -> Result<(), Refused> {
        self.change(QuicPort { port, cid_bytes: None })
    }

    /// Makes a context. One that seals may be used at once; one that opens finds nothing before it [learns](Self::learn).
    ///
    /// # Errors
    /// If the device has no room; the connection stays in software then.
    pub fn create(&mut self, direction: Direction, context: QuicContext) -> Result<Handle, Refused> {
        let spec = Box::new(context);
        let new = NewContext { engine: self.engine, direction, flow: None, keys: Vec::new(), spec };
        self.contexts.create(new).map_err(|(refused, _)| refused)
    }

    /// Gives a context the key of a generation.
    ///
    /// # Errors
    /// If there is no room for it now.
    pub fn set_key(&mut self, context: Handle, generation: u64, key: QuicKey) -> Result<(), Refused> {
        self.command(context, QuicCommand::SetKey { generation, key })
    }

    /// Has packets to `port` with this destination connection ID opened, as those of `path`.
    ///
    /// # Errors
    /// If there is no room for it now.
    pub fn learn(
        &mut self,
        context: Handle,
        port: u16,
        cid: &[u8],
        path: u32,
        largest: Option<u64>,
    ) -> Result<(), Refused> {
        let key = quic_key(port, cid);
        self.command(context, QuicCommand::Learn { key, path, largest })?;
        self.contexts.steer(context, Key::Engine(self.engine, key), true)
    }

    /// No longer.
    ///
    /// # Errors
    /// If there is no room for it now.
    pub fn forget(&mut self, context: Handle, port: u16, cid: &[u8]) -> Result<(), Refused> {
        let key = quic_key(port, cid);
        self.contexts.steer(context, Key::Engine(self.engine, key), false)?;
        self.command(context, QuicCommand::Forget { key })
    }

    /// Gives a context up.
    pub fn remove(&mut self, context: Handle) {
        self.contexts.remove(context);
    }

    fn command(&mut self, context: Handle, command: QuicCommand) -> Result<(), Refused> {
        self.contexts.command(context, Box::new(command)).map_err(|(refused, _)| refused)
    }

    fn change(&mut self, change: QuicPort) -> Result<(), Refused> {
        self.contexts.change(self.engine, Box::new(change)).map_err(|(refused, _)| refused)
    }
}

impl fmt::Debug for QuicContexts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuicContexts(engine {})", self.engine)
    }
}

/// What leads to a context: the port a packet came to, and its destination connection ID.
///
/// ```
/// use offload_api::quic::quic_key;
///
/// assert_ne!(quic_key(443, &[1, 2]), quic_key(443, &[1, 2, 0]));
/// ```
///
/// # Panics
/// If the connection ID has more than 20 bytes, as none has (RFC 9000 17.2).
pub fn quic_key(port: u16, cid: &[u8]) -> KeyBytes {
    KeyBytes::of(&[&port.to_be_bytes(), cid])
}

fn padded(cipher: QuicCipher, key: &[u8]) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    (key.len() == cipher.key_len()).then(|| bytes[..key.len()].copy_from_slice(key))?;
    Some(bytes)
}
