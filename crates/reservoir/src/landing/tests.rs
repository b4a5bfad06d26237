//! Tests of files being received.

use super::*;
use crate::attributes::Preserve;
use crate::blocks::BlockHasher;
use crate::rooted::Rooted;

fn open(folder: &Arc<dyn Folder>, begin: ResumeMode, share: u16) -> Result<LandingFile, LandingError> {
    let blocks = Blocks::new(3 << 16, 1 << 16).unwrap();
    LandingFile::open_share(folder.clone(), &Name::from_url("/file").unwrap(), blocks, "source", begin, share)
}

fn land(landing: &LandingFile, number: u64, byte: u8) {
    let (bytes, epoch) = ([byte; 1 << 16], landing.epoch());
    let mut hasher = BlockHasher::new(landing.blocks(), number);
    hasher.update(&bytes);
    landing.write(&bytes, number << 16).unwrap();
    landing.done(number, hasher.finish(), epoch).unwrap();
}

/// A restarted file is a new file. Another share may still write to the old one, and its blocks do not count.
#[test]
fn late_writes_of_a_share_do_not_change_the_next_file() {
    let store = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
    let (first, second) = (open(&folder, ResumeMode::Anew, 0).unwrap(), open(&folder, ResumeMode::Anew, 1).unwrap());
    land(&first, 0, 1);
    land(&second, 1, 1);
    drop(first);

    let anew = open(&folder, ResumeMode::Anew, 0).unwrap();
    assert_eq!(anew.missing(), [0, 1, 2]);
    land(&anew, 0, 2);
    land(&second, 2, 1);
    drop(second);
    anew.gather(2).unwrap();
    assert_eq!(anew.missing(), [1, 2]);
    (1..3).for_each(|number| land(&anew, number, 2));
    anew.finish(None).unwrap();
    assert!(std::fs::read(store.path().join("file")).unwrap() == [2; 3 << 16]);
}

/// A resumed copy may have other attributes. The file gets only the new ones.
#[test]
fn last_attributes_apply() {
    let store = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
    let of = |names: &[&str]| {
        let extended = names.iter().map(|name| (format!("user.{name}").into_bytes(), b"value".to_vec()));
        Attributes { mode: None, extended: extended.collect() }
    };
    for told in [&["b", "c"][..], &[]] {
        let before = open(&folder, ResumeMode::Anew, 0).unwrap();
        before.keep(of(&["a", "b"])).unwrap();
        drop(before);
        let landing = open(&folder, ResumeMode::Resume, 0).unwrap();
        landing.keep(of(told)).unwrap();
        (0..3).for_each(|number| land(&landing, number, 7));
        landing.finish(None).unwrap();
        let file = folder.open(&Name::from_url("/file").unwrap()).unwrap();
        let mut has = file.attributes(Preserve { mode: false, extended: true }).unwrap();
        has.extended.sort();
        assert_eq!(has, of(told));
    }
}

/// Discarding twice must not remove the files of the next upload.
#[test]
fn file_made_after_a_discard_stays() {
    let store = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
    let before = open(&folder, ResumeMode::Anew, 0).unwrap();
    before.discard().unwrap();
    let landing = open(&folder, ResumeMode::Anew, 0).unwrap();
    before.discard().unwrap();
    assert!(matches!(before.finish(None), Err(LandingError::Missing { .. })));
    (0..3).for_each(|number| land(&landing, number, 7));
    landing.finish(None).unwrap();
}

/// A restarted file has no attributes of the old file, and writers of the old file do not affect it.
#[test]
fn a_file_that_begins_anew_is_another_one() {
    let store = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
    let kept = store.path().join("before");
    let before = open(&folder, ResumeMode::Anew, 0).unwrap();
    let mut files = std::fs::read_dir(store.path()).unwrap().map(|entry| entry.unwrap().path());
    let unfinished = files.find(|path| path.metadata().unwrap().len() == 3 << 16).unwrap();
    std::fs::hard_link(&unfinished, &kept).unwrap();
    drop(before);
    let anew = open(&folder, ResumeMode::Anew, 0).unwrap();
    land(&anew, 0, 7);
    assert!(std::fs::read(&kept).unwrap().iter().all(|byte| *byte == 0), "it is the same file");
}

/// A share of the upload of the earlier source may still be running.
#[test]
fn resumed_file_of_another_source_is_another_one() {
    let store = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
    let (first, second) = (open(&folder, ResumeMode::Anew, 0).unwrap(), open(&folder, ResumeMode::Anew, 1).unwrap());
    drop(first);
    let (name, blocks) = (Name::from_url("/file").unwrap(), second.blocks());
    let other = LandingFile::open(folder.clone(), &name, blocks, "other source", ResumeMode::Resume).unwrap();
    (0..3).for_each(|number| land(&other, number, 2));
    land(&second, 1, 1);
    other.finish(None).unwrap();
    assert!(std::fs::read(store.path().join("file")).unwrap() == [2; 3 << 16]);
}

/// A refused file may wait for its name for hours, so it must not be readable by others.
#[test]
fn refused_file_stays_private() {
    use std::os::unix::fs::PermissionsExt;
    let store = tempfile::tempdir().unwrap();
    let folder: Arc<dyn Folder> = Arc::new(Rooted::open(store.path()).unwrap());
    let path = store.path().join("file");
    std::fs::write(&path, "old").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let landing = open(&folder, ResumeMode::Anew, 0).unwrap();
    (0..3).for_each(|number| land(&landing, number, 7));
    let fields = [(hyper::header::IF_NONE_MATCH, "*".parse().unwrap())].into_iter().collect();
    landing.require(Preconditions::from_fields(&hyper::Method::PUT, &fields));
    assert!(matches!(landing.finish(None), Err(LandingError::Unmet(..))));
    let hidden = store.path().join(landing.name().unfinished().path());
    assert_eq!(hidden.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    landing.finish(None).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o644);
}

#[test]
fn link_that_leads_out_is_replaced() {
    let outer = tempfile::tempdir().unwrap();
    let store = outer.path().join("store");
    std::fs::create_dir(&store).unwrap();
    std::fs::write(outer.path().join("secret"), "text").unwrap();
    let folder: Arc<dyn Folder> = Arc::new(Rooted::open(&store).unwrap());
    for target in ["../secret", "file"] {
        std::os::unix::fs::symlink(target, store.join("file")).unwrap();
        let landing = open(&folder, ResumeMode::Anew, 0).unwrap();
        (0..3).for_each(|number| land(&landing, number, 7));
        landing.finish(None).unwrap();
        assert!(std::fs::read(store.join("file")).unwrap() == [7; 3 << 16]);
        std::fs::remove_file(store.join("file")).unwrap();
    }
    assert_eq!(std::fs::read(outer.path().join("secret")).unwrap(), b"text");
}
