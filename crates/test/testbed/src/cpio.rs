//! Writing the archive format that the kernel unpacks as its first root file system: cpio "newc".
//!
//! Source: Linux `Documentation/driver-api/early-userspace/buffer-format.rst`. The archive is built in memory
//! and reproducible: same contents, same bytes (times are zero, inode numbers count up).

use std::io::Write;

const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_FILE: u32 = 0o100_000;
const TYPE_SYMLINK: u32 = 0o120_000;

/// An archive in the making.
#[derive(Debug, Default)]
pub struct Cpio {
    bytes: Vec<u8>,
    inodes: u32,
}

impl Cpio {
    /// Adds a directory. Parents must have been added before.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, TYPE_DIRECTORY | 0o755, &[]);
    }

    /// Adds a regular file with that mode.
    pub fn file(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.entry(path, TYPE_FILE | (mode & 0o7777), contents);
    }

    /// Adds a symbolic link to `target`.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.entry(path, TYPE_SYMLINK | 0o777, target.as_bytes());
    }

    /// The finished archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, contents: &[u8]) {
        let name = path.trim_start_matches('/');
        let size = u32::try_from(contents.len()).expect("an initrd holds no files of 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("paths are short");
        self.inodes += 1;
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        let fields = [self.inodes, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            write!(self.bytes, "{field:08x}").expect("writing to a Vec cannot fail");
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn cpio_reads_it_back() {
        let mut archive = Cpio::default();
        archive.directory("d");
        archive.file("d/odd-length", 0o755, b"hello");
        archive.symlink("link", "d/odd-length");
        let dir = tempfile::tempdir().expect("temporary directory");
        let Ok(mut child) = Command::new("cpio")
            .args(["-i", "--quiet", "-H", "newc"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .spawn()
        else {
            eprintln!("skipped: cpio is not installed");
            return;
        };
        child
            .stdin
            .take()
            .expect("piped")
            .write_all(&archive.finish())
            .expect("cpio reads");
        assert!(child.wait().expect("cpio ends").success());
        assert_eq!(
            std::fs::read(dir.path().join("link")).expect("link resolves"),
            b"hello"
        );
    }

    #[test]
    fn fields_and_padding_are_as_the_kernel_wants_them() {
        let mut archive = Cpio::default();
        archive.file("/abc", 0o644, b"12345");
        let bytes = archive.finish();
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!(&bytes[14..22], b"000081a4");
        assert_eq!(&bytes[110..116], b"abc\0\0\0");
        // 110 + 4 is padded to 116, and 116 + 5 to 124.
        assert_eq!(&bytes[116..124], b"12345\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }
}
