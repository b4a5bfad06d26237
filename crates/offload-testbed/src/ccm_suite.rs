//! The TLS 1.3 suite AES-128-CCM (RFC 8446 B.4), which rustls lacks. The crate `ccm` protects records and QUIC packets
//! (RFC 9001 5.3); ring does hashes and key derivation.

use aes::Aes128;
use ccm::consts::{U12, U16};
use ccm::{AeadInOut, Ccm, KeyInit};
use core::fmt::{self, Debug};
use offload_api::QuicCipher;
use rustls::crypto::CipherSuiteCommon;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, MessageDecrypter, MessageEncrypter, Nonce,
    OutboundOpaqueMessage, OutboundPlainMessage, PrefixedPayload, Tls13AeadAlgorithm, UnsupportedOperationError,
    make_tls13_aad,
};
use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{self, HeaderProtectionKey, PacketKey};
use rustls::{
    CipherSuite, ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion, SupportedCipherSuite, Tls13CipherSuite,
};
use std::sync::LazyLock;

/// Returns the TLS 1.3 suite AES-128-CCM with 16-byte tags, for a rustls provider. Its record keys cannot be extracted,
/// because rustls has no type for them.
///
/// ```
/// use offload_testbed::secrets::{system_provider, tls13_aes_128_ccm};
///
/// let mut provider = system_provider();
/// provider.cipher_suites.insert(0, tls13_aes_128_ccm());
/// assert_eq!(provider.cipher_suites[0].suite(), rustls::CipherSuite::TLS13_AES_128_CCM_SHA256);
/// ```
pub fn tls13_aes_128_ccm() -> SupportedCipherSuite {
    static SUITE: LazyLock<Tls13CipherSuite> = LazyLock::new(|| {
        let gcm = gcm();
        Tls13CipherSuite {
            common: CipherSuiteCommon {
                suite: CipherSuite::TLS13_AES_128_CCM_SHA256,
                hash_provider: gcm.common.hash_provider,
                // RFC 9001 B.2 gives the limit of AES-128-CCM.
                confidentiality_limit: QuicCipher::Aes128Ccm.confidentiality_limit(),
            },
            hkdf_provider: gcm.hkdf_provider,
            aead_alg: &Aes128Ccm,
            quic: Some(&Aes128Ccm),
        }
    });
    SupportedCipherSuite::Tls13(&SUITE)
}

/// Returns the GCM suite, which has the same hash and key derivation and hides headers in the same way (RFC 9001
/// 5.4.3).
fn gcm() -> &'static Tls13CipherSuite {
    TLS13_AES_128_GCM_SHA256.tls13().expect("it is a suite of TLS 1.3")
}

struct Aes128Ccm;

impl Tls13AeadAlgorithm for Aes128Ccm {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        Box::new(Key::new(&key, iv))
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        Box::new(Key::new(&key, iv))
    }

    fn key_len(&self) -> usize {
        QuicCipher::Aes128Ccm.key_len()
    }

    fn extract_keys(&self, _: AeadKey, _: Iv) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Err(UnsupportedOperationError)
    }
}

impl quic::Algorithm for Aes128Ccm {
    fn packet_key(&self, key: AeadKey, iv: Iv) -> Box<dyn PacketKey> {
        Box::new(Key::new(&key, iv))
    }

    fn header_protection_key(&self, key: AeadKey) -> Box<dyn HeaderProtectionKey> {
        gcm().quic.expect("rustls has QUIC").header_protection_key(key)
    }

    fn aead_key_len(&self) -> usize {
        QuicCipher::Aes128Ccm.key_len()
    }
}

/// A key, and the IV from which nonces are made.
struct Key {
    ccm: Ccm<Aes128, U16, U12>,
    iv: Iv,
}

impl Key {
    fn new(key: &AeadKey, iv: Iv) -> Key {
        // rustls creates keys of the length that `key_len` returns.
        Key { ccm: Ccm::new_from_slice(key.as_ref()).expect("a key of 16 bytes"), iv }
    }

    fn seal(&self, nonce: &Nonce, aad: &[u8], bytes: &mut [u8]) -> Result<[u8; TAG_LEN], Error> {
        let tag = self.ccm.encrypt_inout_detached(&nonce.0.into(), aad, bytes.into());
        Ok(tag.map_err(|_| Error::EncryptError)?.into())
    }

    /// Decrypts in place and returns the length of the plaintext.
    fn open(&self, nonce: &Nonce, aad: &[u8], bytes: &mut [u8]) -> Result<usize, Error> {
        let (bytes, tag) = bytes.split_last_chunk_mut::<TAG_LEN>().ok_or(Error::DecryptError)?;
        let len = bytes.len();
        let opened = self.ccm.decrypt_inout_detached(&nonce.0.into(), aad, bytes.into(), &(*tag).into());
        opened.map(|()| len).map_err(|_| Error::DecryptError)
    }
}

impl Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl MessageEncrypter for Key {
    fn encrypt(&mut self, message: OutboundPlainMessage<'_>, number: u64) -> Result<OutboundOpaqueMessage, Error> {
        // RFC 8446 5.2: the content type follows the content inside of the ciphertext.
        let len = self.encrypted_payload_len(message.payload.len());
        let mut payload = PrefixedPayload::with_capacity(len);
        payload.extend_from_chunks(&message.payload);
        payload.extend_from_slice(&[message.typ.into()]);
        let aad = make_tls13_aad(len);
        let tag = self.seal(&Nonce::new(&self.iv, number), &aad, payload.as_mut())?;
        payload.extend_from_slice(&tag);
        Ok(OutboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, payload))
    }

    fn encrypted_payload_len(&self, payload_len: usize) -> usize {
        payload_len + 1 + TAG_LEN
    }
}

impl MessageDecrypter for Key {
    fn decrypt<'a>(
        &mut self,
        mut message: InboundOpaqueMessage<'a>,
        number: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let aad = make_tls13_aad(message.payload.len());
        let len = self.open(&Nonce::new(&self.iv, number), &aad, &mut message.payload)?;
        message.payload.truncate(len);
        message.into_tls13_unpadded_message()
    }
}

impl PacketKey for Key {
    fn encrypt_in_place(&self, number: u64, header: &[u8], payload: &mut [u8]) -> Result<quic::Tag, Error> {
        self.encrypt_in_place_for_path(0, number, header, payload)
    }

    fn encrypt_in_place_for_path(
        &self,
        path: u32,
        number: u64,
        header: &[u8],
        payload: &mut [u8],
    ) -> Result<quic::Tag, Error> {
        let tag = self.seal(&Nonce::for_path(path, &self.iv, number), header, payload)?;
        Ok(quic::Tag::from(&tag[..]))
    }

    fn decrypt_in_place<'a>(&self, number: u64, header: &[u8], payload: &'a mut [u8]) -> Result<&'a [u8], Error> {
        self.decrypt_in_place_for_path(0, number, header, payload)
    }

    fn decrypt_in_place_for_path<'a>(
        &self,
        path: u32,
        number: u64,
        header: &[u8],
        payload: &'a mut [u8],
    ) -> Result<&'a [u8], Error> {
        let len = self.open(&Nonce::for_path(path, &self.iv, number), header, payload)?;
        Ok(&payload[..len])
    }

    fn tag_len(&self) -> usize {
        TAG_LEN
    }

    fn confidentiality_limit(&self) -> u64 {
        QuicCipher::Aes128Ccm.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        QuicCipher::Aes128Ccm.integrity_limit()
    }
}

const TAG_LEN: usize = 16;

#[cfg(test)]
mod tests {
    use crate::identity::{Randomness, quic_client_config, quic_server_config, server_name};
    use offload_api::QuicCipher;
    use rustls::{CipherSuite, ClientConnection, Error, ServerConnection};
    use std::io::{Read, Write};
    use std::sync::Arc;

    /// Returns a client and a server that have agreed on this suite.
    fn pair() -> (ClientConnection, ServerConnection) {
        let client = quic_client_config(QuicCipher::Aes128Ccm, Randomness::System, None);
        let server = quic_server_config(QuicCipher::Aes128Ccm, Randomness::System, None);
        let mut client = ClientConnection::new(Arc::new(client), server_name()).unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut flight = Vec::new();
            client.write_tls(&mut flight).unwrap();
            server.read_tls(&mut &flight[..]).unwrap();
            server.process_new_packets().unwrap();
            flight.clear();
            server.write_tls(&mut flight).unwrap();
            client.read_tls(&mut &flight[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        (client, server)
    }

    #[test]
    fn changed_record_is_refused() {
        let (mut client, mut server) = pair();
        let suite = client.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(suite, CipherSuite::TLS13_AES_128_CCM_SHA256);
        let (mut flight, mut heard) = (Vec::new(), [0; 5]);
        client.writer().write_all(b"hello").unwrap();
        client.write_tls(&mut flight).unwrap();
        server.read_tls(&mut &flight[..]).unwrap();
        server.process_new_packets().unwrap();
        server.reader().read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");

        flight.clear();
        client.writer().write_all(b"again").unwrap();
        client.write_tls(&mut flight).unwrap();
        *flight.last_mut().unwrap() ^= 1;
        server.read_tls(&mut &flight[..]).unwrap();
        assert_eq!(server.process_new_packets().unwrap_err(), Error::DecryptError);
    }
}
