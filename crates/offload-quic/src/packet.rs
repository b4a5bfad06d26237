//! Whole packets with a short header, sealed and opened in place.
//!
//! Invariant: a packet that cannot be opened keeps its header.

use crate::key::PacketKey;
use crate::mask::HeaderKey;
use crate::number::expand;
use crate::{MAX_NUMBER_BYTES, SAMPLE, TAG};

/// Seals a packet: encrypts the payload after the header, writes the tag into the room at the packet's end, and masks
/// the first byte and the number, which starts at `number_at`.
///
/// ```
/// use offload_api::{QuicCipher, QuicHeaderKey, QuicKey};
/// use offload_quic::{HeaderKey, PacketKey, seal};
///
/// let key = PacketKey::new(&QuicKey::new(QuicCipher::Aes128Ccm, &[1; 16], [2; 12]).unwrap());
/// let header_key = HeaderKey::new(&QuicHeaderKey::new(QuicCipher::Aes128Ccm, &[3; 16]).unwrap());
/// assert!(seal(&key, &header_key, &mut [0x40; 19], 1, 0, 0).is_err(), "no sample is in it");
/// ```
///
/// # Errors
/// If the packet is too short for a sample. Nothing is changed then.
pub fn seal(
    key: &PacketKey,
    header_key: &HeaderKey,
    packet: &mut [u8],
    number_at: usize,
    path: u32,
    number: u64,
) -> Result<(), TooShort> {
    let number_bytes = number_bytes(*packet.first().ok_or(TooShort)?);
    let payload_at = number_at + number_bytes;
    // The receiver takes the sample before it knows the number's length, so the position is fixed.
    let has_sample = packet.len() >= number_at + MAX_NUMBER_BYTES + SAMPLE;
    let tag_at = packet.len().checked_sub(TAG).filter(|at| has_sample && *at >= payload_at).ok_or(TooShort)?;
    let (header, rest) = packet.split_at_mut(payload_at);
    let (payload, tag) = rest.split_at_mut(tag_at - payload_at);
    tag.copy_from_slice(&key.seal(path, number, header, payload));
    // The mask depends on the ciphertext, so header protection comes after encryption (RFC 9001 5.4.1).
    let mask = header_key.mask(&sample(packet, number_at)?);
    packet[0] ^= mask[0] & SHORT_MASK;
    packet[number_at..payload_at].iter_mut().zip(&mask[1..]).for_each(|(byte, mask)| *byte ^= mask);
    Ok(())
}

/// The unmasked header of a received packet. Not authentic before the packet is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmaskedHeader {
    first: u8,
    truncated: u32,
    number_at: usize,
}

impl UnmaskedHeader {
    /// Unmasks the header of a packet with its number at `number_at`.
    ///
    /// # Errors
    /// If the packet is too short for a sample.
    pub fn read(header_key: &HeaderKey, packet: &[u8], number_at: usize) -> Result<UnmaskedHeader, TooShort> {
        let mask = header_key.mask(&sample(packet, number_at)?);
        let first = packet[0] ^ mask[0] & SHORT_MASK;
        // The length of the number is itself masked, so the first byte must be unmasked before the number.
        let number = packet[number_at..].iter().zip(&mask[1..]).take(number_bytes(first));
        let truncated = number.fold(0, |number, (byte, mask)| number << 8 | u32::from(byte ^ mask));
        Ok(UnmaskedHeader { first, truncated, number_at })
    }

    /// Returns the key phase bit (RFC 9001 6).
    pub fn key_phase(&self) -> bool {
        self.first & KEY_PHASE != 0
    }

    /// Returns the packet's number, given the largest number opened on its path.
    pub fn number(&self, largest: Option<u64>) -> u64 {
        expand(largest, self.truncated, number_bytes(self.first))
    }

    /// Returns the offset of the payload.
    pub fn payload_at(&self) -> usize {
        self.number_at + number_bytes(self.first)
    }

    /// Opens the packet from which this header was read, and writes the plain header. The tag stays after the payload.
    ///
    /// # Errors
    /// If the packet is not authentic. The header is then unchanged, and the payload must be discarded.
    pub fn open(&self, key: &PacketKey, packet: &mut [u8], path: u32, number: u64) -> Result<(), QuicOpenError> {
        let tag_at = packet.len().checked_sub(TAG).filter(|at| *at >= self.payload_at()).ok_or(TooShort)?;
        // The additional data is the plain header. It is built aside, so that a packet that fails keeps its masked
        // header.
        let mut header = [0; 1 + offload_formats::quic::MAX_CID_BYTES + MAX_NUMBER_BYTES];
        let header = header.get_mut(..self.payload_at()).ok_or(TooShort)?;
        header.copy_from_slice(&packet[..self.payload_at()]);
        self.write(header);
        let (payload, tag) = packet[self.payload_at()..].split_at_mut(tag_at - self.payload_at());
        let tag = (&*tag).try_into().map_err(|_| TooShort)?;
        key.open(path, number, header, payload, &tag).map_err(|_| QuicOpenError::Tag)?;
        packet[..header.len()].copy_from_slice(header);
        Ok(())
    }

    /// Writes the plain first byte and number over a masked header.
    pub fn write(&self, header: &mut [u8]) {
        let number = self.truncated.to_be_bytes();
        header[0] = self.first;
        header[self.number_at..self.payload_at()].copy_from_slice(&number[4 - number_bytes(self.first)..]);
    }
}

/// The error for a packet without a sample. No peer sends such a packet (RFC 9001 5.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the packet is too short to take a sample from: pad it")]
pub struct TooShort;

/// The reason that a packet cannot be opened: a fault of the peer or of the wire.
///
/// ```
/// use offload_api::QuicCipher;
/// use offload_quic::{QuicOpenError, TrafficSecret, TooShort, UnmaskedHeader};
///
/// fn open(secret: &TrafficSecret, packet: &mut [u8]) -> Result<(), QuicOpenError> {
///     let unmasked = UnmaskedHeader::read(&secret.header_key(), packet, 1)?;
///     let number = unmasked.number(None);
///     unmasked.open(&secret.packet_key(), packet, 0, number)
/// }
///
/// let secret = TrafficSecret::new(QuicCipher::Aes128Gcm, &[1; 32])?;
/// assert_eq!(open(&secret, &mut [0x40; 8]), Err(QuicOpenError::TooShort(TooShort)));
/// assert_eq!(open(&secret, &mut [0x40; 60]), Err(QuicOpenError::Tag));
/// # Ok::<(), offload_quic::SecretLengthError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuicOpenError {
    /// The packet is too short for a sample or a tag.
    #[error(transparent)]
    TooShort(#[from] TooShort),
    /// The tag is wrong.
    #[error("the tag is wrong")]
    Tag,
}

/// Returns the key phase bit of a plain first byte, which selects one of two keys.
///
/// ```
/// assert!(offload_quic::packet::key_phase_of(0x44) && !offload_quic::packet::key_phase_of(0x43));
/// ```
pub const fn key_phase_of(first: u8) -> bool {
    first & KEY_PHASE != 0
}

/// Returns the truncated number of a plain header, which starts at `number_at`, and its size in bytes. Returns `None`
/// if the packet ends before.
///
/// ```
/// use offload_quic::packet::truncated_number;
///
/// assert_eq!(truncated_number(&[0x41, 0xaa, 2, 1, 0xff], 2), Some((513, 2)));
/// assert_eq!(truncated_number(&[0x43, 0xaa, 2, 1, 0xff], 2), None);
/// ```
pub fn truncated_number(packet: &[u8], number_at: usize) -> Option<(u32, usize)> {
    let bytes = number_bytes(*packet.first()?);
    let number = packet.get(number_at..number_at + bytes)?;
    Some((number.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)), bytes))
}

/// Returns the size of the number in bytes. The first byte holds the size minus one (RFC 9000 17.3.1).
const fn number_bytes(first: u8) -> usize {
    (first & 3) as usize + 1
}

/// Returns the sample, which is taken as if the number had four bytes (RFC 9001 5.4.2).
fn sample(packet: &[u8], number_at: usize) -> Result<[u8; SAMPLE], TooShort> {
    packet.get(number_at + MAX_NUMBER_BYTES..).and_then(|rest| rest.first_chunk()).copied().ok_or(TooShort)
}

/// The protected bits of a short header's first byte (RFC 9001 5.4.1).
const SHORT_MASK: u8 = 0x1f;
const KEY_PHASE: u8 = 0x04;
