//! Published vectors of RFC 9001 A.2, A.3 and A.5, and AES-CCM packets made by other programs.

use offload_api::{QuicCipher, QuicHeaderKey, QuicKey};
use offload_quic::{HeaderKey, PacketKey, TrafficSecret, UnmaskedHeader, seal};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// RFC 9001 A.5: the only short-header packet in any RFC.
#[test]
fn short_header_packet_matches_the_rfc() {
    let secret = hex("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b");
    let secret = TrafficSecret::new(QuicCipher::ChaCha20Poly1305, &secret).unwrap();
    assert_eq!(secret.key().key(), hex("c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8"));
    assert_eq!(secret.key().iv()[..], hex("e0459b3474bdd0e44a41c144"));
    assert_eq!(secret.header().key(), hex("25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4"));
    let (key, header_key) = (secret.packet_key(), secret.header_key());
    assert_eq!(key.nonce(0, 654_360_564)[..], hex("e0459b3474bdd0e46d417eb0"));
    let sealed = hex("4cfe4189655e5cd55c41f69080575d7999c25a5bfb");
    let mut packet = [hex("4200bff4"), vec![1], vec![0; 16]].concat();
    seal(&key, &header_key, &mut packet, 1, 0, 654_360_564).unwrap();
    assert_eq!(packet, sealed);
    let header = UnmaskedHeader::read(&header_key, &packet, 1).unwrap();
    assert_eq!((header.number(Some(654_360_000)), header.payload_at(), header.key_phase()), (654_360_564, 4, false));
    let number = header.number(Some(654_360_000));
    // Path and number enter the nonce, so a wrong one must make the tag fail.
    assert!(header.open(&key, &mut packet.clone(), 1, number).is_err(), "another path");
    assert!(header.open(&key, &mut packet.clone(), 0, number + 1).is_err(), "another number");
    header.open(&key, &mut packet, 0, number).unwrap();
    assert_eq!(packet[..5], hex("4200bff401"));
}

/// The "quic ku" secret of the same example.
#[test]
fn next_generation_matches_the_rfc() {
    let secret = hex("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b");
    let next = TrafficSecret::new(QuicCipher::ChaCha20Poly1305, &secret).unwrap().next();
    let ku = hex("1223504755036d556342ee9361d253421a826c9ecdf3c7148684b36b714881f9");
    let by_bytes = TrafficSecret::new(QuicCipher::ChaCha20Poly1305, &ku).unwrap();
    assert_eq!((next.key().key(), next.key().iv()), (by_bytes.key().key(), by_bytes.key().iv()));
}

/// RFC 9001 A.2 and A.3: masks by AES.
#[test]
fn masks_of_initial_packets_match_the_rfc() {
    for (key, sample, mask) in [
        ("9f50449e04a0e810283a1e9933adedd2", "d1b1c98dd7689fb8ec11d242b123dc9b", "437b9aec36"),
        ("c206b8d9b9f0f37644430b490eeaa314", "2cd0991cd25b0aac406a5816b6394100", "2ec0d8356a"),
    ] {
        let key = HeaderKey::new(&QuicHeaderKey::new(QuicCipher::Aes128Gcm, &hex(key)).unwrap());
        assert_eq!(key.mask(&hex(sample).try_into().unwrap())[..], hex(mask));
    }
}

/// RFC 9001 A.3: AES-128-GCM over the server's Initial, with a plain header.
#[test]
fn payload_of_the_initial_packet_matches_the_rfc() {
    let key = QuicKey::new(
        QuicCipher::Aes128Gcm,
        &hex("cf3a5331653c364c88f0f379b6067e37"),
        hex("0ac1493ca1905853b0bba03e").try_into().unwrap(),
    );
    let mut payload = hex("02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf73988\
        cfc79825df566dc5430b9a045a1200130100002e00330024001d00209d3c940d89690b84d08a60993c144eca684d1081287c\
        834d5311bcf32bb9da1a002b00020304");
    let header = hex("c1000000010008f067a5502a4262b50040750001");
    let tag = PacketKey::new(&key.unwrap()).seal(0, 1, &header, &mut payload);
    let sealed = hex(
        "5a482cd0991cd25b0aac406a5816b6394100f37a1c69797554780bb38cc5a99f5ede4cf73c3ec2493a1839b3dbcba3f6ea\
        46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc42158407dd074ee",
    );
    assert_eq!([&payload[..], &tag].concat(), sealed);
}

/// AES-128-CCM, for which no RFC has a packet, and rustls no suite: two packets made by OpenSSL through Python's
/// `cryptography` (`AESCCM`, AES in ECB mode, HMAC), the second on path 3.
#[test]
fn packets_sealed_by_openssl_are_opened() {
    let bytes: Vec<u8> = (0..32).collect();
    let secret = TrafficSecret::new(QuicCipher::Aes128Ccm, &bytes).unwrap();
    let (key, header_key) = (secret.packet_key(), secret.header_key());
    for (sealed, cid_bytes, path, number, plain) in [
        (
            "5dc1c2c3c4c5c6c7c8e7215ce78bb08127151581a5b3b2f6e506c6977e76abeade3f4979158866389c005b37732cebac0bf61cb4c37a9df573b7",
            8,
            0,
            0x1234,
            &b"sealed by a CCM of another make"[..],
        ),
        ("411da0db32c7a3bf68175ae8e4effb931d07d7a928c6208a175da8bc74e2d1e85600", 0, 3, 0xaead, b"and on a path"),
    ] {
        let sealed = hex(sealed);
        let header = UnmaskedHeader::read(&header_key, &sealed, 1 + cid_bytes).unwrap();
        assert_eq!(header.number(Some(number - 1)), number);
        let mut packet = sealed.clone();
        header.open(&key, &mut packet, path, number).unwrap();
        let payload_at = header.payload_at();
        assert_eq!(&packet[payload_at..packet.len() - 16], plain);
        seal(&key, &header_key, &mut packet, 1 + cid_bytes, path, number).unwrap();
        assert_eq!(packet, sealed);
    }
}
