//! A program that has mapped a file many times and punches holes into it: the kernel walks all mappings each
//! time, under a lock that mapping the file anywhere takes as well.

use super::memory::memfd;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use vm_memory::{FileOffset, MmapRegion};

/// Tells the test's executable to be that program.
const VARIABLE: &str = "DATA_PLANE_TEST_MAPPER";
/// About as many as a process may have.
const MAPPINGS: usize = 60_000;
/// After this the program ends by itself.
const LIFE: Duration = Duration::from_secs(60);

pub struct Mapper {
    program: Child,
    pub file: File,
}

impl Mapper {
    /// A file that is mapped. `program` is the name of the test that calls [`serve`].
    pub fn start(program: &str) -> Mapper {
        let file = memfd(1 << 20);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", program, "--nocapture", "--test-threads=1"])
            .env(VARIABLE, "1")
            .stdin(OwnedFd::from(file.try_clone().unwrap()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        assert!(lines.any(|line| line.contains("the file is mapped")));
        Mapper { program: child, file }
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// What the program does; returns at once in a process that is none.
pub fn serve() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let file = File::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let shared = FileOffset::new(file.try_clone().unwrap(), 0);
    let mappings: Vec<_> = (0..MAPPINGS)
        .map_while(|_| MmapRegion::<()>::from_file(shared.clone(), 4096).ok())
        .collect();
    println!("the file is mapped");
    assert!(mappings.len() > MAPPINGS / 2);
    let end = Instant::now() + LIFE;
    while Instant::now() < end {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, flags, 0, 4096).unwrap();
        rustix::io::pwrite(&file, &[1], 0).unwrap();
    }
    std::process::exit(0);
}
