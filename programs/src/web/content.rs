//! The content of a folder, read for comparison with received data.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files of a folder and of its subfolders, in the order of their paths.
///
/// The files are the ones that a [`Site`](super::site::Site) serves: regular files, linked or not, inside the folder.
/// Links to folders are not followed because they may be circular. Names that are not UTF-8 are left out because no URL
/// path can name them.
///
/// ```
/// use offload_programs::web::content::Content;
///
/// let content = Content::read_folder("tests".as_ref())?;
/// assert!(content.files().iter().any(|file| file.path == "/web.rs"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct Content {
    files: Vec<ServedFile>,
}

/// A file and its URL path.
#[derive(Clone, Debug)]
pub struct ServedFile {
    /// The path of the URL, percent-encoded.
    pub path: String,
    /// The path of the file.
    pub file: PathBuf,
    /// The content.
    pub bytes: Vec<u8>,
}

impl Content {
    /// Reads `folder`.
    ///
    /// # Errors Text with a path: something cannot be read, `folder` is not a folder, or there is no file, or more than
    /// [`MAX_FILES`] or [`MAX_BYTES`].
    pub fn read_folder(folder: &Path) -> Result<Content, String> {
        let root = folder.canonicalize().map_err(|error| about(folder, &error))?;
        let (mut found, mut entries, mut bytes) = (Vec::new(), 0, 0);
        let mut folders = vec![(folder.to_owned(), String::new())];
        // Folders are visited from a list and not by recursion, so that a deep tree cannot overflow the stack.
        while let Some((at, path)) = folders.pop() {
            for entry in fs::read_dir(&at).map_err(|error| about(&at, &error))? {
                let entry = entry.map_err(|error| about(&at, &error))?;
                entries += 1;
                let file = entry.path();
                // Every entry counts, not only files, so that a tree of empty folders ends too.
                if entries > MAX_FILES {
                    return Err(format!("{}: has more than {MAX_FILES} files to fetch", folder.display()));
                }
                let Some(name) = entry.file_name().to_str().map(|name| format!("{path}/{}", escaped(name))) else {
                    continue;
                };
                let kind = entry.file_type().map_err(|error| about(&file, &error))?;
                if kind.is_dir() {
                    folders.push((file, name));
                } else if is_inside(&root, &file) {
                    bytes += fs::metadata(&file).map_err(|error| about(&file, &error))?.len();
                    if bytes > MAX_BYTES {
                        return Err(format!("{}: has more than {} MiB to fetch", folder.display(), MAX_BYTES >> 20));
                    }
                    found.push((name, file));
                }
            }
        }
        if found.is_empty() {
            return Err(format!("{}: has no files to fetch", folder.display()));
        }
        found.sort();
        let read = |(path, file): (String, PathBuf)| {
            let bytes = fs::read(&file).map_err(|error| about(&file, &error))?;
            Ok(ServedFile { path, file, bytes })
        };
        found.into_iter().map(read).collect::<Result<_, String>>().map(|files| Content { files })
    }

    /// Returns all files.
    pub fn files(&self) -> &[ServedFile] {
        &self.files
    }
}

/// Returns whether `file` is a regular file with a canonical path inside `root`.
fn is_inside(root: &Path, file: &Path) -> bool {
    file.is_file() && file.canonicalize().is_ok_and(|file| file.starts_with(root))
}

fn about(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Percent-encodes a name for a URL (RFC 3986 2.3).
fn escaped(name: &str) -> String {
    let escape = |byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(escape).collect()
}

/// Limit of files, because more are too many for a demonstration.
pub const MAX_FILES: usize = 10_000;
/// Limit of bytes, because all files are kept in memory.
pub const MAX_BYTES: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn folders_in_the_folder_are_searched_and_no_link_leads_astray() {
        let outer = std::env::temp_dir().join(format!("nic-offload-content-{}", std::process::id()));
        let folder = outer.join("site");
        fs::create_dir_all(folder.join("b/deep one")).unwrap();
        fs::create_dir_all(folder.join("empty")).unwrap();
        for (name, text) in [("site/z", "zz"), ("site/b/x", "xx"), ("site/b/deep one/ü", "uu"), ("secret", "no")] {
            fs::write(outer.join(name), text).unwrap();
        }
        symlink(outer.join("secret"), folder.join("leads out")).unwrap();
        symlink(&folder, folder.join("circle")).unwrap();
        symlink(folder.join("b/x"), folder.join("a link")).unwrap();
        symlink(folder.join("nowhere"), folder.join("leads nowhere")).unwrap();
        let content = Content::read_folder(&folder).unwrap();
        let seen: Vec<_> = content.files().iter().map(|file| (&file.path[..], &file.bytes[..])).collect();
        let expected: [(&str, &[u8]); 4] =
            [("/a%20link", b"xx"), ("/b/deep%20one/%C3%BC", b"uu"), ("/b/x", b"xx"), ("/z", b"zz")];
        assert_eq!(seen, expected);

        let refused = |name: &str| Content::read_folder(&folder.join(name)).unwrap_err();
        assert!(refused("empty").ends_with("/site/empty: has no files to fetch"), "{}", refused("empty"));
        assert!(refused("none").contains("/site/none: No such file"), "{}", refused("none"));
        assert!(refused("z").contains("/site/z: Not a directory"), "{}", refused("z"));
        fs::File::create(folder.join("huge")).unwrap().set_len(MAX_BYTES).unwrap();
        assert!(Content::read_folder(&folder).unwrap_err().ends_with("/site: has more than 1024 MiB to fetch"));
        fs::remove_dir_all(outer).unwrap();
    }
}
