//! The location of a web server's file: in memory, or on a disk at the other end of the wire, read again for each
//! request over NVMe/TCP with data digests.

use crate::disk::{DiskWire, SUBSYSTEM};
use bytes::Bytes;
use futures_util::future::try_join_all;
use nvme_tcp::{Disk, HostConfig, HostIdentity, MemoryStorage, Offload, Storage};
use offload_base::Seed;
use offload_bench_tls::choices;
use offload_bench_tls::connection::Mode;
use offload_testbed::bed::{BedHost, ClockKind};
use std::io;
use std::sync::Arc;

choices! {
    /// The location of the file.
    ///
    /// ```
    /// use offload_bench::http::FileSource;
    ///
    /// assert_eq!(FileSource::NvmeNic.to_string(), "nvme-nic");
    /// ```
    pub enum FileSource {
        /// In the server's memory.
        Memory = "memory",
        /// On a disk; the server's CPU copies read data and checks its digests.
        NvmeCpu = "nvme-cpu",
        /// On a disk; the server's NIC places read data and checks its digests, and the other NIC fills the digests in.
        NvmeNic = "nvme-nic",
    }
}

/// The source of the file's content.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Memory(Bytes),
    Disk { disk: Disk, length: usize },
}

impl Source {
    /// Opens the file on `server`. If the file is on a disk, the disk is at `far`.
    pub(super) async fn open(files: FileSource, file: Bytes, server: &BedHost, far: &BedHost) -> io::Result<Source> {
        if files == FileSource::Memory {
            return Ok(Source::Memory(file));
        }
        let length = file.len();
        let storage = MemoryStorage::new(file.len().next_multiple_of(BLOCK as usize).max(BLOCK as usize) as u64);
        storage.write(0, core::slice::from_ref(&file))?;
        // Both clocks are the same here, because there is no TLS handshake.
        let seed = Seed(0);
        let wire = DiskWire::new(Mode::Tcp, ClockKind::Virtual, seed);
        let by_nic = files == FileSource::NvmeNic;
        wire.serve(far, Arc::new(storage), BLOCK, QUEUES, by_nic)?;
        let mut config = HostConfig::new(SUBSYSTEM, HostIdentity::random(&mut seed.stream("nvme host")));
        config.queues = QUEUES;
        config.data_digest = true;
        config.offload = if by_nic { Offload::PlaceAndCheck } else { Offload::None };
        Ok(Source::Disk { disk: wire.open(server, far, config).await?, length })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Source::Memory(file) => file.len(),
            Source::Disk { length, .. } => *length,
        }
    }

    /// Returns the content of the file in pieces, without copying.
    pub(super) async fn read(&self) -> io::Result<Vec<Bytes>> {
        let (disk, length) = match self {
            Source::Memory(file) => return Ok(vec![file.clone()]),
            Source::Disk { disk, length } => (disk, *length),
        };
        // The disk is read in whole blocks, and the last one may be padded.
        let blocks = length.div_ceil(BLOCK as usize) as u32;
        let most = (disk.max_transfer() / BLOCK).clamp(1, MAX_BLOCKS);
        let reads = (0..blocks)
            // The last block may be padded, so the pieces are cut at the file's length.
            .step_by(most as usize)
            .map(|first| disk.read(u64::from(first), disk.buffer(most.min(blocks - first))));
        let buffers = try_join_all(reads).await.map_err(io::Error::other)?;
        let mut left = length;
        let parts = buffers.into_iter().flat_map(|buffer| buffer.into_parts());
        Ok(parts
            .map(|mut part| {
                part.truncate(left);
                left -= part.len();
                part.freeze()
            })
            .filter(|part| !part.is_empty())
            .collect())
    }
}

const QUEUES: u16 = 4;
/// Bytes of a block.
const BLOCK: u32 = 4096;
/// Blocks of one read: 256 KiB.
const MAX_BLOCKS: u32 = 64;
