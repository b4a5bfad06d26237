//! 256-bit algorithms on messages longer than all published vectors.
//!
//! The results were computed once by a bit-by-bit model in another language that shares no code with this crate. The
//! model also passes all published vectors. An NCA tag depends on every byte of keystream.

use cellular_crypto::{Algorithm, Backend, CipherJob, Direction, Engine, Iv, Key, MacJob, PduNumber, SealJob, TagLen};

const EXPECTED: [(Algorithm, &str, &str, &str); 3] = [
    (Algorithm::Snow5g, "34d2926b47045c3232d2f01996940b82", "b5e41a783ea906b5", "b8ff903be8eaa066d578c8a54217939c"),
    (Algorithm::Aes256, "dc1e1f2e8afa6527902e164cf3472cd2", "c8c12c7729d85036", "0dd00deab43d52a7d38526fb00f4a078"),
    (Algorithm::Zuc256, "c0530175f88498de17e142acc6f42345", "110207690e1bd67e", "52ea1c2c69e54ce6d030a4d291254209"),
];

#[test]
fn long_messages_match_the_model() {
    let bytes: Vec<u8> = (0..32).map(|i| 7 * i + 1).collect();
    let aad: Vec<u8> = (0..333).map(|i| (3 * i) as u8).collect();
    let message: Vec<u8> = (0..4001).map(|i| (5 * i + i / 256) as u8).collect();
    let number = PduNumber::new(0x0102_0304, 5, Direction::Downlink).unwrap();
    let [long, short] = [16, 8].map(|len| TagLen::new(len).unwrap());
    for (algorithm, sealed, mac, end) in EXPECTED {
        let key = Key::new(algorithm, &bytes).unwrap();
        for engine in Backend::ALL.into_iter().filter_map(Engine::with_backend) {
            // Bytes 2 to 7 of the IV are not zero in the model either.
            let middle = [1, 2, 3, 4, 5, 6];
            let mut data = message.clone();
            let iv = Iv::aead(algorithm, number, long).with_middle(middle);
            let mut jobs = [SealJob::new(&key, iv, &aad, &mut data, long).unwrap()];
            engine.seal(&mut jobs);
            assert_eq!(hex(jobs[0].tag().as_bytes()), sealed, "{algorithm:?}, {engine:?}");

            let iv = Iv::mac(algorithm, number, short).with_middle(middle);
            let mut jobs = [MacJob::new(&key, iv, &message, short).unwrap()];
            engine.mac(&mut jobs);
            assert_eq!(hex(jobs[0].tag().as_bytes()), mac, "{algorithm:?}, {engine:?}");

            let mut data = message.clone();
            let iv = Iv::cipher(algorithm, number).with_middle(middle);
            engine.cipher(&mut [CipherJob::new(&key, iv, &mut data).unwrap()]);
            // The last 16 bytes show that no keystream was skipped.
            assert_eq!(hex(&data[data.len() - 16..]), end, "{algorithm:?}, {engine:?}");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
