//! Inputs that must be refused, and the errors returned.

use crate::{hex, run};
use bytes::{Bytes, BytesMut};
use offload_compression::Compression;
use offload_transforms::protection::{
    BlockProtection, Check, Format, Guard, InPlaceProtection, Mismatch, ProtectionTag, ProtectionType,
};
use offload_transforms::{
    Aead, Fault, HmacHash, MacOrder, Parameters, SecretBytes, Session, SpecError, Transform, TransformDirection, Tweak,
};

fn all() -> Vec<Transform> {
    let key = |len| SecretBytes::new((0..).take(len).collect());
    let protection = BlockProtection { memory: None, wire: Some(Format::default()), check: Check::ALL };
    let cbc = |order| Transform::CbcHmac { order, hash: HmacHash::Sha1, cipher_key: key(16), mac_key: key(20) };
    let mut all: Vec<_> =
        Aead::ALL.iter().map(|aead| Transform::Aead { aead: *aead, key: key(aead.key_len()) }).collect();
    all.extend(Compression::ALL.map(|format| format.at_level(3)));
    all.extend([
        cbc(MacOrder::EncryptThenMac),
        cbc(MacOrder::MacThenEncrypt),
        Transform::Ctr { key: key(16) },
        Transform::Cmac { key: key(16) },
        Transform::Xts { key: key(32), unit: 512, tweak: Tweak::Unit },
        Transform::Protection(protection),
        Transform::Copy,
        Transform::Pad { unit: 512 },
        Transform::Chain(vec![
            Compression::Deflate.at_level(1),
            Transform::Pad { unit: 512 },
            Transform::Xts { key: key(64), unit: 512, tweak: Tweak::Unit },
            Transform::Protection(protection),
        ]),
    ]);
    all
}

const WITH: Parameters<'static> = Parameters { iv: [1; 16], aad: b"eleven byte" };

/// A target with one byte too few is unchanged, in both directions. With exact space, the run succeeds.
#[test]
fn short_target_is_left_unchanged() {
    for transform in all() {
        let session = Session::new(&transform).unwrap();
        let plain = Bytes::from(vec![b'a'; 1024]);
        let (applied, _) = run(&session, TransformDirection::Apply, WITH, core::slice::from_ref(&plain)).unwrap();
        for (way, source, len) in [
            (TransformDirection::Apply, plain.clone(), applied.len()),
            (TransformDirection::Undo, applied.clone().into(), 1024),
        ] {
            let mut target = BytesMut::with_capacity(len - 1);
            let fault = session.run(way, WITH, core::slice::from_ref(&source), &mut target).unwrap_err();
            assert_eq!(fault, Fault::OutOfSpace { room: len - 1 }, "{} {way:?}", transform.name());
            assert!(target.is_empty() && target.capacity() == len - 1, "{}", transform.name());
        }
    }
}

/// Transforms that authenticate data detect a flipped bit. No transform panics.
#[test]
fn flipped_bits_are_detected() {
    for transform in all() {
        // Raw DEFLATE has no checksum.
        let vouches = transform.name() != "deflate"
            && !matches!(
                transform,
                Transform::Ctr { .. } | Transform::Xts { .. } | Transform::Copy | Transform::Pad { .. }
            );
        let session = Session::new(&transform).unwrap();
        let plain: Vec<u8> = (0..1024).map(|at| (at % 7) as u8).collect();
        let (applied, _) = run(&session, TransformDirection::Apply, WITH, &[plain.clone().into()]).unwrap();
        for bit in 0..8 * applied.len() {
            let mut wrong = applied.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let undone = run(&session, TransformDirection::Undo, WITH, &[wrong.into()]);
            // Padding and parts of the heads say nothing about the data.
            let same = |undone: &(Vec<u8>, _)| matches!(transform, Transform::Compression(_)) && undone.0 == plain;
            assert!(
                !vouches || undone.as_ref().map_or(true, same),
                "{}: bit {bit} of {}",
                transform.name(),
                8 * applied.len()
            );
        }
    }
}

/// Compressed data that are truncated anywhere fail, instead of yielding shorter plain data.
#[test]
fn truncated_compressed_data_are_refused() {
    for format in Compression::ALL {
        let session = Session::new(&format.at_level(6)).unwrap();
        let plain: Vec<u8> = (0..3000u32).map(|at| (at * at % 251) as u8).collect();
        let (packed, _) = run(&session, TransformDirection::Apply, WITH, &[plain.into()]).unwrap();
        for len in 0..packed.len() {
            let cut = Bytes::copy_from_slice(&packed[..len]);
            assert_eq!(run(&session, TransformDirection::Undo, WITH, &[cut]), Err(Fault::Corrupt), "{format:?} {len}");
        }
    }
}

#[test]
fn mismatch_names_tag_block_and_values() {
    let kinds = [ProtectionType::Type1, ProtectionType::Type2, ProtectionType::Type3];
    for (kind, guard) in
        kinds.into_iter().flat_map(|kind| [Guard::Crc16, Guard::Crc32, Guard::Crc64].map(|guard| (kind, guard)))
    {
        let wire = Format { kind, guard, application: 0x1234, storage_bits: 16, storage: 0xabc, ..Format::default() };
        let of = |check| {
            Session::new(&Transform::Protection(BlockProtection { memory: None, wire: Some(wire), check })).unwrap()
        };
        let with = Parameters { iv: (500u128 << 64 | 1000).to_le_bytes(), aad: b"" };
        let (protected, _) = run(&of(Check::ALL), TransformDirection::Apply, with, &[vec![3; 2048].into()]).unwrap();
        let block = wire.block();
        let fault = |check: Check, at: usize| {
            let mut wrong = protected.clone();
            wrong[2 * block + at] ^= 0x40;
            run(&of(check), TransformDirection::Undo, with, &[wrong.into()]).map(|_| ())
        };
        let mismatch = |at| match fault(Check::ALL, at).unwrap_err() {
            Fault::Integrity(mismatch) => mismatch,
            fault => panic!("{fault}"),
        };
        let guard_bytes = block
            - 512
            - 2
            - match guard {
                Guard::Crc16 => 4,
                Guard::Crc32 => 10,
                _ => 6,
            };
        let found = mismatch(512);
        assert_eq!((found.tag, found.lba, found.offset), (ProtectionTag::Guard, 1002, 2 * block as u64));
        assert_eq!(found.expected ^ found.actual, 0x40 << (8 * (guard_bytes - 1)));
        assert_eq!(fault(Check { guard: false, ..Check::ALL }, 512), Ok(()));
        assert_eq!(
            mismatch(512 + guard_bytes),
            Mismatch { tag: ProtectionTag::Application, expected: 0x1234, actual: 0x5234, ..found }
        );
        assert_eq!(fault(Check { application: 0xff, ..Check::ALL }, 512 + guard_bytes), Ok(()));
        assert_eq!(mismatch(512 + guard_bytes + 2).tag, ProtectionTag::Storage);
        assert_eq!(fault(Check { storage: false, ..Check::ALL }, 512 + guard_bytes + 2), Ok(()));
        let expected = if kind == ProtectionType::Type1 { 1002 } else { 502 };
        match kind {
            // A type 3 reference tag is not verified.
            ProtectionType::Type3 => assert_eq!(fault(Check::ALL, block - 1), Ok(())),
            _ => assert_eq!(
                mismatch(block - 1),
                Mismatch { tag: ProtectionTag::Reference, expected, actual: expected ^ 0x40, ..found }
            ),
        }
        assert_eq!(fault(Check { reference: false, ..Check::ALL }, block - 1), Ok(()));
    }
}

#[test]
fn escaped_blocks_are_not_verified() {
    let escaped = |kind, reference: &str| {
        let wire = Format { kind, ..Format::default() };
        let protection = BlockProtection { memory: None, wire: Some(wire), check: Check::ALL };
        let block: Vec<u8> = vec![1; 512].into_iter().chain(hex("0000 ffff")).chain(hex(reference)).collect();
        run(&Session::new(&Transform::Protection(protection)).unwrap(), TransformDirection::Undo, WITH, &[block.into()])
            .is_ok()
    };
    assert!(escaped(ProtectionType::Type1, "00000000") && escaped(ProtectionType::Type2, "00000000"));
    assert!(escaped(ProtectionType::Type3, "ffffffff") && !escaped(ProtectionType::Type3, "ffffff00"));
}

#[test]
fn invalid_specifications_are_refused() {
    let key = |len| SecretBytes::new((0..).take(len).collect());
    let refused = |transform: Transform| Session::new(&transform).unwrap_err();
    for aead in Aead::ALL {
        assert!(matches!(refused(Transform::Aead { aead, key: key(24) }), SpecError::KeyLength { found: 24, .. }));
    }
    for (len, unit) in [(0, 512), (33, 512), (48, 512), (64, 15), (64, 2 << 20)] {
        refused(Transform::Xts { key: key(len), unit, tweak: Tweak::Unit });
    }
    refused(Transform::Xts { key: key(64), unit: 520, tweak: Tweak::Sectors512 });
    assert_eq!(refused(Compression::Gzip.at_level(10)), SpecError::Level(10));
    assert_eq!(refused(Transform::Chain(vec![])), SpecError::Chain);
    assert_eq!(refused(Transform::Chain(vec![Transform::Chain(vec![Transform::Copy])])), SpecError::Chain);
    refused(Transform::Pad { unit: 0 });
    let none = BlockProtection { memory: None, wire: None, check: Check::ALL };
    assert_eq!(refused(Transform::Protection(none)), SpecError::Domains);
    for wire in [
        Format { interval: 0, ..Format::default() },
        Format { storage_bits: 33, ..Format::default() },
        Format { storage_bits: 4, storage: 16, ..Format::default() },
    ] {
        refused(Transform::Protection(BlockProtection { wire: Some(wire), ..none }));
    }
    assert!(!format!("{:?}", Transform::Ctr { key: key(16) }).contains('5'), "keys are not printed");
}

/// Lengths that no run can produce.
#[test]
fn impossible_source_lengths_are_refused() {
    for transform in all() {
        let session = Session::new(&transform).unwrap();
        for len in 0..600 {
            let source = Bytes::from(vec![0x80; len]);
            for way in [TransformDirection::Apply, TransformDirection::Undo] {
                // Any result is allowed, as long as the target is unchanged on failure (checked by `run`).
                let _outcome = run(&session, way, WITH, core::slice::from_ref(&source));
                let _outcome = run(&session, way, Parameters::default(), core::slice::from_ref(&source));
            }
        }
    }
}

/// A block with this tag escapes all checks (types 1 and 2).
#[test]
fn application_tag_that_escapes_checks_is_refused() {
    for kind in [ProtectionType::Type1, ProtectionType::Type2, ProtectionType::Type3] {
        let format = Format { kind, application: u16::MAX, ..Format::default() };
        let other = Format { application: 0xfffe, ..format };
        let session = |memory, wire| {
            let protection = BlockProtection { memory, wire, check: Check::ALL };
            Session::new(&Transform::Protection(protection)).map(|_| ())
        };
        let expected = if kind == ProtectionType::Type3 { Ok(()) } else { Err(SpecError::ApplicationTag) };
        assert_eq!(session(None, Some(format)), expected);
        assert_eq!(session(Some(format), Some(other)), expected);
        assert_eq!(session(None, Some(other)), Ok(()));
        assert_eq!(InPlaceProtection::new(format, Check::ALL, 0).map(|_| ()), expected);
    }
}

/// MAC-then-encrypt opens its own records of any length.
#[test]
fn mac_then_encrypt_opens_its_own_records() {
    for (hash, mac_key) in [(HmacHash::Sha1, 20), (HmacHash::Sha256, 32)] {
        let [cipher_key, mac_key] = [16, mac_key].map(|len| SecretBytes::new(vec![len; len.into()]));
        let session =
            Session::new(&Transform::CbcHmac { order: MacOrder::MacThenEncrypt, hash, cipher_key, mac_key }).unwrap();
        for len in (0..70).chain([255, 256, 4095, 16_384]) {
            let plain = Bytes::from((0..len).map(|at| at as u8).collect::<Vec<u8>>());
            let (sealed, _) = run(&session, TransformDirection::Apply, WITH, core::slice::from_ref(&plain)).unwrap();
            let (opened, _) = run(&session, TransformDirection::Undo, WITH, &[Bytes::from(sealed)]).unwrap();
            assert_eq!(opened, plain, "{len} bytes");
        }
    }
}

fn lz4() -> Session {
    Session::new(&Compression::Lz4.at_level(0)).unwrap()
}

/// Builds a skippable LZ4 frame (Frame Format 1.6.4) with one of the 16 magic numbers.
fn skippable(magic: u8, data: &[u8]) -> Vec<u8> {
    [&[0x50 | magic, 0x2a, 0x4d, 0x18], &(data.len() as u32).to_le_bytes()[..], data].concat()
}

fn lz4_frame(text: &str) -> Vec<u8> {
    run(&lz4(), TransformDirection::Apply, WITH, &[Bytes::copy_from_slice(text.as_bytes())]).unwrap().0.to_vec()
}

/// Decompresses all frames, one job per frame.
fn undo_lz4(mut source: Bytes, cut: usize) -> Result<Vec<u8>, Fault> {
    let (session, mut all) = (lz4(), Vec::new());
    while !source.is_empty() {
        let pieces: Vec<Bytes> = source.chunks(cut).map(|part| source.slice_ref(part)).collect();
        let mut target = BytesMut::with_capacity(1000);
        let outcome = session.run(TransformDirection::Undo, WITH, &pieces, &mut target)?;
        assert!(outcome.consumed > 0);
        all.extend(target);
        source = source.slice(outcome.consumed..);
    }
    Ok(all)
}

#[test]
fn skippable_lz4_frames_are_skipped() {
    let (one, two) = (lz4_frame("the first"), lz4_frame(" and the second"));
    for magic in 0..16 {
        let skipped = skippable(magic, b"user data");
        let sources = [
            ([&skipped[..], &one, &two].concat(), "the first and the second"),
            ([&one[..], &skipped, &two].concat(), "the first and the second"),
            ([&one[..], &two, &skipped].concat(), "the first and the second"),
            ([&skipped[..], &skippable(magic, b""), &skipped, &one, &skipped, &skipped].concat(), "the first"),
            (skipped.clone(), ""),
            (skippable(magic, &vec![1; 100_000]), ""),
        ];
        for (source, expected) in sources {
            for cut in [1, 5, usize::MAX] {
                let undone = undo_lz4(source.clone().into(), cut);
                assert_eq!(undone.as_deref(), Ok(expected.as_bytes()), "magic {magic}, pieces of {cut}");
            }
        }
    }
    assert_eq!(undo_lz4([&skippable(0x20, b"user data")[..], &one].concat().into(), 9), Err(Fault::Corrupt), "0x70");
}

#[test]
fn truncated_skippable_lz4_frames_are_refused() {
    let skipped = skippable(5, b"user data");
    for len in 1..skipped.len() {
        assert_eq!(undo_lz4(skipped[..len].to_vec().into(), 3), Err(Fault::Corrupt), "{len} bytes");
        let behind = [&lz4_frame("text")[..], &skipped[..len]].concat();
        assert_eq!(undo_lz4(behind.into(), 3), Err(Fault::Corrupt), "{len} bytes behind a frame");
    }
    let long = [&[0x50, 0x2a, 0x4d, 0x18, 255, 255, 255, 255][..], &[0; 100]].concat();
    assert_eq!(undo_lz4(long.into(), 7), Err(Fault::Corrupt));
}
