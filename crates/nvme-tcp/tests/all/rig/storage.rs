//! Storage for targets under test.

use super::DISK;
use bytes::Bytes;
use nvme_tcp::namespace::{DataPieces, MemoryStorage, Namespace, Storage};
use nvme_tcp::target::{Target, TargetConfig};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Storage that counts writes and flushes.
#[derive(Default)]
pub(crate) struct CountingStorage {
    pub(crate) writes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    /// Flushes fail.
    pub(crate) is_broken: AtomicBool,
}

impl Storage for CountingStorage {
    fn capacity(&self) -> u64 {
        1 << 20
    }

    fn read(&self, _: u64, _: usize) -> io::Result<DataPieces> {
        panic!("a disk that cannot be read")
    }

    fn write(&self, _: u64, _: &[Bytes]) -> io::Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if self.is_broken.load(Ordering::Relaxed) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }

    fn may_block(&self) -> bool {
        true
    }
}

pub(crate) fn counting_target() -> (Target, Arc<CountingStorage>) {
    let (mut target, storage) = (Target::new(TargetConfig::default()).unwrap(), Arc::<CountingStorage>::default());
    target.add_subsystem(DISK, None).unwrap();
    target.add_namespace(DISK, Namespace::new(1, 512, storage.clone()).unwrap()).unwrap();
    (target, storage)
}

/// Storage that counts flushes and calls a hook before the next write or flush.
pub(crate) struct HookedStorage {
    memory: MemoryStorage,
    pub(crate) hook: Mutex<Option<StorageHook>>,
    pub(crate) flushes: AtomicU64,
}

pub(crate) type StorageHook = Box<dyn FnOnce() + Send>;

impl Storage for HookedStorage {
    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    fn read(&self, offset: u64, bytes: usize) -> io::Result<DataPieces> {
        self.memory.read(offset, bytes)
    }

    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        let hook = self.hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        self.memory.write(offset, data)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.memory.zero(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let hook = self.hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        Ok(())
    }

    fn may_block(&self) -> bool {
        true
    }
}

pub(crate) fn hooked_target() -> (Target, Arc<HookedStorage>) {
    let storage = Arc::new(HookedStorage {
        memory: MemoryStorage::new(64 << 20),
        hook: Mutex::default(),
        flushes: AtomicU64::new(0),
    });
    let mut target = Target::new(TargetConfig::default()).unwrap();
    target.add_subsystem(DISK, None).unwrap();
    target.add_namespace(DISK, Namespace::new(1, 512, storage.clone()).unwrap()).unwrap();
    (target, storage)
}

/// Storage of 1 GiB that blocks like a file. Data read from it occupy memory of their own.
pub(crate) struct BlockingStorage;

impl Storage for BlockingStorage {
    fn capacity(&self) -> u64 {
        1 << 30
    }

    fn read(&self, _: u64, bytes: usize) -> io::Result<DataPieces> {
        Ok(DataPieces::from_iter([Bytes::from(vec![1; bytes])]))
    }

    fn write(&self, _: u64, _: &[Bytes]) -> io::Result<()> {
        Ok(())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn may_block(&self) -> bool {
        true
    }
}
