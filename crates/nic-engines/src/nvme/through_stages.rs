//! Tests of data through two stages, in both directions: protection information, then AES-XTS under a data-encryption
//! key.

use super::placement::Placement;
use super::receive::NvmeReceive;
use super::transmit::NvmeTransmit;
use crate::data_keys::DataKeys;
use crate::protection::ProtectedBlocks;
use crate::xts::XtsEngine;
use bytes::{Bytes, BytesMut};
use nic_engine::ContextImage;
use nic_engine::{Context, Engine, StageMakers};
use offload_api::{
    Direction, Handle, MarkedData, NvmeTcpConfig, NvmeTcpStages, PROTECTION_STAGE, Piece, PieceHome, StageSpec,
    XTS_STAGE, XtsStage,
};
use offload_base::Seq;
use offload_jobs::WrappingKey;
use offload_transforms::protection::{BlockProtection, Check, Format, Guard, InPlaceProtection};
use offload_transforms::{Parameters, SecretBytes, Session, Transform, TransformDirection, Tweak};
use proptest::prelude::*;
use resumable_aead::{DataUnits, Volume, XtsKey};
use std::sync::{Arc, Mutex};

const KEY: Handle = Handle { index: 9, generation: 0 };
const LBA: u64 = 1 << 33;
const BLOCKS: usize = 5;
const BLOCK: usize = 4112;

fn format() -> Format {
    Format { guard: Guard::Crc64, interval: 4096, application: 0xabc, ..Format::default() }
}

/// Returns the buffers and stages of a flow, with the key lent.
fn placement(pieces: Vec<Piece>) -> Placement {
    let tenant = WrappingKey { tenant: 7, key: SecretBytes::new(vec![3; 32]) };
    let spec = tenant.wrap(1, &SecretBytes::new((0..64).collect()), BLOCK as u32, Tweak::Unit).unwrap();
    let mut engine = DataKeys::default();
    engine.change(tenant);
    let (mut state, ()) = engine.create(Direction::Transmit, spec).unwrap();
    let mut placement = Placement::with(StageMakers::default().with::<XtsEngine>().with::<ProtectedBlocks>());
    placement.seal_with(stages());
    placement.insert(3, pieces, Some(stages()));
    let lent = DataKeys::lend(Context { handle: KEY, state: &mut state, held: &mut () });
    placement.keys().lend(KEY, lent);
    placement
}

fn stages() -> NvmeTcpStages {
    let protection = InPlaceProtection::new(format(), Check::ALL, 0).unwrap();
    let key = XtsStage { key: KEY, tenant: 7, volume: 1 };
    let stages = vec![StageSpec::new(PROTECTION_STAGE, protection), StageSpec::new(XTS_STAGE, key)];
    NvmeTcpStages { command: 3, unit: LBA, stages }
}

/// Returns blocks with space for protection information, the same with protection information, and the blocks on the
/// medium, as jobs compute them.
fn data() -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let plain: Vec<u8> = (0..BLOCKS * 4096).map(|at| (at * 7 / 3) as u8).collect();
    let protection = BlockProtection { memory: None, wire: Some(format()), check: Check::ALL };
    let session = Session::new(&Transform::Protection(protection)).unwrap();
    let mut protected = BytesMut::with_capacity(BLOCKS * BLOCK);
    let with = Parameters { iv: u128::from(LBA).to_le_bytes(), aad: &[] };
    session.run(TransformDirection::Apply, with, &[Bytes::copy_from_slice(&plain)], &mut protected).unwrap();
    let mut queued = protected.to_vec();
    // The queued blocks have zeros in place of the protection information.
    queued.chunks_exact_mut(BLOCK).for_each(|block| block[4096..].fill(0));
    let key: Vec<u8> = (0..64).collect();
    let volume = Volume::new(XtsKey::new(&key).unwrap(), DataUnits::new(BLOCK).unwrap());
    let mut medium = protected.to_vec();
    volume.encrypt(LBA, 0, &mut medium).unwrap();
    (queued, protected.to_vec(), medium)
}

/// Returns the header of a PDU with all of the data.
fn header(kind: u8) -> Vec<u8> {
    let mut header = vec![kind, 0, 24, 24];
    header.extend((24 + BLOCKS * BLOCK as u32 as usize).to_le_bytes()[..4].iter());
    header.extend([3, 0, 1, 0, 0, 0, 0, 0]);
    header.extend((BLOCKS as u64 * BLOCK as u64).to_le_bytes());
    header
}

#[derive(Default)]
struct StageBuffer(Mutex<Vec<(u64, Vec<u8>)>>);

impl PieceHome for StageBuffer {
    fn take_back(&self, offset: u64, bytes: BytesMut) {
        self.0.lock().unwrap().push((offset, bytes.to_vec()));
    }
}

/// Returns the buffer after receiving, and whether each 16-byte unit passed all stages.
fn received(medium: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<bool>) {
    let home = Arc::new(StageBuffer::default());
    let mut placement = placement(vec![Piece::new(0, BytesMut::zeroed(BLOCKS * BLOCK), home.clone())]);
    let stream = [header(0x07).as_slice(), medium].concat();
    let mut engine = NvmeReceive::new(NvmeTcpConfig::default(), Seq(5));
    let mut opened = vec![false; BLOCKS * BLOCK / 16];
    for (from, to) in parts(stream.len(), cuts) {
        let received = engine.receive(Seq(5) + from as u32, &stream[from..to], &mut placement);
        for (_, piece) in &received.placed {
            // Only units that lie completely in the changed range count.
            let units = piece.opened().start.div_ceil(16)..piece.opened().end / 16;
            units.for_each(|unit| opened[unit as usize] = true);
        }
        // The state may be evicted to host memory and reloaded at any point.
        engine = ContextImage::build(|image| engine.write(image)).read(NvmeReceive::read).unwrap();
    }
    drop(placement);
    let mut pieces = core::mem::take(&mut *home.0.lock().unwrap());
    pieces.sort();
    (pieces.into_iter().flat_map(|(_, bytes)| bytes).collect(), opened)
}

fn parts(len: usize, cuts: &[usize]) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    let mut at = 0;
    for cut in cuts.iter().cycle() {
        let end = len.min(at + cut);
        parts.push((at, end));
        at = end;
        if at == len {
            return parts;
        }
    }
    parts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn sent_data_equal_the_jobs_output_and_arriving_data_verify(
        cuts in prop::collection::vec((1usize..3000, any::<bool>()), 1..8),
        flipped in 0..BLOCKS * BLOCK * 8,
    ) {
        let (queued, protected, medium) = data();
        let mut marked = header(0x06);
        MarkedData::new(3, LBA).unwrap().write(marked.first_chunk_mut().unwrap());
        let queued = [marked, queued].concat();
        let wire = [header(0x06).as_slice(), &medium].concat();
        let placement = placement(Vec::new());
        let mut engine = NvmeTransmit::default();
        engine.set_progress(Seq(9));
        let lengths: Vec<usize> = cuts.iter().map(|(cut, _)| *cut).collect();
        for ((from, to), (_, is_sent)) in parts(queued.len(), &lengths).into_iter().zip(cuts.iter().cycle()) {
            let mut out = BytesMut::new();
            // Bytes that are not sent pass through the context again, for a resync.
            let ahead = is_sent.then_some(&queued[to..queued.len().min(to + 15)]);
            engine.fill(Seq(9) + from as u32, &queued[from..to], &mut out, placement.seals(), ahead).unwrap();
            prop_assert!(!is_sent || out == wire[from..to], "{}..{}", from, to);
            engine = ContextImage::build(|image| engine.write(image)).read(NvmeTransmit::read).unwrap();
        }

        let (bytes, opened) = received(&medium, &lengths);
        prop_assert!(bytes == protected && opened.iter().all(|opened| *opened));

        // After a bit flip, neither the block nor the next block of the same packet is verified.
        let mut damaged = medium;
        damaged[flipped / 8] ^= 1 << (flipped % 8);
        let (_, opened) = received(&damaged, &lengths);
        let block = flipped / 8 / BLOCK;
        let vouched = |block: usize| opened[(block * BLOCK + 4096) / 16];
        prop_assert!(!vouched(block));
        prop_assert!((0..BLOCKS).all(|other| other == block || other == block + 1 || vouched(other)));
    }
}

/// A block without its start in the PDU gets no protection information.
#[test]
fn data_that_begin_within_a_block_do_not_leave() {
    let (queued, ..) = data();
    let mut marked = header(0x06);
    MarkedData::new(3, LBA).unwrap().write(marked.first_chunk_mut().unwrap());
    marked[12] = 16; // DATAO
    let mut engine = NvmeTransmit::default();
    engine.set_progress(Seq(9));
    let bytes = [marked, queued].concat();
    assert!(engine.fill(Seq(9), &bytes, &mut BytesMut::new(), placement(Vec::new()).seals(), Some(&[])).is_err());
}
