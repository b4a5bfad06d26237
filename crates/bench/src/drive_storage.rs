//! NVMe storage at the speed of a modelled drive.

use bytes::Bytes;
use core::ops::Range;
use nvme_tcp::namespace::{DataPieces, Storage};
use nvme_tcp::target::BlockingExecutor;
use offload_base::Clock;
use offload_testbed::drive::Drive;
use offload_testbed::drive::threads::{VirtualThreads, wait_until};
use std::io;
use std::sync::Arc;

/// Storage that is as slow as a drive, if a [`Server`](nvme_tcp::Server) uses [`DriveThreads`] for it.
///
/// ```
/// use bytes::Bytes;
/// use nvme_tcp::MemoryStorage;
/// use nvme_tcp::namespace::Storage;
/// use nvme_tcp::target::BlockingExecutor;
/// use offload_bench::drive_storage::{DriveStorage, DriveThreads};
/// use offload_testbed::drive::threads::VirtualThreads;
/// use offload_testbed::drive::{Drive, DriveConfig};
/// use offload_testbed::{Seed, VirtualTime};
/// use std::sync::Arc;
/// use tokio::sync::oneshot;
///
/// let mut run = VirtualTime::new();
/// let drive = Drive::new(DriveConfig::EIGHT_SSDS, Seed(1));
/// let storage = DriveStorage::new(MemoryStorage::new(1 << 30), drive, Arc::new(run.handle()));
/// let threads = DriveThreads(VirtualThreads::new(Arc::new(run.handle())));
/// let (done, read) = oneshot::channel();
/// threads.run(Box::new(move || {
///     storage.write(0, &[Bytes::from_static(b"sector")]).unwrap();
///     done.send(storage.read(0, 6).unwrap().concat()).unwrap();
/// }));
/// assert_eq!(run.block_on(read).unwrap(), b"sector");
/// assert!((115..=155).contains(&run.now().as_micros()), "25 us to write, 90 to read, up to 40 by chance");
/// # std::io::Result::Ok(())
/// ```
pub struct DriveStorage<S> {
    storage: S,
    drive: Drive,
    clock: Arc<dyn Clock>,
}

impl<S: Storage> DriveStorage<S> {
    /// Creates storage with the content of `storage` and the speed of `drive`.
    pub fn new(storage: S, drive: Drive, clock: Arc<dyn Clock>) -> DriveStorage<S> {
        DriveStorage { storage, drive, clock }
    }
}

impl<S: Storage> Storage for DriveStorage<S> {
    fn capacity(&self) -> u64 {
        self.storage.capacity()
    }

    fn read(&self, offset: u64, bytes: usize) -> io::Result<DataPieces> {
        wait_until(self.drive.read(self.clock.now(), 0, offset..offset.saturating_add(bytes as u64)));
        self.storage.read(offset, bytes)
    }

    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let bytes: usize = data.iter().map(Bytes::len).sum();
        wait_until(self.drive.write(self.clock.now(), 0, offset..offset.saturating_add(bytes as u64)));
        self.storage.write(offset, data)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        // Write Zeroes moves no data, so it takes the time of an empty write.
        wait_until(self.drive.write(self.clock.now(), 0, offset..offset));
        self.storage.zero(offset, bytes)
    }

    fn deallocate(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        wait_until(self.drive.write(self.clock.now(), 0, offset..offset));
        self.storage.deallocate(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        wait_until(self.drive.flush(self.clock.now()));
        self.storage.flush()
    }

    fn unreadable(&self) -> Vec<Range<u64>> {
        self.storage.unreadable()
    }

    fn keep_unreadable(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        self.storage.keep_unreadable(ranges)
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.storage.uuid()
    }

    fn granule(&self) -> u64 {
        self.storage.granule()
    }

    fn may_block(&self) -> bool {
        true
    }
}

/// Threads that wait for a drive, for a [`Server`](nvme_tcp::Server).
///
/// See [`DriveStorage`] for an example.
#[derive(Clone, Debug)]
pub struct DriveThreads(pub VirtualThreads);

impl BlockingExecutor for DriveThreads {
    fn run(&self, work: Box<dyn FnOnce() + Send>) {
        // Without a thread the work is dropped, which its waiter notices.
        let _no_more_threads = self.0.run(work);
    }
}
