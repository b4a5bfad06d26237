//! Keys of Initial and Handshake packets, from rustls. Software always seals and opens these packets.

use super::number_of;
use bytes::BytesMut;
use noq_proto::crypto::{CryptoError, HeaderKey, KeyPair, Keys, PacketKey};
use noq_proto::{ConnectionId, PathId};
use rustls::quic;

pub(super) fn keys(keys: quic::Keys) -> Keys {
    let header = |key| -> Box<dyn HeaderKey> { Box::new(LevelHeaderKey(key)) };
    let packet = |key| -> Box<dyn PacketKey> { Box::new(LevelPacketKey(key)) };
    Keys {
        header: KeyPair { local: header(keys.local.header), remote: header(keys.remote.header) },
        packet: KeyPair { local: packet(keys.local.packet), remote: packet(keys.remote.packet) },
    }
}

/// Returns the Initial keys, which depend only on the connection ID (RFC 9001 5.2).
pub(super) fn initial(suite: &quic::Suite, version: quic::Version, cid: ConnectionId, side: rustls::Side) -> Keys {
    keys(suite.keys(&cid, side, version))
}

struct LevelHeaderKey(Box<dyn quic::HeaderProtectionKey>);

impl HeaderKey for LevelHeaderKey {
    // The state machine ensures that the packet contains a sample (RFC 9001 5.4.2).
    fn decrypt(&self, number_at: usize, packet: &mut [u8]) {
        let (header, sample) = packet.split_at_mut(number_at + 4);
        let (first, rest) = header.split_at_mut(1);
        let _ = self.0.decrypt_in_place(&sample[..self.0.sample_len()], &mut first[0], &mut rest[number_at - 1..]);
    }

    fn encrypt(&self, number_at: usize, packet: &mut [u8]) {
        let (header, sample) = packet.split_at_mut(number_at + 4);
        let (first, rest) = header.split_at_mut(1);
        let _ = self.0.encrypt_in_place(&sample[..self.0.sample_len()], &mut first[0], &mut rest[number_at - 1..]);
    }

    fn sample_size(&self) -> usize {
        self.0.sample_len()
    }
}

struct LevelPacketKey(Box<dyn quic::PacketKey>);

impl PacketKey for LevelPacketKey {
    fn encrypt(&self, path: PathId, number: u64, packet: &mut [u8], header_len: usize) {
        let (header, rest) = packet.split_at_mut(header_len);
        let (payload, room) = rest.split_at_mut(rest.len() - self.0.tag_len());
        let tag = self.0.encrypt_in_place_for_path(number_of(path), number, header, payload);
        room.copy_from_slice(tag.expect("a datagram is far shorter than the longest message").as_ref());
    }

    fn decrypt(&self, path: PathId, number: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let opened = self.0.decrypt_in_place_for_path(number_of(path), number, header, payload);
        let len = opened.map_err(|_| CryptoError)?.len();
        payload.truncate(len);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.0.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.integrity_limit()
    }
}
