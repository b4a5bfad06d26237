//! Sealing and opening of packets: padding, trailer, encryption and ICV (RFC 4303 2.4 to 2.8; RFC 4106, 4543, 7634).
//!
//! The explicit IV is the 64-bit sequence number, which is unique within an SA (RFC 4106 3.1).

use crate::{ESP_AND_IV, EspAt, ICV, trailer_len};
use bytes::BytesMut;
use offload_api::{EspSuite, SaParams};
use offload_base::cost::{self, WorkKind};
use resumable_aead::{Algorithm, Key};

/// An SA's expanded key.
///
/// See the [crate] for an example.
#[derive(Debug)]
pub struct EspCipher {
    key: Key,
    salt: [u8; 4],
    encrypts: bool,
    spi: u32,
    esn: bool,
}

/// The trailer of an authentic packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EspTrailer {
    /// Size of the payload in bytes. The payload starts after the IV.
    pub payload: usize,
    /// Protocol number of the payload.
    pub next_header: u8,
}

impl EspTrailer {
    /// Parses the trailer of a packet that was decrypted elsewhere, such as in a device.
    ///
    /// # Errors
    /// If the padding is longer than the data, or has a wrong pattern.
    pub fn read(frame: &[u8], at: &EspAt) -> Result<EspTrailer, EspOpenError> {
        EspTrailer::parse(&frame[at.esp + ESP_AND_IV..at.end - ICV])
    }

    /// Parses the trailer at the end of `data`.
    fn parse(data: &[u8]) -> Result<EspTrailer, EspOpenError> {
        let [.., pad_length, next_header] = *data else { return Err(EspOpenError::Padding) };
        // The pad length is authentic but chosen by the peer, so it may exceed the data.
        let payload = data.len().checked_sub(2 + usize::from(pad_length)).ok_or(EspOpenError::Padding)?;
        // RFC 4303 2.4: these algorithms specify no padding of their own, so the padding is 1, 2, 3 and so on, and is
        // verified.
        match data[payload..].iter().zip(1..=pad_length).all(|(byte, expected)| *byte == expected) {
            true => Ok(EspTrailer { payload, next_header }),
            false => Err(EspOpenError::Padding),
        }
    }
}

/// The reason that a packet cannot be opened: a fault of the peer or of the wire.
///
/// ```
/// use bytes::BytesMut;
/// use offload_api::{Direction, EspKey, EspSuite, SaParams};
/// use offload_esp::{EspCipher, EspAt, EspOpenError, OuterHeaders};
///
/// let key = EspKey::new(EspSuite::Aes128Gcm, &[7; 20]).unwrap();
/// let sa = SaParams::new(Direction::Transmit, 0x1001, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
/// let cipher = EspCipher::new(&sa);
/// // Ethernet and IPv4 headers, and eight bytes of UDP.
/// let mut plain = vec![0; 12];
/// plain.extend([8, 0, 0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0x66, 0xce, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 7, 0, 8, 0, 0]);
/// let mut frame = BytesMut::new();
/// OuterHeaders::for_packet(&sa, &plain[14..])?.wrap(&cipher, &plain, 1, &mut frame);
/// let at = EspAt::find(&frame).unwrap();
/// frame[at.end - 1] ^= 1; // the wire flips a bit
/// assert_eq!(cipher.open(&mut frame, &at, 1), Err(EspOpenError::Icv));
/// # Ok::<(), offload_esp::WrapError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EspOpenError {
    /// The ICV is wrong.
    #[error("the ICV is wrong")]
    Icv,
    /// The packet is authentic, but its padding is longer than the data, or has a wrong pattern (RFC 4303 2.4).
    #[error("the padding is not 1, 2, 3 and so on")]
    Padding,
}

impl EspCipher {
    /// Expands the key of `sa`.
    ///
    /// # Panics
    /// Never, because an [`EspKey`](offload_api::EspKey) has the length that its suite requires.
    pub fn new(sa: &SaParams) -> EspCipher {
        let suite = sa.key.suite();
        let algorithm = match sa.key.key().len() {
            16 => Algorithm::Aes128Gcm,
            // Keys of 32 bytes belong to two algorithms, so the suite decides.
            _ if suite == EspSuite::ChaCha20Poly1305 => Algorithm::ChaCha20Poly1305,
            _ => Algorithm::Aes256Gcm,
        };
        let key = Key::new(algorithm, sa.key.key()).expect("the key has the length that its suite requires");
        EspCipher { key, salt: *sa.key.salt(), encrypts: suite.encrypts(), spi: sa.spi, esn: sa.esn }
    }

    /// Seals a packet. `frame` holds all bytes up to the end of the payload. Writes the ESP header and IV at `at`,
    /// appends trailer and ICV, and encrypts in place.
    ///
    /// # Panics
    /// If there is no room for the ESP header and IV at `at`.
    pub fn seal(&self, frame: &mut BytesMut, at: usize, number: u64, next_header: u8) {
        let payload_at = at + ESP_AND_IV;
        let payload = frame.len() - payload_at;
        frame[at..at + 4].copy_from_slice(&self.spi.to_be_bytes());
        frame[at + 4..at + 8].copy_from_slice(&(number as u32).to_be_bytes());
        frame[at + 8..payload_at].copy_from_slice(&number.to_be_bytes());
        let padding = trailer_len(payload) - 2 - ICV;
        // RFC 4303 2.4: the padding is 1, 2, 3.
        frame.extend_from_slice(&[1, 2, 3][..padding]);
        frame.extend_from_slice(&[padding as u8, next_header]);
        let icv = {
            let _crypto_scope = cost::work(WorkKind::Crypto);
            let end = frame.len();
            let (head, data) = frame.split_at_mut(payload_at);
            self.icv_of(&head[at..], number, &mut data[..end - payload_at])
        };
        frame.extend_from_slice(&icv);
    }

    /// Opens the packet in `frame` in place. The offsets of `at` must lie in the frame, as they do if `at` was found
    /// there.
    ///
    /// # Errors
    /// If the packet is not authentic. Its payload is then zero, or unchanged if nothing was encrypted.
    pub fn open(&self, frame: &mut [u8], at: &EspAt, number: u64) -> Result<EspTrailer, EspOpenError> {
        let _crypto_scope = cost::work(WorkKind::Crypto);
        let payload_at = at.esp + ESP_AND_IV;
        let (head, rest) = frame.split_at_mut(payload_at);
        let (data, icv) = rest[..at.end - payload_at].split_at_mut(at.end - payload_at - ICV);
        let icv: [u8; ICV] = (&*icv).try_into().map_err(|_| EspOpenError::Icv)?;
        let head = &head[at.esp..];
        let nonce = self.nonce(head);
        if self.encrypts {
            let (aad, aad_len) = self.aad(head, number);
            self.key.open_in_place(&nonce, &aad[..aad_len], data, &icv).map_err(|_| EspOpenError::Icv)?;
        } else {
            // GMAC authenticates the payload as additional data and encrypts nothing (RFC 4543 3.3).
            let aad = self.gmac_aad(head, number, data);
            self.key.open_in_place(&nonce, &aad, &mut [], &icv).map_err(|_| EspOpenError::Icv)?;
        }
        EspTrailer::parse(data)
    }

    fn icv_of(&self, head: &[u8], number: u64, data: &mut [u8]) -> [u8; ICV] {
        let nonce = self.nonce(head);
        let sealed = if self.encrypts {
            let (aad, aad_len) = self.aad(head, number);
            self.key.seal_in_place(&nonce, &aad[..aad_len], data)
        } else {
            let aad = self.gmac_aad(head, number, data);
            self.key.seal_in_place(&nonce, &aad, &mut [])
        };
        sealed.expect("a packet is far shorter than the longest message")
    }

    /// Returns the nonce: the salt and the explicit IV (RFC 4106 4).
    fn nonce(&self, head: &[u8]) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.salt);
        nonce[4..].copy_from_slice(&head[8..16]);
        nonce
    }

    /// Returns the additional data: SPI and sequence number, with all 64 bits if the SA uses extended numbers (RFC 4106
    /// 5).
    fn aad(&self, head: &[u8], number: u64) -> ([u8; 12], usize) {
        let mut aad = [0; 12];
        aad[..4].copy_from_slice(&head[..4]);
        if self.esn {
            aad[4..].copy_from_slice(&number.to_be_bytes());
            (aad, 12)
        } else {
            aad[4..8].copy_from_slice(&head[4..8]);
            (aad, 8)
        }
    }

    /// Returns the authenticated data: SPI, sequence number, IV, payload and trailer (RFC 4543 3.3).
    fn gmac_aad(&self, head: &[u8], number: u64, data: &[u8]) -> Vec<u8> {
        let (aad, aad_len) = self.aad(head, number);
        [&aad[..aad_len], &head[8..16], data].concat()
    }
}
