//! QUIC contexts of a device: 1-RTT packets sealed on transmit and opened on receive (RFC 9001 5), on any number of
//! paths (draft-ietf-quic-multipath-21).
//!
//! A connection has one context per direction. The sender's stack numbers its packets and queues each packet complete
//! and in plaintext, with space for the tag and an [ask](QuicAsk). The device finds the context of a received packet by
//! UDP port and destination connection ID. An opened packet has a readable header and plaintext payload, and still has
//! its tag at the end. A packet that the device cannot open is unchanged.

use crate::contexts::{Contexts, NewContext};
use crate::direction::Direction;
use crate::key::{Key, KeyBytes};
use crate::mark::{Marks, PacketMark};
use crate::refused::ContextRefusal;
use crate::tx::PacketAsk;
use crate::unit::{Handle, engines};
use core::fmt;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The AEAD of a connection.
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
    /// All ciphers.
    pub const ALL: [QuicCipher; 4] =
        [QuicCipher::Aes128Gcm, QuicCipher::Aes256Gcm, QuicCipher::Aes128Ccm, QuicCipher::ChaCha20Poly1305];

    /// Returns the length of packet keys and of header keys.
    pub const fn key_len(self) -> usize {
        match self {
            QuicCipher::Aes128Gcm | QuicCipher::Aes128Ccm => 16,
            QuicCipher::Aes256Gcm | QuicCipher::ChaCha20Poly1305 => 32,
        }
    }

    /// Returns the maximum number of packets to seal under one key (RFC 9001 6.6).
    pub const fn confidentiality_limit(self) -> u64 {
        match self {
            QuicCipher::Aes128Gcm | QuicCipher::Aes256Gcm => 1 << 23,
            // 2^21.5, rounded down.
            QuicCipher::Aes128Ccm => 2_965_820,
            QuicCipher::ChaCha20Poly1305 => u64::MAX,
        }
    }

    /// Returns the maximum number of packets of a connection that may fail to open (RFC 9001 6.6).
    pub const fn integrity_limit(self) -> u64 {
        match self {
            QuicCipher::Aes128Gcm | QuicCipher::Aes256Gcm => 1 << 52,
            QuicCipher::Aes128Ccm => 2_965_820,
            QuicCipher::ChaCha20Poly1305 => 1 << 36,
        }
    }
}

/// The key and IV of one key generation. Never printed; overwritten when dropped.
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
    /// Makes a key; `None` if `key` does not have the cipher's key length.
    pub fn new(cipher: QuicCipher, key: &[u8], iv: [u8; 12]) -> Option<QuicKey> {
        Some(QuicKey { cipher, key: padded(cipher, key)?, iv })
    }

    /// Returns the algorithm.
    pub fn cipher(&self) -> QuicCipher {
        self.cipher
    }

    /// Returns the key bytes.
    pub fn key(&self) -> &[u8] {
        &self.key[..self.cipher.key_len()]
    }

    /// Returns the IV, from which nonces are made.
    pub fn iv(&self) -> &[u8; 12] {
        &self.iv
    }
}

impl fmt::Debug for QuicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuicKey({:?}, ..)", self.cipher)
    }
}

/// The header protection key, the same for all generations. Never printed; overwritten when dropped.
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
    /// Makes a key; `None` if `key` does not have the cipher's key length.
    pub fn new(cipher: QuicCipher, key: &[u8]) -> Option<QuicHeaderKey> {
        Some(QuicHeaderKey { cipher, key: padded(cipher, key)? })
    }

    /// Returns the algorithm.
    pub fn cipher(&self) -> QuicCipher {
        self.cipher
    }

    /// Returns the key bytes.
    pub fn key(&self) -> &[u8] {
        &self.key[..self.cipher.key_len()]
    }
}

impl fmt::Debug for QuicHeaderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuicHeaderKey({:?}, ..)", self.cipher)
    }
}

/// The parameters of a QUIC context.
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
    /// Header protection key.
    pub header: QuicHeaderKey,
    /// Key generation.
    pub generation: u64,
    /// Packet key of that generation.
    pub key: QuicKey,
}

/// A command to a QUIC context.
#[derive(Debug)]
pub enum QuicCommand {
    /// Sets the key of a generation. The key replaces the one with the same key phase.
    SetKey {
        /// Key generation.
        generation: u64,
        /// The key.
        key: QuicKey,
    },
    /// Assigns a destination connection ID to a path.
    Learn {
        /// Steering key of the connection ID.
        key: KeyBytes,
        /// Path id.
        path: u32,
        /// Largest packet number opened on the path so far; `None` if there is none.
        largest: Option<u64>,
    },
    /// Removes a destination connection ID.
    Forget {
        /// Steering key of the connection ID.
        key: KeyBytes,
    },
}

/// An engine change: the length of connection IDs at a local port.
///
/// ```
/// use offload_api::quic::QuicPort;
///
/// let (listens, closed) = (QuicPort { port: 443, cid_bytes: Some(8) }, QuicPort { port: 443, cid_bytes: None });
/// assert_ne!(listens, closed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicPort {
    /// UDP port.
    pub port: u16,
    /// Length of the connection IDs that this host chose; `None` if the port no longer carries QUIC.
    pub cid_bytes: Option<u8>,
}

/// A request to seal one packet, or several packets of one size. Each packet fills its datagram, is plaintext, and has
/// space for its tag.
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
    /// Path id.
    pub path: u32,
    /// Number of the first packet. Each further packet gets the next number that matches the truncated number in its
    /// header.
    pub number: u64,
    /// Key generation; the device receives the lowest 16 bits.
    pub generation: u64,
    /// Length of the destination connection ID.
    pub cid_bytes: u8,
}

impl From<QuicAsk> for PacketAsk {
    fn from(ask: QuicAsk) -> PacketAsk {
        // Layout of `args`: path in the upper half, then 16 bits of the generation, then the length of the connection
        // ID.
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

/// The device's verdict on a received packet, or on several joined packets.
///
/// ```
/// use offload_api::mark::{Marks, PacketMark};
/// use offload_api::{Handle, QuicVerdict, engines};
///
/// let context = Handle { index: Handle::indices(engines::QUIC, 1).start, generation: 0 };
/// let mut marks = Marks::default();
/// assert_eq!(QuicVerdict::from_marks(&marks), QuicVerdict::NotOpened);
/// marks.set_packet(PacketMark::Opened { context, number: 9, packets: 2, code: 3 });
/// assert_eq!(QuicVerdict::from_marks(&marks), QuicVerdict::Opened { context, first: 9, packets: 2, generation: 3 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuicVerdict {
    /// The packet is unchanged.
    #[default]
    NotOpened,
    /// The packet is open. Its connection ID determines the path.
    Opened {
        /// The context.
        context: Handle,
        /// Number of the packet, or of the first joined packet.
        first: u64,
        /// Number of joined packets; their numbers are consecutive.
        packets: u16,
        /// Lowest 8 bits of the key generation.
        generation: u8,
    },
    /// The packet is unchanged because the context's keys did not open it.
    Failed {
        /// The context.
        context: Handle,
    },
}

impl QuicVerdict {
    /// Reads the QUIC engine's verdict from `marks`.
    pub fn from_marks(marks: &Marks) -> QuicVerdict {
        // Other engines open packets too, so the engine number must be checked.
        match marks.packet() {
            PacketMark::Opened { context, number: first, packets, code } if context.engine() == engines::QUIC => {
                QuicVerdict::Opened { context, first, packets, generation: code }
            }
            PacketMark::Failed { context } if context.engine() == engines::QUIC => QuicVerdict::Failed { context },
            _ => QuicVerdict::NotOpened,
        }
    }
}

/// The QUIC interface of a device: a typed wrapper of [`Contexts`]. No method blocks; events of contexts arrive as
/// [`ContextNews`](crate::ContextNews).
///
/// ```
/// use nic_sim::{NicConfig, QuicEngineConfig, nic};
/// use offload_api::{NetDevice, QuicContexts};
///
/// let (_device, mut driver) = nic(NicConfig::default());
/// let mut contexts = QuicContexts::from_contexts(driver.contexts().unwrap()).expect("every NIC has them");
/// contexts.listen(443, 8)?;
/// let engines = QuicEngineConfig { contexts: 0 }.into();
/// let (_device, mut without) = nic(NicConfig { engines, ..NicConfig::default() });
/// assert!(QuicContexts::from_contexts(without.contexts().unwrap()).is_none());
/// # Ok::<(), offload_api::ContextRefusal>(())
/// ```
pub struct QuicContexts<'a> {
    contexts: &'a mut dyn Contexts,
    engine: u8,
}

impl QuicContexts<'_> {
    /// Name of the engine.
    pub const ENGINE: &'static str = "quic";

    /// Wraps the contexts of a device, if the device has the engine.
    pub fn from_contexts(contexts: &mut dyn Contexts) -> Option<QuicContexts<'_>> {
        let engine = contexts.engine(QuicContexts::ENGINE)?.number;
        Some(QuicContexts { contexts, engine })
    }

    /// Declares that packets to `port` are QUIC, with destination connection IDs of `cid_bytes` bytes.
    ///
    /// # Errors
    /// If the control ring is full.
    pub fn listen(&mut self, port: u16, cid_bytes: u8) -> Result<(), ContextRefusal> {
        self.change(QuicPort { port, cid_bytes: Some(cid_bytes) })
    }

    /// Declares that `port` no longer carries QUIC.
    ///
    /// # Errors
    /// If the control ring is full.
    pub fn silence(&mut self, port: u16) -> Result<(), ContextRefusal> {
        self.change(QuicPort { port, cid_bytes: None })
    }

    /// Creates a context. A sealing context may be used at once; an opening context matches no packet before
    /// [`learn`](Self::learn).
    ///
    /// # Errors
    /// If the device has no space. The connection then stays in software.
    pub fn create(&mut self, direction: Direction, context: QuicContext) -> Result<Handle, ContextRefusal> {
        let spec = Box::new(context);
        let new = NewContext { engine: self.engine, direction, flow: None, keys: Vec::new(), spec };
        self.contexts.create(new).map_err(|(refused, _)| refused)
    }

    /// Gives a context the key of a generation.
    ///
    /// # Errors
    /// If the control ring is full.
    pub fn set_key(&mut self, context: Handle, generation: u64, key: QuicKey) -> Result<(), ContextRefusal> {
        self.command(context, QuicCommand::SetKey { generation, key })
    }

    /// Makes the device open packets to `port` with this destination connection ID, as packets of `path`.
    ///
    /// # Errors
    /// If the control ring is full.
    pub fn learn(
        &mut self,
        context: Handle,
        port: u16,
        cid: &[u8],
        path: u32,
        largest: Option<u64>,
    ) -> Result<(), ContextRefusal> {
        // The command goes first: a packet that finds the context must also find its path.
        let key = quic_key(port, cid);
        self.command(context, QuicCommand::Learn { key, path, largest })?;
        self.contexts.steer(context, Key::Engine(self.engine, key), true)
    }

    /// Makes the device stop opening packets with this connection ID.
    ///
    /// # Errors
    /// If the control ring is full.
    pub fn forget(&mut self, context: Handle, port: u16, cid: &[u8]) -> Result<(), ContextRefusal> {
        // The steering key goes first, for the same reason as in `learn`, in reverse.
        let key = quic_key(port, cid);
        self.contexts.steer(context, Key::Engine(self.engine, key), false)?;
        self.command(context, QuicCommand::Forget { key })
    }

    /// Removes a context.
    pub fn remove(&mut self, context: Handle) {
        self.contexts.remove(context);
    }

    fn command(&mut self, context: Handle, command: QuicCommand) -> Result<(), ContextRefusal> {
        self.contexts.command(context, Box::new(command)).map_err(|(refused, _)| refused)
    }

    fn change(&mut self, change: QuicPort) -> Result<(), ContextRefusal> {
        self.contexts.change(self.engine, Box::new(change)).map_err(|(refused, _)| refused)
    }
}

impl fmt::Debug for QuicContexts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuicContexts(engine {})", self.engine)
    }
}

/// Returns the steering key of a UDP port and a destination connection ID.
///
/// ```
/// use offload_api::quic::quic_key;
///
/// assert_ne!(quic_key(443, &[1, 2]), quic_key(443, &[1, 2, 0]));
/// ```
///
/// # Panics
/// If the connection ID is longer than 20 bytes, the maximum of RFC 9000 17.2.
pub fn quic_key(port: u16, cid: &[u8]) -> KeyBytes {
    KeyBytes::from_parts(&[&port.to_be_bytes(), cid])
}

fn padded(cipher: QuicCipher, key: &[u8]) -> Option<[u8; 32]> {
    // A fixed array, so that no reallocation leaves copies of the key behind.
    let mut bytes = [0; 32];
    (key.len() == cipher.key_len()).then(|| bytes[..key.len()].copy_from_slice(key))?;
    Some(bytes)
}
