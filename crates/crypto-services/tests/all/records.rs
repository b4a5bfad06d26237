//! Chains replace one end after a real handshake: rustls opens their records, and they open the records of rustls.

use crypto_services::{Suite, TlsRecords};
use ktls_offload::traffic_key;
use offload_api::{TlsKey, TlsSuite, TlsVersion};
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, ProtocolVersion, RootCertStore, ServerConfig, ServerConnection,
    SupportedCipherSuite,
};
use std::io::{Read, Write};
use std::sync::Arc;

const SUITES: [(SupportedCipherSuite, Suite); 6] = [
    (cipher_suite::TLS13_AES_128_GCM_SHA256, Suite::Aes128Gcm),
    (cipher_suite::TLS13_AES_256_GCM_SHA384, Suite::Aes256Gcm),
    (cipher_suite::TLS13_CHACHA20_POLY1305_SHA256, Suite::ChaCha20Poly1305),
    (cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, Suite::Aes128Gcm),
    (cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, Suite::Aes256Gcm),
    (cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, Suite::ChaCha20Poly1305),
];

/// Returns both ends after the handshake.
fn shaken(suite: SupportedCipherSuite) -> (ClientConnection, ServerConnection) {
    let made = rcgen::generate_simple_self_signed(["chains.test".into()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut provider = default_provider();
    provider.cipher_suites = vec![suite];
    let provider = Arc::new(provider);
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let versions = [suite.version()];
    let client = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&versions).unwrap();
    let mut client = client.with_root_certificates(roots).with_no_client_auth();
    client.enable_secret_extraction = true;
    let server = ServerConfig::builder_with_provider(provider).with_protocol_versions(&versions).unwrap();
    let mut server = server.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    // Session tickets would be sent as additional records.
    server.send_tls13_tickets = 0;
    let name = ServerName::try_from("chains.test").unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        take(&mut server, &written(&mut client)).unwrap();
        take(&mut client, &written(&mut server)).unwrap();
    }
    take(&mut server, &written(&mut client)).unwrap();
    (client, server)
}

/// Returns all bytes that an end has to send.
fn written<Data>(end: &mut ConnectionCommon<Data>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while end.wants_write() {
        end.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Gives bytes to an end, and returns the data read.
fn take<Data>(end: &mut ConnectionCommon<Data>, mut bytes: &[u8]) -> Result<Vec<u8>, rustls::Error> {
    let mut read = Vec::new();
    while !bytes.is_empty() {
        end.read_tls(&mut bytes).unwrap();
        let more = end.process_new_packets()?.plaintext_bytes_to_read();
        let from = read.len();
        read.resize(from + more, 0);
        end.reader().read_exact(&mut read[from..]).unwrap();
    }
    Ok(read)
}

/// Splits a stream into records.
fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let (record, rest) = bytes.split_at(5 + usize::from(u16::from_be_bytes([bytes[3], bytes[4]])));
        records.push(record);
        bytes = rest;
    }
    records
}

#[test]
fn chains_replace_an_end_after_a_rustls_handshake() {
    for (of_rustls, suite) in SUITES {
        let (client, mut server) = shaken(of_rustls);
        let version = match client.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => TlsVersion::Tls12,
            _ => TlsVersion::Tls13,
        };
        // The extracted secrets start with the record numbers after the handshake.
        let secrets = client.dangerous_extract_secrets().unwrap();
        let chain = |(number, secrets)| TlsRecords::new(&traffic_key(version, secrets).unwrap(), number).unwrap();
        let (mut sending, mut receiving) = (chain(secrets.tx), chain(secrets.rx));
        assert_eq!((sending.suite(), receiving.suite()), (suite, suite));
        for (turn, len) in [1, 15, 16, 17, 1448, 16_384, 40_000].into_iter().enumerate() {
            let data: Vec<u8> = (0..len).map(|at| (at * 31 + turn) as u8).collect();
            server.writer().write_all(&data).unwrap();
            let bytes = written(&mut server);
            let mut opened = Vec::new();
            for record in records(&bytes) {
                // A failed attempt must not use up the record's number.
                let mut forged = record.to_vec();
                *forged.last_mut().unwrap() ^= 1;
                assert!(receiving.open(&forged).is_err(), "the chain must check the tag");
                let (content_type, content) = receiving.open(record).unwrap();
                assert_eq!(content_type, 23);
                opened.extend(content);
            }
            assert_eq!(opened, data, "{suite:?}, {len} bytes that rustls sealed");
            let sealed: Vec<u8> = data.chunks(16_384).flat_map(|content| sending.seal(23, content).unwrap()).collect();
            assert_eq!(take(&mut server, &sealed).unwrap(), data, "{suite:?}, {len} bytes that the chain sealed");
        }
        let mut forged = sending.seal(23, b"data").unwrap();
        forged[5] ^= 1;
        assert!(take(&mut server, &forged).is_err(), "rustls must check the tag");
    }
}

#[test]
fn invalid_record_is_refused_without_using_a_number() {
    let (client, mut server) = shaken(SUITES[0].0);
    let secrets = client.dangerous_extract_secrets().unwrap();
    let (number, secrets) = secrets.rx;
    let mut receiving = TlsRecords::new(&traffic_key(TlsVersion::Tls13, secrets).unwrap(), number).unwrap();
    server.writer().write_all(b"data").unwrap();
    let record = written(&mut server);
    for wrong in [&[][..], &record[..4], &record[..record.len() - 1], &[&record[..], &[0]].concat()] {
        assert!(receiving.open(wrong).is_err());
    }
    // The refused attempts must not have advanced the nonce.
    assert_eq!(receiving.open(&record).unwrap(), (23, b"data".to_vec()));
    assert_eq!(receiving.number(), number + 1);
    assert!(receiving.seal(23, &[0; 16_385]).is_none(), "too long for a record");
}

/// RFC 8446 5.3 and 5.5: a key seals a limited number of records, and a number is not used twice.
#[test]
fn records_end_at_the_key_limit() {
    for (suite, key_len, limit) in [
        (TlsSuite::Aes128Gcm, 16, 1 << 24),
        (TlsSuite::Aes256Gcm, 32, 1 << 24),
        (TlsSuite::ChaCha20Poly1305, 32, u64::MAX),
    ] {
        for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
            let key = TlsKey::new(version, suite, &vec![7; key_len], [1; 12]).unwrap();
            let [mut sender, mut receiver] = [(); 2].map(|()| TlsRecords::new(&key, limit - 1).unwrap());
            let last = sender.seal(23, b"the last").unwrap();
            assert_eq!((sender.seal(23, b"one more"), sender.number()), (None, limit));
            assert_eq!(receiver.open(&last).unwrap(), (23, b"the last".to_vec()));
            assert!(receiver.open(&last).is_err());
            assert_eq!(receiver.number(), limit);
        }
    }
}
