//! Random keys, bytes and pieces: results equal another implementation's, and can be undone.

use crate::pieces::{both_ways, bytes, cut, cuts, run};
use bytes::Bytes;
use offload_compression::Compression;
use offload_transforms::protection::{BlockProtection, Check, Format, Guard, ProtectionType};
use offload_transforms::{Parameters, RunChecksums, SecretBytes, Session, Transform, TransformDirection, Tweak};
use proptest::prelude::*;
use std::io::{Read, Write};
use xts_mode::Xts128;

/// Builds text-like bytes, so that compression has an effect.
fn words(seed: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for byte in seed {
        match byte % 4 {
            0 => text.extend(b"the block "),
            1 => text.extend(b"of a volume "),
            2 => text.extend(b"is here. "),
            _ => text.push(*byte),
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn xts(key in prop::collection::vec(any::<u8>(), 64), number in prop_oneof![any::<u64>().prop_map(u128::from), any::<u128>()], unit in 16u32..600, units in 0usize..6,
           fill in any::<u8>(), cuts in cuts(), large in any::<bool>()) {
        use aes::cipher::KeyInit;
        let (unit, tweak, step) = if large { (4096, Tweak::Sectors512, 8) } else { (unit, Tweak::Unit, 1) };
        let number = number >> 1;
        let plain: Vec<u8> = (0..unit as usize * units).map(|at| (at as u8).wrapping_mul(31) ^ fill).collect();
        let transform = Transform::Xts { key: SecretBytes::new(key.clone()), unit, tweak };
        let with = Parameters { iv: number.to_le_bytes(), aad: b"" };
        let sealed = both_ways(&transform, with, &plain, &cuts);
        let other = Xts128::new(
            aes::Aes256::new_from_slice(&key[..32]).unwrap(),
            aes::Aes256::new_from_slice(&key[32..]).unwrap(),
        );
        let mut expected = plain.clone();
        for (index, unit) in expected.chunks_mut(unit as usize).enumerate() {
            other.encrypt_sector(unit, xts_mode::get_tweak_default(number + step * index as u128));
        }
        prop_assert_eq!(sealed, expected);
    }

    #[test]
    fn protection_information(
        interval in 1u32..700, blocks in 0usize..5, lba in any::<u64>(), first in any::<u64>(), application in 0u16..0xffff,
        kind in prop_oneof![Just(ProtectionType::Type1), Just(ProtectionType::Type2), Just(ProtectionType::Type3)],
        guard in prop_oneof![Just(Guard::Crc16), Just(Guard::Crc32), Just(Guard::Crc64), Just(Guard::InternetChecksum)],
        other in prop_oneof![Just(Guard::Crc16), Just(Guard::Crc32), Just(Guard::Crc64), Just(Guard::InternetChecksum)],
        storage_bits in 0u8..=32, storage in any::<u64>(), cuts in cuts(), fill in any::<u8>(),
    ) {
        let storage = if storage_bits == 0 { 0 } else { storage >> (64 - storage_bits) };
        let wire = Format { kind, guard, interval, application, storage_bits, storage };
        let place = u128::from(first) << 64 | u128::from(lba);
        let with = Parameters { iv: place.to_le_bytes(), aad: b"" };
        let plain: Vec<u8> = (0..interval as usize * blocks).map(|at| (at as u8).wrapping_mul(91) ^ fill).collect();
        let add = BlockProtection { memory: None, wire: Some(wire), check: Check::ALL };
        let protected = both_ways(&Transform::Protection(add), with, &plain, &cuts);

        // Computed bit by bit, as the standards specify.
        let mut expected = Vec::new();
        for (index, block) in (0u64..).zip(plain.chunks(interval as usize)) {
            expected.extend(block);
            match guard {
                Guard::Crc16 => expected.extend(crc::Crc::<u16>::new(&crc::CRC_16_T10_DIF).checksum(block).to_be_bytes()),
                Guard::Crc32 => expected.extend(crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(block).to_be_bytes()),
                Guard::Crc64 => expected.extend(crc::Crc::<u64>::new(&crc::CRC_64_NVME).checksum(block).to_be_bytes()),
                _ => {
                    let words = block.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
                    let sum = words.fold(0, |sum, word| { let sum = sum + word; (sum & 0xffff) + (sum >> 16) });
                    expected.extend((!(sum as u16)).to_be_bytes());
                }
            }
            expected.extend(application.to_be_bytes());
            let reference = match kind {
                ProtectionType::Type1 => lba.wrapping_add(index),
                ProtectionType::Type2 => first.wrapping_add(index),
                ProtectionType::Type3 => first,
            };
            let (space, bytes) = match guard {
                Guard::Crc32 => (80, 10),
                Guard::Crc64 => (48, 6),
                _ => (32, 4),
            };
            let bits = space - storage_bits;
            let reference = u128::from(reference) & ((1 << bits) - 1) | u128::from(storage) << bits;
            expected.extend(&reference.to_be_bytes()[16 - bytes..]);
        }
        prop_assert_eq!(&protected, &expected);

        // Converted to another format and back.
        let memory = Format { guard: other, application: application ^ 1, storage_bits: 0, storage: 0, ..wire };
        let transform = BlockProtection { memory: Some(memory), wire: Some(wire), check: Check::ALL };
        let session = Session::new(&Transform::Protection(transform)).unwrap();
        let (in_memory, _) = run(&session, TransformDirection::Undo, with, &cut(&protected, &cuts)).unwrap();
        let (back, _) = run(&session, TransformDirection::Apply, with, &cut(&in_memory, &cuts)).unwrap();
        prop_assert_eq!(back, expected);
        let alone = BlockProtection { memory: None, wire: Some(memory), check: Check::ALL };
        prop_assert_eq!(in_memory, both_ways(&Transform::Protection(alone), with, &plain, &cuts));
    }

    #[test]
    fn compression(seed in bytes(2000), level in 0u8..=9, cuts in cuts()) {
        let plain = words(&seed);
        for format in Compression::ALL {
            let transform = format.at_level(level);
            let packed = both_ways(&transform, Parameters::default(), &plain, &cuts);
            let (unpacked, mut theirs) = (match format {
                Compression::Deflate => miniz_oxide::inflate::decompress_to_vec(&packed).unwrap(),
                Compression::Zlib => miniz_oxide::inflate::decompress_to_vec_zlib(&packed).unwrap(),
                // RFC 1952 2.3: ten bytes of header, and a trailer of CRC and length.
                Compression::Gzip => miniz_oxide::inflate::decompress_to_vec(&packed[10..packed.len() - 8]).unwrap(),
                _ => {
                    let mut unpacked = Vec::new();
                    lz4::Decoder::new(&packed[..]).unwrap().read_to_end(&mut unpacked).unwrap();
                    unpacked
                }
            }, match format {
                Compression::Deflate => miniz_oxide::deflate::compress_to_vec(&plain, level),
                Compression::Zlib => miniz_oxide::deflate::compress_to_vec_zlib(&plain, level),
                Compression::Gzip => continue,
                _ => {
                    let mut frame = lz4::EncoderBuilder::new().level(level.into()).build(Vec::new()).unwrap();
                    frame.write_all(&plain).unwrap();
                    frame.finish().0
                }
            });
            prop_assert_eq!(&unpacked, &plain);
            let len = theirs.len();
            theirs.extend(b"behind it");
            let session = Session::new(&transform).unwrap();
            let (unpacked, report) = run(&session, TransformDirection::Undo, Parameters::default(), &cut(&theirs, &cuts)).unwrap();
            prop_assert_eq!(&unpacked, &plain);
            prop_assert_eq!(report.consumed, len);
            let crc = |bytes: &[u8]| crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(bytes);
            let sums = RunChecksums { source: crc(&theirs[..report.consumed]), target: crc(&plain) };
            prop_assert_eq!(report.checksums, Some(sums));
        }
    }

    /// A chain equals its steps run separately.
    #[test]
    fn chains(seed in bytes(600), lba in any::<u64>(), cuts in cuts()) {
        let plain = words(&seed);
        let wire = Format { guard: Guard::Crc64, ..Format::default() };
        let steps = vec![
            Compression::Lz4.at_level(0),
            Transform::Pad { unit: 512 },
            Transform::Xts { key: SecretBytes::new((0..64).collect()), unit: 512, tweak: Tweak::Unit },
            Transform::Protection(BlockProtection { memory: None, wire: Some(wire), check: Check::ALL }),
        ];
        let with = Parameters { iv: u128::from(lba).to_le_bytes(), aad: b"" };
        let stored = both_ways(&Transform::Chain(steps.clone()), with, &plain, &cuts);
        let one_by_one = steps.iter().fold(plain, |bytes, step| {
            run(&Session::new(step).unwrap(), TransformDirection::Apply, with, &[Bytes::from(bytes)]).unwrap().0
        });
        prop_assert_eq!(stored, one_by_one);
    }
}
