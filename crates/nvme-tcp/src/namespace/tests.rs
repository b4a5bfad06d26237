use super::*;
use proptest::prelude::*;

#[test]
fn invalid_namespaces_are_refused() {
    let storage = || Arc::new(MemoryStorage::new(4096));
    assert_eq!(Namespace::new(0, 512, storage()).unwrap_err(), NamespaceError::Identifier(0));
    assert_eq!(Namespace::new(1, 1024, storage()).unwrap_err(), NamespaceError::BlockSize(1024));
    assert_eq!(Namespace::new(1, 4096, Arc::new(MemoryStorage::new(4095))).unwrap_err(), NamespaceError::TooSmall);
}

/// Storage that stores unreadable ranges and records the calls that make data durable.
struct LoggingStorage {
    bytes: MemoryStorage,
    unreadable: Mutex<Vec<Range<u64>>>,
    calls: Mutex<Vec<&'static str>>,
    /// Storing ranges fails.
    is_full: AtomicBool,
    /// Storing ranges succeeds but reports an error.
    is_in_doubt: AtomicBool,
}

impl LoggingStorage {
    fn new(capacity: u64) -> Arc<LoggingStorage> {
        let (unreadable, calls, is_full, is_in_doubt) = Default::default();
        Arc::new(LoggingStorage { bytes: MemoryStorage::new(capacity), unreadable, calls, is_full, is_in_doubt })
    }

    fn take_calls(&self) -> Vec<&'static str> {
        core::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Storage for LoggingStorage {
    fn capacity(&self) -> u64 {
        self.bytes.capacity()
    }

    fn read(&self, offset: u64, bytes: usize) -> io::Result<DataPieces> {
        self.bytes.read(offset, bytes)
    }

    fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
        self.calls.lock().unwrap().push("write");
        self.bytes.write(offset, data)
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.bytes.zero(offset, bytes)
    }

    fn deallocate(&self, offset: u64, bytes: u64) -> io::Result<bool> {
        self.bytes.deallocate(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.calls.lock().unwrap().push("flush");
        Ok(())
    }

    fn unreadable(&self) -> Vec<Range<u64>> {
        self.unreadable.lock().unwrap().clone()
    }

    fn keep_unreadable(&self, ranges: &[Range<u64>]) -> io::Result<()> {
        self.calls.lock().unwrap().push("keep");
        if self.is_full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *self.unreadable.lock().unwrap() = ranges.to_vec();
        if self.is_in_doubt.load(Ordering::Relaxed) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }

    fn may_block(&self) -> bool {
        false
    }
}

#[test]
fn marks_are_durable_until_new_data_are() {
    let storage = LoggingStorage::new(1 << 20);
    let namespace = Namespace::new(1, 512, storage.clone()).unwrap();
    let data = |blocks: usize| DataPieces::from_iter([Bytes::from(vec![1; blocks * 512])]);
    let kept = || -> Vec<(u64, u64)> { storage.unreadable().iter().map(|range| (range.start, range.end)).collect() };
    let does = |operation: Operation, calls: &[&str]| {
        let status = namespace.execute(&operation).status;
        assert_eq!(storage.take_calls(), calls, "{operation:?}");
        status
    };
    let mark = |first, blocks| Operation::WriteUncorrectable { first, blocks };
    assert!(does(mark(8, 4), &["flush", "keep"]).is_success());
    assert_eq!(kept(), [(4096, 6144)]);
    // Written but not durable: after a crash, the old data may be back, so the mark must stay.
    assert!(does(Operation::Write { first: 9, data: data(1), durable: false }, &["write"]).is_success());
    assert!(namespace.execute(&Operation::Read { first: 9, blocks: 1 }).status.is_success());
    assert_eq!(kept(), [(4096, 6144)]);
    assert!(does(Operation::Flush, &["flush", "keep"]).is_success());
    assert_eq!(kept(), [(4096, 4608), (5120, 6144)]);
    assert!(does(Operation::Flush, &["flush"]).is_success());
    assert!(
        does(Operation::Write { first: 8, data: data(1), durable: true }, &["write", "flush", "keep"]).is_success()
    );
    assert_eq!(kept(), [(5120, 6144)]);
    // A mark that cannot be stored fails only its own command.
    storage.is_full.store(true, Ordering::Relaxed);
    assert_eq!(does(mark(20, 1), &["flush", "keep"]), Status::CAPACITY_EXCEEDED);
    assert!(namespace.execute(&Operation::Read { first: 20, blocks: 1 }).status.is_success());
    assert!(does(Operation::Flush, &["flush"]).is_success());
    let write = |first, blocks, durable| Operation::Write { first, data: data(blocks), durable };
    assert!(does(write(20, 1, true), &["write", "flush"]).is_success());
    assert_eq!(does(mark(10, 2), &[]), Status::SUCCESS, "marked already");
    // A Flush fails until removed marks are stored, and the next Flush tries again.
    assert!(does(write(10, 1, false), &["write"]).is_success());
    assert_eq!(does(Operation::Flush, &["flush", "keep"]), Status::WRITE_FAULT);
    assert_eq!(does(mark(20, 1), &["flush", "keep"]), Status::CAPACITY_EXCEEDED);
    assert_eq!(does(Operation::Flush, &["flush", "keep"]), Status::WRITE_FAULT);
    storage.is_full.store(false, Ordering::Relaxed);
    assert!(does(Operation::Flush, &["flush", "keep"]).is_success());
    assert_eq!(kept(), [(5632, 6144)]);
    // A failed mark may or may not be on the medium, so it is undone by the next change.
    storage.is_in_doubt.store(true, Ordering::Relaxed);
    assert_eq!(does(mark(20, 1), &["flush", "keep"]), Status::WRITE_FAULT);
    assert_eq!(kept(), [(5632, 6144), (10240, 10752)]);
    storage.is_in_doubt.store(false, Ordering::Relaxed);
    assert!(does(write(20, 1, true), &["write", "flush", "keep"]).is_success());
    assert_eq!(kept(), [(5632, 6144)]);
    assert_eq!(does(mark(0, 2048), &["flush", "keep"]), Status::SUCCESS);
    assert_eq!(kept(), [(0, 1 << 20)]);
}

/// The marks of small blocks in a partial large block at the end of the storage.
#[test]
fn marks_behind_the_last_block_are_preserved() {
    let storage = LoggingStorage::new(12_800);
    let mark = |first, blocks| Operation::WriteUncorrectable { first, blocks };
    let with_blocks = |size| Namespace::new(1, size, storage.clone()).unwrap();
    assert!(with_blocks(512).execute(&mark(23, 2)).status.is_success());
    assert_eq!(storage.unreadable(), [11_776..12_800]);
    let large = with_blocks(4096);
    assert!(large.execute(&mark(0, 1)).status.is_success());
    assert_eq!(storage.unreadable(), [0..4096, 8192..12_800]);
    let data = DataPieces::from_iter([Bytes::from(vec![1; 4096])]);
    assert!(large.execute(&Operation::Write { first: 2, data, durable: true }).status.is_success());
    assert_eq!(storage.unreadable(), [0..4096, 12_288..12_800]);
    let status = |first| with_blocks(512).execute(&Operation::Read { first, blocks: 1 }).status;
    assert!(status(23).is_success());
    assert_eq!(status(24), Status::UNRECOVERED_READ_ERROR);
}

/// With the maximum number of ranges, a write that splits one more range fails and changes nothing.
#[test]
fn write_cannot_exceed_the_limit_of_marks() {
    let storage = LoggingStorage::new(64 << 20);
    let namespace = Namespace::new(1, 512, storage.clone()).unwrap();
    assert!(namespace.execute(&Operation::WriteUncorrectable { first: 0, blocks: 65536 }).status.is_success());
    let data = || DataPieces::from_iter([Bytes::from(vec![1; 512])]);
    let write = |first| namespace.execute(&Operation::Write { first, data: data(), durable: false }).status;
    let written = (0..8192).filter(|number| write(2 * number + 1).is_success()).count();
    assert!(namespace.execute(&Operation::Flush).status.is_success());
    assert_eq!(storage.unreadable().len(), written + 1);
    assert!(written < 5000, "{written}");
    assert_eq!(write(60_001), Status::CAPACITY_EXCEEDED);
    assert_eq!(namespace.execute(&Operation::Read { first: 60_001, blocks: 1 }).status, Status::UNRECOVERED_READ_ERROR);
    let zero = Operation::WriteZeroes { first: 60_001, blocks: 1, durable: false };
    assert_eq!(namespace.execute(&zero).status, Status::CAPACITY_EXCEEDED);
    // A write that splits no range succeeds.
    assert!(write(65_535).is_success());
    assert!(namespace.execute(&Operation::Read { first: 65_535, blocks: 1 }).status.is_success());
}

#[test]
fn marks_do_not_fill_memory() {
    let namespace = Namespace::new(1, 512, Arc::new(FailingStorage::default())).unwrap();
    let mark = |number: u64| Operation::WriteUncorrectable { first: number * 65536, blocks: 65536 };
    assert!((0..16).all(|number| namespace.execute(&mark(number)).status.is_success()));
    assert_eq!(namespace.execute(&mark(16)).status, Status::CAPACITY_EXCEEDED);
    assert!(namespace.execute(&Operation::Read { first: 16 * 65536, blocks: 1 }).status.is_success());
}

#[test]
fn marks_cover_the_same_bytes_in_other_block_sizes() {
    let storage = LoggingStorage::new(1 << 20);
    storage.keep_unreadable(&[512..1024, 8192..12288]).unwrap();
    let namespace = Namespace::new(1, 4096, storage).unwrap();
    let readable: Vec<u64> = (0..5)
        .filter(|first| namespace.execute(&Operation::Read { first: *first, blocks: 1 }).status.is_success())
        .collect();
    assert_eq!(readable, [1, 3, 4]);
}

#[test]
fn marks_of_a_file_survive_reopening() {
    let path = std::env::temp_dir().join(format!("nvme-tcp-marks-{}", std::process::id()));
    let [side, identity] = ["uncorrectable", "identity"].map(|extension| path.with_extension(extension));
    std::fs::write(&path, vec![0; 64 << 10]).unwrap();
    let open = || Namespace::new(1, 4096, Arc::new(FileStorage::open(&path, false).unwrap())).unwrap();
    let status = |namespace: &Namespace, first| namespace.execute(&Operation::Read { first, blocks: 1 }).status;
    let namespace = open();
    assert!(namespace.execute(&Operation::WriteUncorrectable { first: 3, blocks: 2 }).status.is_success());
    drop(namespace);
    let namespace = open();
    let found: Vec<bool> = (2..6).map(|first| status(&namespace, first).is_success()).collect();
    assert_eq!(found, [true, false, false, true]);
    assert_eq!(status(&namespace, 3), Status::UNRECOVERED_READ_ERROR);
    let data = DataPieces::from_iter([Bytes::from(vec![7; 8192])]);
    assert!(namespace.execute(&Operation::Write { first: 3, data, durable: true }).status.is_success());
    assert!(!side.exists(), "nothing is marked any more");
    drop(namespace);
    assert_eq!(open().execute(&Operation::Read { first: 4, blocks: 1 }).data.concat(), [7; 4096]);
    std::fs::write(&side, "what is this").unwrap();
    let refused = FileStorage::open(&path, false).unwrap_err().to_string();
    assert!(refused.contains(".uncorrectable: line 1 is not"), "{refused}");
    for file in [&side, &identity, &path] {
        std::fs::remove_file(file).unwrap();
    }
}

/// Storage that counts calls and can fail.
#[derive(Default)]
struct FailingStorage {
    flushes: AtomicU64,
    /// Number of next flushes that fail.
    failing: AtomicU64,
    largest_read: AtomicU64,
    /// Number of holes and size of the largest.
    holes: AtomicU64,
    largest_hole: AtomicU64,
    /// Called during the next flush.
    hook: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Storage for FailingStorage {
    fn capacity(&self) -> u64 {
        1 << 40
    }

    fn read(&self, _: u64, bytes: usize) -> io::Result<DataPieces> {
        self.largest_read.fetch_max(bytes as u64, Ordering::Relaxed);
        Ok(DataPieces::new())
    }

    fn write(&self, _: u64, _: &[Bytes]) -> io::Result<()> {
        Ok(())
    }

    fn zero(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn deallocate(&self, _: u64, bytes: u64) -> io::Result<bool> {
        self.holes.fetch_add(1, Ordering::Relaxed);
        self.largest_hole.fetch_max(bytes, Ordering::Relaxed);
        Ok(true)
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let hook = self.hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        let fails = |left: u64| left.checked_sub(1);
        match self.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails) {
            Ok(_) => Err(io::ErrorKind::Other.into()),
            Err(_) => Ok(()),
        }
    }

    fn may_block(&self) -> bool {
        false
    }
}

#[test]
fn only_durable_operations_flush() {
    let storage = Arc::new(FailingStorage::default());
    let namespace = Namespace::new(1, 512, storage.clone()).unwrap();
    let data = || DataPieces::from_iter([Bytes::from(vec![1; 512])]);
    for (durable, flushes) in [(true, 1), (false, 0)] {
        for operation in [
            Operation::Write { first: 1, data: data(), durable },
            Operation::WriteZeroes { first: 1, blocks: 1, durable },
            Operation::Deallocate { ranges: vec![1..2, 5..7], durable },
        ] {
            let before = storage.flushes.load(Ordering::Relaxed);
            assert!(namespace.execute(&operation).status.is_success());
            assert_eq!(storage.flushes.load(Ordering::Relaxed) - before, flushes, "{operation:?}");
        }
    }
    assert!(namespace.execute(&Operation::Flush).status.is_success());
    assert_eq!(storage.flushes.load(Ordering::Relaxed), 4);
}

/// A full medium is not a broken one.
#[test]
fn full_storage_is_not_a_media_error() {
    struct FullStorage(io::ErrorKind);
    impl Storage for FullStorage {
        fn capacity(&self) -> u64 {
            1 << 20
        }
        fn read(&self, _: u64, _: usize) -> io::Result<DataPieces> {
            Err(self.0.into())
        }
        fn write(&self, _: u64, _: &[Bytes]) -> io::Result<()> {
            Err(self.0.into())
        }
        fn zero(&self, _: u64, _: u64) -> io::Result<()> {
            Err(self.0.into())
        }
        fn deallocate(&self, _: u64, _: u64) -> io::Result<bool> {
            Err(self.0.into())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
        fn may_block(&self) -> bool {
            false
        }
    }
    // Each of the three operations below counts one media error if the medium is broken.
    for (kind, expected, media_errors) in [
        (io::ErrorKind::StorageFull, Status::CAPACITY_EXCEEDED, 0),
        (io::ErrorKind::QuotaExceeded, Status::CAPACITY_EXCEEDED, 0),
        (io::ErrorKind::Other, Status::WRITE_FAULT, 3),
    ] {
        // A new namespace for each kind, because each namespace counts its own media errors.
        let namespace = Namespace::new(1, 512, Arc::new(FullStorage(kind))).unwrap();
        for operation in [
            Operation::Write { first: 0, data: DataPieces::from_iter([Bytes::from(vec![1; 512])]), durable: false },
            Operation::WriteZeroes { first: 0, blocks: 1, durable: false },
            Operation::Deallocate { ranges: vec![0..1], durable: false },
        ] {
            assert_eq!(namespace.execute(&operation).status, expected, "{operation:?}");
        }
        assert_eq!(namespace.usage().media_errors.load(Ordering::Relaxed), media_errors);
    }
}

#[test]
fn failed_flush_fails_later_writes() {
    let storage = Arc::new(FailingStorage { failing: AtomicU64::new(1), ..FailingStorage::default() });
    let namespace = Namespace::new(1, 512, storage.clone()).unwrap();
    let data = DataPieces::from_iter([Bytes::from(vec![1; 512])]);
    for operation in [
        Operation::Flush,
        Operation::Flush,
        Operation::Write { first: 0, data, durable: false },
        Operation::WriteZeroes { first: 0, blocks: 1, durable: true },
    ] {
        let status = namespace.execute(&operation).status;
        assert!(status.code() == Status::WRITE_FAULT.code() && status.do_not_retry(), "{operation:?}: {status}");
    }
    assert!(namespace.execute(&Operation::Read { first: 0, blocks: 1 }).status.is_success());
}

/// Returns the progress after the next part; `None` if the operation has ended.
fn part(namespace: &Namespace, operation: &Operation, done: u64) -> Option<u64> {
    match namespace.step(operation, done) {
        IoStep::More(done) => Some(done),
        IoStep::Done(outcome) => {
            assert!(outcome.status.is_success(), "{operation:?}");
            None
        }
    }
}

#[test]
fn one_flush_covers_all_earlier_writes() {
    let storage = Arc::new(FailingStorage::default());
    let namespace = Arc::new(Namespace::new(1, 512, storage.clone()).unwrap());
    let data = || DataPieces::from_iter([Bytes::from(vec![1; 512])]);
    let write = |first| Operation::Write { first, data: data(), durable: true };
    let zero = Operation::WriteZeroes { first: 9, blocks: 4000, durable: true };
    assert!(!namespace.span(&write(1), 0).flushes, "other ranges may be written concurrently");
    let mut written: Vec<(Operation, u64)> =
        [write(1), write(2), Operation::Flush].map(|one| (one.clone(), part(&namespace, &one, 0).unwrap())).into();
    let mut done = 0;
    for _ in 0..2 {
        done = part(&namespace, &zero, done).unwrap();
    }
    written.push((zero, done));
    // This write happens during the flush.
    let (late, during) = (Arc::new(Mutex::new(None)), (namespace.clone(), write(3)));
    let seen = late.clone();
    *storage.hook.lock().unwrap() = Some(Box::new(move || {
        let (namespace, write) = during;
        *seen.lock().unwrap() = part(&namespace, &write, 0);
    }));
    for (operation, done) in written {
        assert!(namespace.span(&operation, done).flushes);
        assert_eq!(part(&namespace, &operation, done), None);
        assert_eq!(storage.flushes.load(Ordering::Relaxed), 1, "{operation:?}");
    }
    let late = late.lock().unwrap().take().unwrap();
    assert_eq!(part(&namespace, &write(3), late), None);
    assert_eq!(storage.flushes.load(Ordering::Relaxed), 2, "the first flush may not cover it");
}

#[test]
fn disk_is_deallocated_in_parts() {
    let storage = Arc::new(FailingStorage::default());
    let namespace = Namespace::new(1, 4096, storage.clone()).unwrap();
    let blocks = namespace.blocks();
    let (small, rest) = (3..5, 8..blocks);
    let deallocate = Operation::Deallocate { ranges: vec![small, rest], durable: true };
    let (mut done, mut parts) = (Some(0), 0);
    while let Some(before) = done {
        let span = namespace.span(&deallocate, before);
        assert!(span.bytes.end - span.bytes.start <= 1 << 30);
        done = part(&namespace, &deallocate, before);
        parts += 1;
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((count(&storage.holes), count(&storage.largest_hole)), (1 + 1024, 1 << 30));
    assert_eq!((parts, count(&storage.flushes)), (1 + 1024 + 1, 1));
}

#[test]
fn storage_without_deallocation_is_unchanged() {
    struct DefaultStorage(MemoryStorage);
    impl Storage for DefaultStorage {
        fn capacity(&self) -> u64 {
            self.0.capacity()
        }
        fn read(&self, offset: u64, bytes: usize) -> io::Result<DataPieces> {
            self.0.read(offset, bytes)
        }
        fn write(&self, offset: u64, data: &[Bytes]) -> io::Result<()> {
            self.0.write(offset, data)
        }
        fn zero(&self, _: u64, _: u64) -> io::Result<()> {
            panic!("zero must not be called")
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
        fn may_block(&self) -> bool {
            false
        }
    }
    let namespace = Namespace::new(1, 512, Arc::new(DefaultStorage(MemoryStorage::new(1 << 20)))).unwrap();
    let data = DataPieces::from_iter([Bytes::from(vec![7; 512])]);
    assert!(namespace.execute(&Operation::Write { first: 1, data, durable: false }).status.is_success());
    let deallocate = Operation::Deallocate { ranges: vec![0..namespace.blocks()], durable: false };
    assert!(namespace.execute(&deallocate).status.is_success());
    assert_eq!(namespace.execute(&Operation::Read { first: 1, blocks: 1 }).data.concat(), [7; 512]);
}

#[test]
fn verify_reads_in_small_parts() {
    let storage = Arc::new(FailingStorage::default());
    let namespace = Namespace::new(1, 4096, storage.clone()).unwrap();
    assert!(namespace.execute(&Operation::Verify { first: 3, blocks: 65536 }).status.is_success());
    assert_eq!(storage.largest_read.load(Ordering::Relaxed), 1 << 20);
    namespace.marks().insert(65530..65531);
    let status = namespace.execute(&Operation::Verify { first: 3, blocks: 65536 }).status;
    assert_eq!(status, Status::UNRECOVERED_READ_ERROR);
}

proptest! {
    /// Compares with an array of blocks, each a value or unreadable. The process may end after a flush.
    #[test]
    fn operations_match_an_array(
        operations in prop::collection::vec((0u8..8, 0u64..120, 1u32..40, any::<u8>()), 1..60)
    ) {
        let storage = LoggingStorage::new(160 * 512);
        // A new namespace on the same storage stands for a restart of the process.
        let mut namespace = Namespace::new(1, 512, storage.clone()).unwrap();
        let mut oracle = vec![Some(0u8); 160];
        for (kind, first, blocks, value) in operations {
            if kind == 7 {
                prop_assert!(namespace.execute(&Operation::Flush).status.is_success());
                namespace = Namespace::new(1, 512, storage.clone()).unwrap();
            }
            let range = first as usize..first as usize + blocks as usize;
            // Reads, compares and verifies of a range with a marked block must all fail.
            let readable = oracle[range.clone()].iter().all(Option::is_some);
            let image: Vec<u8> = oracle[range.clone()].iter().flat_map(|block| [block.unwrap_or(0); 512]).collect();
            let data = || DataPieces::from_iter([Bytes::from(vec![value; blocks as usize * 512])]);
            let (operation, expected) = match kind {
                0 => {
                    oracle[range].fill(Some(value));
                    (Operation::Write { first, data: data(), durable: value > 200 }, Status::SUCCESS)
                }
                1 => {
                    oracle[range].fill(Some(0));
                    (Operation::WriteZeroes { first, blocks, durable: false }, Status::SUCCESS)
                }
                2 => {
                    oracle[range].fill(None);
                    (Operation::WriteUncorrectable { first, blocks }, Status::SUCCESS)
                }
                3 => {
                    oracle[range].fill(Some(0));
                    (Operation::Deallocate { ranges: vec![first..first + u64::from(blocks)], durable: value > 200 }, Status::SUCCESS)
                }
                _ if !readable => (
                    [
                        Operation::Compare { first, data: data() },
                        Operation::Verify { first, blocks },
                        Operation::Read { first, blocks },
                    ][usize::from(kind) % 3].clone(),
                    Status::UNRECOVERED_READ_ERROR,
                ),
                4 => {
                    let same = image.iter().all(|byte| *byte == value);
                    let status = if same { Status::SUCCESS } else { Status::COMPARE_FAILURE };
                    (Operation::Compare { first, data: data() }, status)
                }
                5 => (Operation::Verify { first, blocks }, Status::SUCCESS),
                _ => (Operation::Read { first, blocks }, Status::SUCCESS),
            };
            let outcome = namespace.execute(&operation);
            prop_assert_eq!(outcome.status, expected, "{:?}", operation);
            if matches!(operation, Operation::Read { .. }) && readable {
                prop_assert_eq!(outcome.data.concat(), image);
            }
        }
    }
}
