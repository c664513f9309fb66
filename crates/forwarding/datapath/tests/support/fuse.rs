//! A file that asks a program of its own for everything, and mostly gets no answer: what a VMM can have with
//! FUSE.
//!
//! The program is another process, which ends by itself after a while, whatever becomes of the test: threads
//! that wait for its answers cannot be killed.

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Tells the test's executable to be that program, with the path of its file.
const VARIABLE: &str = "DATA_PLANE_TEST_FUSE";

/// After this it ends, and so does everybody's waiting.
const LIFE: Duration = Duration::from_secs(90);

// Requests, linux/fuse.h.
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const POLL: u32 = 40;

pub struct Fuse {
    program: Child,
    path: PathBuf,
}

impl Fuse {
    /// Mounts and opens the file; `None`, and a word to the user, where that is not permitted. `program` is
    /// the name of the test that calls [`serve`].
    pub fn start(program: &str) -> Option<Fuse> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("data-plane-fuse-{}-{number}", std::process::id()));
        drop(File::create(&path).unwrap());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", program, "--nocapture", "--test-threads=1"])
            .env(VARIABLE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok)
            .find(|line| line.contains("FUSE "));
        let fuse = Fuse { program: child, path };
        if !said
            .as_deref()
            .is_some_and(|line| line.contains("FUSE is mounted"))
        {
            eprintln!("skipped, no FUSE here: {said:?}");
            return None;
        }
        // The program answers who closes it first.
        fuse.with_file(|_| ());
        Some(fuse)
    }

    /// Opens the file for a moment.
    pub fn with_file<R>(&self, f: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        let file = File::options().read(true).write(true).open(&self.path).unwrap();
        f(file.as_fd())
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // Its connection ends with it, and with that all requests.
        let _ = self.program.kill();
        let _ = self.program.wait();
        let _ = unmount(&self.path, UnmountFlags::DETACH);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What the program does; returns at once in a process that is none.
pub fn serve() {
    let Some(path) = std::env::var_os(VARIABLE) else {
        return;
    };
    std::thread::spawn(|| {
        std::thread::sleep(LIFE);
        std::process::exit(0);
    });
    if let Err(error) = answer(PathBuf::from(path)) {
        println!("FUSE cannot be mounted: {error}");
    }
    std::process::exit(0);
}

fn answer(path: PathBuf) -> std::io::Result<()> {
    let mut device = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd={},rootmode=100644,user_id=0,group_id=0", device.as_raw_fd());
    let options = CString::new(options)?;
    mount(
        "test",
        &path,
        "fuse",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )?;
    println!("FUSE is mounted");
    std::io::stdout().flush()?;
    let mut request = vec![0; 1 << 17];
    // Who closes the file: the table of descriptors from which it goes. The first is the test's.
    let mut owner = None;
    loop {
        let len = device.read(&mut request)?;
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
        assert!(len >= 40, "a header");
        let body = match word(4) {
            INIT => Some((0, words(&[7, 31, 0, 0, 0, 65_536, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]))),
            GETATTR => Some((0, [words(&[0; 4]), attributes()].concat())),
            OPEN => Some((0, words(&[1, 0, 0, 0]))),
            RELEASE => Some((0, Vec::new())),
            // The owner lies behind a handle and two words (`struct fuse_flush_in`).
            FLUSH if *owner.get_or_insert_with(|| request[56..64].to_vec()) == request[56..64] => {
                Some((0, Vec::new()))
            }
            POLL | FLUSH | INTERRUPT => None,
            _ => Some((-38, Vec::new())),
        };
        if let Some((error, body)) = body {
            let head: [u32; 2] = [
                16 + u32::try_from(body.len()).expect("short"),
                i32::cast_unsigned(error),
            ];
            let reply = [words(&head), request[8..16].to_vec(), body].concat();
            device.write_all(&reply)?;
        }
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `struct fuse_attr` of a file that anybody may read and write.
fn attributes() -> Vec<u8> {
    let (inode, size, blocks) = ([1, 0], [4096, 0], [8, 0]);
    let (times, mode, links) = ([0; 9], 0o100_644, 1);
    words(
        &[
            &inode[..],
            &size,
            &blocks,
            &times,
            &[mode, links, 0, 0, 0, 4096, 0],
        ]
        .concat(),
    )
}
