//! Where a web server has its file: in memory, or on a disk at the other end of the wire, read anew for each request by
//! NVMe/TCP with data digests.

use bytes::Bytes;
use core::fmt;
use core::str::FromStr;
use futures_util::future::try_join_all;
use host_stack::TcpListener;
use nvme_tcp::controller::{Target, TargetConfig};
use nvme_tcp::namespace::{MemoryStorage, Namespace, Storage};
use nvme_tcp::shell::host::{Connecting, Connector, Disk, Host, HostConfig, Offload};
use nvme_tcp::shell::{Server, Threads};
use offload_api::SegmentStream;
use std::io;
use std::sync::Arc;
use testbed::bed::BedHost;

/// Where the file is.
///
/// ```
/// use offload_bench::http::Files;
///
/// assert_eq!("nvme-nic".parse(), Ok(Files::NvmeNic));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// In the server's memory.
    Memory,
    /// On a disk; the server's CPU copies what it reads to its place and checks its digest.
    NvmeCpu,
    /// On a disk; the server's NIC does both, and the other NIC fills the digests in.
    NvmeNic,
}

impl Files {
    /// All of them.
    pub const ALL: [Files; 3] = [Files::Memory, Files::NvmeCpu, Files::NvmeNic];

    /// What options and results call it.
    pub const fn name(self) -> &'static str {
        match self {
            Files::Memory => "memory",
            Files::NvmeCpu => "nvme-cpu",
            Files::NvmeNic => "nvme-nic",
        }
    }
}

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Files {
    type Err = String;
    fn from_str(text: &str) -> Result<Files, String> {
        let known = Files::ALL.into_iter().find(|files| files.name() == text);
        known.ok_or_else(|| "memory, nvme-cpu or nvme-nic".into())
    }
}

/// The file, to be read.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Memory(Bytes),
    Disk { disk: Disk, length: usize },
}

impl Source {
    /// The file on `server`; if it is on a disk, that is behind `far`.
    pub(super) async fn open(files: Files, file: Bytes, server: &BedHost, far: &BedHost) -> io::Result<Source> {
        if files == Files::Memory {
            return Ok(Source::Memory(file));
        }
        let length = file.len();
        let listener = far.stack().listen(PORT, usize::from(QUEUES) + 1)?;
        let mut target = Server::new(holding(file)?, far.runtime(), Arc::new(Threads::new(1)?));
        if files == Files::NvmeNic {
            target = target.with_digests_by_device();
        }
        let _accepts = far.spawn("disk", accept(far.clone(), listener, target));
        let config = HostConfig {
            queues: QUEUES,
            data_digest: true,
            offload: if files == Files::NvmeNic { Offload::PlaceAndCheck } else { Offload::None },
            ..HostConfig::new(SUBSYSTEM)
        };
        let (host, tasks) = Host::new(Opens { near: server.clone(), far: far.clone() }, server.runtime(), config);
        for task in tasks {
            let _runs_on = server.spawn("nvme", task);
        }
        host.ready().await.map_err(io::Error::other)?;
        Ok(Source::Disk { disk: host.disk(1).await.map_err(io::Error::other)?, length })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Source::Memory(file) => file.len(),
            Source::Disk { length, .. } => *length,
        }
    }

    /// What is in the file, in pieces that nobody copies.
    pub(super) async fn read(&self) -> io::Result<Vec<Bytes>> {
        let (disk, length) = match self {
            Source::Memory(file) => return Ok(vec![file.clone()]),
            Source::Disk { disk, length } => (disk, *length),
        };
        let blocks = length.div_ceil(BLOCK as usize) as u32;
        let most = (disk.max_transfer() / BLOCK).clamp(1, MOST_BLOCKS);
        let reads = (0..blocks)
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

/// A target with `file` at the start of its disk.
fn holding(file: Bytes) -> io::Result<Target> {
    let storage = MemoryStorage::new(file.len().next_multiple_of(BLOCK as usize).max(BLOCK as usize) as u64);
    storage.write(0, core::slice::from_ref(&file))?;
    let mut target = Target::new(TargetConfig::default());
    target.add_subsystem(SUBSYSTEM, None).map_err(io::Error::other)?;
    let namespace = Namespace::new(1, BLOCK, Arc::new(storage)).map_err(io::Error::other)?;
    target.add_namespace(SUBSYSTEM, namespace).map_err(io::Error::other)?;
    Ok(target)
}

async fn accept(host: BedHost, mut listener: TcpListener, target: Server) -> io::Result<()> {
    loop {
        let stream = listener.accept().await?;
        stream.set_nodelay(true);
        let target = target.clone();
        let _serves = host.spawn("serve", async move { drop(target.serve(stream).await) });
    }
}

/// Opens streams to the disk.
struct Opens {
    near: BedHost,
    far: BedHost,
}

impl Connector for Opens {
    fn connect(&self) -> Connecting {
        let (near, far) = (self.near.clone(), self.far.clone());
        Box::pin(async move {
            let stream = near.stack().connect(None, (far.address(), PORT).into()).await?;
            stream.set_nodelay(true);
            Ok(Box::new(stream) as Box<dyn SegmentStream>)
        })
    }
}

const SUBSYSTEM: &str = "nqn.2026-01.example:files";
const QUEUES: u16 = 4;
/// Bytes of a block.
const BLOCK: u32 = 4096;
/// Blocks of one read: 256 KiB.
const MOST_BLOCKS: u32 = 64;
const PORT: u16 = 4420;
