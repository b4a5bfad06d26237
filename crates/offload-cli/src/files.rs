//! The files of a program's run: each output is a different file, and no output is an input or a served file, under any
//! name.
//!
//! Invariant: a refusal leaves no trace. No file is truncated, and no new file is left.

use core::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The files of one run of a program.
///
/// ```
/// use offload_cli::files::Files;
/// use std::path::Path;
///
/// let files = Files { read: vec![Path::new("Cargo.toml")], written: vec![Path::new("./Cargo.toml")], ..Files::default() };
/// let error = files.claim().unwrap_err();
/// assert_eq!(error, "./Cargo.toml: is to be read and written, or written twice");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Files<'a> {
    /// Files that the program reads, or writes by other means.
    pub read: Vec<&'a Path>,
    /// The folder that the program serves.
    pub served: Option<&'a Path>,
    /// Files that the program will write.
    pub written: Vec<&'a Path>,
}

impl Files<'_> {
    /// Checks that every file of `written` can be written, occurs once, and is neither in `read` nor in the served
    /// folder. Files are compared by identity and not by name. Missing files are created. Pipes, terminals and other
    /// special files may occur several times.
    ///
    /// Call this before any action that is visible outside, such as opening a wire or a listener.
    ///
    /// # Errors
    /// A message with the file's name.
    pub fn claim(&self) -> Result<Claimed, String> {
        let mut claimed = Claimed { made: Vec::new() };
        self.check(&mut claimed.made)?;
        Ok(claimed)
    }

    fn check(&self, made: &mut Vec<PathBuf>) -> Result<(), String> {
        let mut written = Vec::new();
        for path in &self.written {
            let identity = writable(path, made).map_err(|error| format!("{}: {error}", path.display()))?;
            written.extend(identity.map(|identity| (path, identity)));
        }
        // `read` is examined after the outputs were created: an input that did not exist may be one of the new outputs.
        let mut known: Vec<FileIdentity> =
            self.read.iter().filter_map(|path| identity(&fs::metadata(path).ok()?)).collect();
        for (path, identity) in written {
            // A served file that is also an output would change under its readers.
            if let Some(folder) = self.served {
                check_outside(folder, path, identity)?;
            }
            if known.contains(&identity) {
                return Err(format!("{}: is to be read and written, or written twice", path.display()));
            }
            known.push(identity);
        }
        Ok(())
    }
}

/// Outputs that can be written. New files are removed on drop, so that a refusal leaves no trace.
///
/// ```
/// use offload_cli::files::Files;
///
/// let path = std::env::temp_dir().join(format!("example-{}.claimed", std::process::id()));
/// let files = Files { written: vec![&path], ..Files::default() };
/// drop(files.claim()?);
/// assert!(!path.exists());
/// files.claim()?.keep();
/// assert!(path.exists());
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), String>(())
/// ```
#[derive(Debug)]
#[must_use = "files that were made go when this is dropped"]
pub struct Claimed {
    made: Vec<PathBuf>,
}

impl Claimed {
    /// Keeps the new files, because the program is going to write them.
    pub fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        for path in &self.made {
            // A file that cannot be removed is empty and does no harm.
            let _removed = fs::remove_file(path);
        }
    }
}

/// Returns the file name of one mode among several: `dir/name.pcapng` becomes `dir/name-tls-nic.pcapng`.
///
/// ```
/// use offload_cli::files::named_for;
///
/// assert_eq!(named_for("dir/name.pcapng".as_ref(), "tcp").to_str(), Some("dir/name-tcp.pcapng"));
/// ```
pub fn named_for(path: &Path, way: impl fmt::Display) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{way}{extension}"))
}

/// The identity of a file, independent of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileIdentity {
    /// Device and inode.
    File(u64, u64),
    /// The number of a block device.
    Block(u64),
}

/// Refuses an output in the served folder, because it would be served too, or truncate a served file.
fn check_outside(folder: &Path, file: &Path, identity: FileIdentity) -> Result<(), String> {
    let node = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    // A missing folder is reported by the code that opens the folder.
    let (Some(served), Ok(home)) = (node(folder), file.canonicalize()) else { return Ok(()) };
    if home.ancestors().any(|above| node(above) == Some(served)) {
        return Err(format!("{}: is to be written, and is in the folder that is served", file.display()));
    }
    // A file with a single link has no other name inside the folder.
    let has_names = fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.nlink() > 1);
    match has_names.then(|| found_in(folder, identity)).flatten() {
        Some(name) => Err(format!("{}: is to be written, and is served as {}", file.display(), name.display())),
        None => Ok(()),
    }
}

/// Returns the name of a file in a folder or its subfolders.
fn found_in(folder: &Path, wanted: FileIdentity) -> Option<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // An unreadable folder cannot be served. A link within the folder leads to another entry of the folder.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if identity(&metadata) == Some(wanted) {
                return Some(entry.path());
            }
        }
    }
    None
}

/// Opens or creates a file for writing and returns its identity. Returns `None` for files that do not store data, such
/// as pipes.
fn writable(path: &Path, made: &mut Vec<PathBuf>) -> io::Result<Option<FileIdentity>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(metadata) if metadata.is_file() => identity_of(&File::options().append(true).open(path)?),
        // Opening a pipe would wait for its other end.
        Ok(metadata) => Ok(identity(&metadata)),
        Err(_) => {
            let file = File::options().append(true).create(true).open(path)?;
            // `path` may be a link: the created file is its target.
            made.push(path.canonicalize()?);
            identity_of(&file)
        }
    }
}

fn identity_of(file: &File) -> io::Result<Option<FileIdentity>> {
    Ok(identity(&file.metadata()?))
}

fn identity(metadata: &Metadata) -> Option<FileIdentity> {
    match metadata.file_type() {
        kind if kind.is_file() => Some(FileIdentity::File(metadata.dev(), metadata.ino())),
        kind if kind.is_block_device() => Some(FileIdentity::Block(metadata.rdev())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn aliases_of_a_file_are_refused_without_a_trace() {
        let folder = std::env::temp_dir().join(format!("nic-offload-files-{}", std::process::id()));
        fs::create_dir_all(folder.join("sub")).unwrap();
        let at = |name: &str| folder.join(name);
        fs::write(at("input"), "precious").unwrap();
        fs::hard_link(at("input"), at("hard")).unwrap();
        symlink(at("input"), at("soft")).unwrap();
        symlink(at("new"), at("dangling")).unwrap();
        let check = |read: &[&str], written: &[&str]| {
            let paths = |names: &[&str]| names.iter().map(|name| at(name)).collect::<Vec<_>>();
            let (read, written) = (paths(read), paths(written));
            fn borrowed(paths: &[PathBuf]) -> Vec<&Path> {
                paths.iter().map(PathBuf::as_path).collect()
            }
            Files { read: borrowed(&read), served: None, written: borrowed(&written) }.claim().map(Claimed::keep)
        };
        // Links and paths with `..` are other names of the same file.
        for alias in ["input", "hard", "soft", "sub/../input"] {
            let error = check(&["input"], &["other", alias]).unwrap_err();
            assert!(error.contains("is to be read and written, or written twice"), "{alias}: {error}");
            assert!(!at("other").exists(), "{alias}");
        }
        // Two outputs that do not exist yet may still be one file.
        for twice in [["new", "new"], ["new", "dangling"], ["dangling", "new"], ["hard", "soft"], ["new", "sub/../new"]]
        {
            assert!(check(&[], &twice).is_err(), "{twice:?}");
            assert!(!at("new").exists() && at("dangling").is_symlink(), "{twice:?}");
        }
        assert!(check(&[], &["sub"]).unwrap_err().ends_with("is a directory"));
        assert!(check(&[], &["none/file"]).unwrap_err().contains("none/file: "));
        assert_eq!(check(&["none", "input"], &["new", "other"]), Ok(()));
        // A device stores nothing, so two outputs cannot overwrite each other there.
        assert_eq!(check(&[], &["/dev/null", "/dev/null"]), Ok(()));
        let error = check(&["later"], &["later"]).unwrap_err();
        assert!(error.contains("is to be read and written") && !at("later").exists(), "{error}");
        assert_eq!(fs::read(at("input")).unwrap(), b"precious");
        assert!(at("new").exists() && at("other").exists(), "what can be written is there");
        fs::remove_dir_all(folder).unwrap();
    }
    #[test]
    fn served_files_are_never_outputs() {
        let folder = std::env::temp_dir().join(format!("nic-offload-served-{}", std::process::id()));
        let at = |name: &str| folder.join(name);
        fs::create_dir_all(at("site/sub")).unwrap();
        fs::write(at("site/sub/page"), "precious").unwrap();
        fs::write(at("other"), "").unwrap();
        // A hard link outside of the folder changes the served file too.
        fs::hard_link(at("site/sub/page"), at("hard")).unwrap();
        fs::hard_link(at("other"), at("twice")).unwrap();
        for (name, to) in [("soft", "site/sub/page"), ("dangling", "site/new"), ("way", "site/sub"), ("same", "site")] {
            symlink(at(to), at(name)).unwrap();
        }
        let check = |served: &str, written: &str| {
            let (served, written) = (at(served), at(written));
            let claimed = Files { served: Some(&served), written: vec![&written], ..Files::default() }.claim();
            claimed.map(|claimed| assert!(claimed.made.len() <= 1))
        };
        let inside = ["site/sub/page", "site/new", "soft", "dangling", "way/new", "way/page", "site/../site/sub/new"];
        for served in ["site", "same"] {
            for file in inside {
                let error = check(served, file).unwrap_err();
                assert!(error.ends_with("is to be written, and is in the folder that is served"), "{file}: {error}");
            }
            let error = check(served, "hard").unwrap_err();
            assert!(
                error.contains("hard: is to be written, and is served as ") && error.ends_with("/sub/page"),
                "{error}"
            );
            for outside in ["new", "other", "twice"] {
                assert_eq!(check(served, outside), Ok(()), "{outside}");
            }
        }
        assert_eq!(check("none", "new"), Ok(()));
        assert_eq!(fs::read(at("site/sub/page")).unwrap(), b"precious");
        let left: Vec<_> = ["new", "site/new", "site/sub/new"].into_iter().filter(|name| at(name).exists()).collect();
        assert!(left.is_empty(), "{left:?}");
        fs::remove_dir_all(folder).unwrap();
    }
}
