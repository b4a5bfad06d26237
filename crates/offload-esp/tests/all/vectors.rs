//! Published vectors: RFC 7634 appendix A, and draft-mcgrew-gcm-test-01 for AES-GCM (RFC 4106) and GMAC (RFC 4543).
//! Their packets can be opened, but not after a change of any bit.
use offload_api::{Direction, EspKey, EspSuite, SaParams};
use offload_esp::{EspAt, EspCipher, EspOpenError, EspTrailer};
use offload_formats::IpView;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

struct EspVector {
    suite: EspSuite,
    key: &'static str,
    salt: &'static str,
    spi: u32,
    number: u64,
    esn: bool,
    iv: &'static str,
    /// Ciphertext and ICV.
    sealed: &'static str,
    /// Payload and trailer.
    plain: &'static str,
}

impl EspVector {
    fn sa(&self) -> SaParams {
        let key = EspKey::new(self.suite, &hex(&format!("{}{}", self.key, self.salt))).unwrap();
        let sa = SaParams::new(Direction::Receive, self.spi, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), key);
        SaParams { esn: self.esn, ..sa }
    }

    fn cipher(&self) -> EspCipher {
        EspCipher::new(&self.sa())
    }

    /// Builds a frame of arbitrary Ethernet and IP headers, and ESP.
    fn frame(&self) -> (Vec<u8>, EspAt) {
        let mut frame = vec![0; 12];
        frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 50, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend_from_slice(&self.spi.to_be_bytes());
        frame.extend_from_slice(&(self.number as u32).to_be_bytes());
        frame.extend_from_slice(&hex(self.iv));
        frame.extend_from_slice(&hex(self.sealed));
        let total = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        let at = EspAt::find(&frame).expect("ESP");
        assert_eq!((at.spi, at.low, at.esp), (self.spi, self.number as u32, 34));
        assert!(IpView::parse(&frame[14..]).is_some());
        (frame, at)
    }

    fn open(&self) -> EspTrailer {
        let (mut frame, at) = self.frame();
        let trailer = self.cipher().open(&mut frame, &at, self.number).expect("authentic");
        let plain = hex(self.plain);
        assert_eq!(frame[50..50 + plain.len()], plain);
        let [.., pad_length, next_header] = plain[..] else { panic!("a trailer is two bytes") };
        assert_eq!(trailer, EspTrailer { payload: plain.len() - 2 - usize::from(pad_length), next_header });

        // A change of any byte is detected.
        let length = frame.len();
        for at_byte in 34..length {
            let (mut frame, _) = self.frame();
            frame[at_byte] ^= 0x10;
            let at = EspAt::find(&frame).expect("ESP");
            let number = self.number >> 32 << 32 | u64::from(at.low);
            let same_key = EspCipher::new(&SaParams { spi: at.spi, ..self.sa() });
            assert_eq!(same_key.open(&mut frame, &at, number), Err(EspOpenError::Icv), "byte {at_byte}");
        }
        if self.esn {
            let (mut frame, at) = self.frame();
            assert_eq!(
                self.cipher().open(&mut frame, &at, self.number ^ 1 << 32),
                Err(EspOpenError::Icv),
                "upper half"
            );
        }
        trailer
    }
}

/// draft-mcgrew-gcm-test-01, with extended sequence numbers.
#[test]
fn aes_128_gcm_with_esn() {
    let vector = EspVector {
        suite: EspSuite::Aes128Gcm,
        key: "4c80cdefbb5d10da906ac73c3613a634",
        salt: "2e443b68",
        spi: 0x4321,
        number: 0x8765_4321_0000_0000,
        esn: true,
        iv: "4956ed7e3b244cfe",
        sealed: "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d
                 15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732459018148f6cbe722fd04796562dfdb4",
        plain: "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f75647003736970
                0963796265726369747902646b0000210001 01020201",
    };
    assert_eq!(vector.open(), EspTrailer { payload: 68, next_header: 1 });
}

/// draft-mcgrew-gcm-test-01, without extended sequence numbers.
#[test]
fn aes_128_gcm() {
    let vector = EspVector {
        suite: EspSuite::Aes128Gcm,
        key: "feffe9928665731c6d6a8f9467308308",
        salt: "cafebabe",
        spi: 0xa5f8,
        number: 10,
        esn: false,
        iv: "facedbaddecaf888",
        sealed: "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c3de81827c10e9a4f51330d0eec416642
                 cfbb85a5b47e48a4ec3b9ba95d918bd183b70d3aa8bc6ee4c309e9d85a41ad4a",
        plain: "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d0010000010000000000000373697009637962657263
                69747902646b0000010001 0001",
    };
    assert_eq!(vector.open(), EspTrailer { payload: 62, next_header: 1 });
}

/// draft-mcgrew-gcm-test-01, with a key of 256 bits.
#[test]
fn aes_256_gcm() {
    let vector = EspVector {
        suite: EspSuite::Aes256Gcm,
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        salt: "11223344",
        spi: 0x4a2c_bfe3,
        number: 2,
        esn: false,
        iv: "0102030405060708",
        sealed: "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f0545659f14e99d
                 ef842d8eb335f4eecfdbf831824b4c4915956c96",
        plain: "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee0000000007002400020bf0000020405b401010402
                01020201",
    };
    assert_eq!(vector.open(), EspTrailer { payload: 48, next_header: 1 });
}

/// draft-mcgrew-gcm-test-01, GMAC.
#[test]
fn aes_128_gmac() {
    let vector = EspVector {
        suite: EspSuite::Aes128Gmac,
        key: "4c80cdefbb5d10da906ac73c3613a634",
        salt: "22433c64",
        spi: 0x4321,
        number: 7,
        esn: false,
        iv: "0000000000000000",
        sealed: "45000030da3a00008001df3bc0a80005c0a800010800c6cd020007006162636465666768696a6b6c6d6e6f70717273740102
                 0201f2a9a836e155106aa8dcd618e4099aaa",
        plain: "45000030da3a00008001df3bc0a80005c0a800010800c6cd020007006162636465666768696a6b6c6d6e6f7071727374
                01020201",
    };
    assert_eq!(vector.open(), EspTrailer { payload: 48, next_header: 1 });
}

/// RFC 7634 appendix A.
#[test]
fn chacha20_poly1305() {
    let vector = EspVector {
        suite: EspSuite::ChaCha20Poly1305,
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        salt: "a0a1a2a3",
        spi: 0x0102_0304,
        number: 5,
        esn: false,
        iv: "1011121314151617",
        sealed: "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c614ee8099d52844eb61aa95dfab4c02f7
                 2aa71e7c4c4f64c9befe2facc638e8f3cbec163fac469b502773f6fb94e664da9165b82829f641e0
                 76aaa8266b7fb0f7b11b369907e1ad43",
        plain: "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec100007362708090a0b0c0d0e0f10111213
                1415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363701020204",
    };
    assert_eq!(vector.open(), EspTrailer { payload: 84, next_header: 4 });
}
