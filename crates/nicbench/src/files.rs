//! Files that a program writes: none of them is another one, or one that it reads, under whatever name.
//!
//! Invariant: a refusal leaves no trace. No file is emptied, and none is left that was not there.

use core::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Sees that every file of `written` can be written, and is neither one of `read` nor written twice: by what it is, not by
/// what it is called. Those that are not there yet are made. Pipes, terminals and the like may be named as often as one
/// likes.
///
/// ```
/// use nicbench::files::check_outputs;
/// use std::path::Path;
///
/// let input = Path::new("Cargo.toml");
/// let error = check_outputs(&[input], &[Path::new("./Cargo.toml")]).unwrap_err();
/// assert_eq!(error, "./Cargo.toml: is to be read and written, or written twice");
/// ```
///
/// # Errors
/// In words, with the file's name.
pub fn check_outputs(read: &[&Path], written: &[&Path]) -> Result<(), String> {
    let mut made = Vec::new();
    let checked = check(read, written, &mut made);
    if checked.is_err() {
        for path in made {
            // Empty as it is, it harms nobody should it have to stay.
            let _removed = fs::remove_file(path);
        }
    }
    checked
}

/// `dir/name.pcapng` for one way of several: `dir/name-tls-nic.pcapng`.
///
/// ```
/// use nicbench::files::named_for;
///
/// assert_eq!(named_for("dir/name.pcapng".as_ref(), "tcp").to_str(), Some("dir/name-tcp.pcapng"));
/// ```
pub fn named_for(path: &Path, way: impl fmt::Display) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{way}{extension}"))
}

/// Refuses to write a file in a folder that is served: it would be served too, or be emptied before it is.
///
/// ```
/// use nicbench::files::check_outside;
///
/// assert!(check_outside("tests".as_ref(), "tests/none".as_ref()).is_err());
/// assert_eq!(check_outside("tests".as_ref(), "none".as_ref()), Ok(()));
/// ```
///
/// # Errors
/// In words, with the file's name.
pub fn check_outside(folder: &Path, file: &Path) -> Result<(), String> {
    let home = match file.canonicalize() {
        Ok(file) => Ok(file),
        // It will be where its folder is.
        Err(_) => {
            file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).canonicalize()
        }
    };
    match (folder.canonicalize(), home) {
        (Ok(folder), Ok(home)) if home.starts_with(&folder) => {
            Err(format!("{}: is to be written, and is in the folder that is served", file.display()))
        }
        // What is not there at all is told by whoever opens it.
        _ => Ok(()),
    }
}

/// Device and number: what a file is, whatever its names are.
type Identity = (u64, u64);

fn check(read: &[&Path], written: &[&Path], made: &mut Vec<PathBuf>) -> Result<(), String> {
    let mut known: Vec<Identity> = read.iter().filter_map(|path| identity(&fs::metadata(path).ok()?)).collect();
    for path in written {
        let identity = writable(path, made).map_err(|error| format!("{}: {error}", path.display()))?;
        let Some(identity) = identity else { continue };
        if known.contains(&identity) {
            return Err(format!("{}: is to be read and written, or written twice", path.display()));
        }
        known.push(identity);
    }
    Ok(())
}

/// What the file is, which can be written and now is there; `None` if it does not keep what is written.
fn writable(path: &Path, made: &mut Vec<PathBuf>) -> io::Result<Option<Identity>> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(metadata) if metadata.is_file() => identity_of(&File::options().append(true).open(path)?),
        // To open a pipe would be to wait for its other end.
        Ok(_) => Ok(None),
        Err(_) => {
            let file = File::options().append(true).create(true).open(path)?;
            // A link may have led here: what was made is not the link.
            made.push(path.canonicalize()?);
            identity_of(&file)
        }
    }
}

fn identity_of(file: &File) -> io::Result<Option<Identity>> {
    Ok(identity(&file.metadata()?))
}

fn identity(metadata: &Metadata) -> Option<Identity> {
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_known_under_every_name_and_refusals_leave_no_trace() {
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
            check_outputs(&borrowed(&read), &borrowed(&written))
        };
        for alias in ["input", "hard", "soft", "sub/../input"] {
            let error = check(&["input"], &["other", alias]).unwrap_err();
            assert!(error.contains("is to be read and written, or written twice"), "{alias}: {error}");
            assert!(!at("other").exists(), "{alias}");
        }
        for twice in [["new", "new"], ["new", "dangling"], ["dangling", "new"], ["hard", "soft"], ["new", "sub/../new"]]
        {
            assert!(check(&[], &twice).is_err(), "{twice:?}");
            assert!(!at("new").exists() && at("dangling").is_symlink(), "{twice:?}");
        }
        assert!(check(&[], &["sub"]).unwrap_err().ends_with("is a directory"));
        assert!(check(&[], &["none/file"]).unwrap_err().contains("none/file: "));
        assert_eq!(check(&["none", "input"], &["new", "other"]), Ok(()));
        assert_eq!(check_outputs(&[], &[Path::new("/dev/null"), Path::new("/dev/null")]), Ok(()));
        assert_eq!(fs::read(at("input")).unwrap(), b"precious");
        assert!(at("new").exists() && at("other").exists(), "what can be written is there");

        for inside in ["sub/new", "new", "soft"] {
            assert!(check_outside(&folder, &at(inside)).is_err(), "{inside}");
        }
        assert_eq!(check_outside(&at("sub"), &at("new")), Ok(()));
        assert!(check_outside(Path::new("."), Path::new("capture")).is_err());
        fs::remove_dir_all(folder).unwrap();
    }
}
