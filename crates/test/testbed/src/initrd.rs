//! The root file system of test guests: busybox, the tools that measure, kernel modules, and `init.sh`.
//!
//! Programs are this machine's own, with the shared libraries `ldd` names, so that nothing is downloaded or
//! built. Modules come from the kernel's own tree together with what they depend on, in the order they must
//! be inserted in; the dependencies are read from the modules themselves (their `.modinfo` section), since
//! the tree of a kernel that was never installed has no `modules.dep`. The archive is left uncompressed: the
//! kernel would spend more time on decompressing it than the emulator on loading it. Cached in `build/` under
//! a name that changes with every input.

use crate::build_dir;
use crate::cpio::Cpio;
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const INIT: &str = include_str!("init.sh");

/// Programs taken from this machine, with the package each comes from.
const PROGRAMS: &[(&str, &str)] = &[
    ("iperf3", "iperf3"),
    ("ethtool", "ethtool"),
    ("ping", "iputils-ping"),
];

/// Programs of which only benchmarks make use, where this machine has them.
const FURTHER_PROGRAMS: &[&str] = &["trafgen"];

/// Programs of this crate.
const OUR_PROGRAMS: &[&str] = &["udp-rr"];

/// Modules a guest needs; those that its kernel has built in are skipped.
const MODULES: &[&str] = &["virtio_pci", "ipv6", "virtio_net", "8021q", "bridge"];

/// Compressions of modules in distributions, and the program that unpacks each: Debian 13 has `.ko.xz`.
const COMPRESSIONS: &[(&str, &str)] = &[("xz", "xz"), ("zst", "zstd")];

/// A file in the archive to be.
struct Input {
    path: String,
    source: PathBuf,
    mode: u32,
}

/// The initrd for guests whose kernel has the module tree `modules`. `kind` is part of its file name.
pub fn build(kind: &str, modules: &Path) -> Result<PathBuf> {
    let busybox = find_program("busybox").context("busybox is missing: install busybox-static")?;
    let mut inputs = vec![Input {
        path: "bin/busybox".into(),
        source: busybox,
        mode: 0o755,
    }];
    inputs.extend(programs()?);
    let tree = ModuleTree::read(modules)?;
    let ordered = tree.ordered(MODULES)?;
    inputs.extend(ordered.iter().map(|(name, source)| Input {
        path: format!("modules/{name}.ko"),
        source: source.clone(),
        mode: 0o644,
    }));
    let order: String = ordered.iter().map(|(name, _)| format!("{name}.ko\n")).collect();
    let name = format!("initrd-{kind}-{:016x}.cpio", fingerprint(&inputs, &order)?);
    build_dir::cached(&name, || archive(&inputs, &order))
}

/// Changes when any input changes.
fn fingerprint(inputs: &[Input], order: &str) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    (INIT, order).hash(&mut hasher);
    for input in inputs {
        let metadata = std::fs::metadata(&input.source)
            .with_context(|| format!("cannot read {}", input.source.display()))?;
        (
            &input.path,
            &input.source,
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        )
            .hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn archive(inputs: &[Input], order: &str) -> Result<Vec<u8>> {
    let mut archive = Cpio::default();
    let directories: BTreeSet<PathBuf> = inputs
        .iter()
        .flat_map(|input| Path::new(&input.path).ancestors().skip(1).map(Path::to_path_buf))
        .chain(["dev", "proc", "sys", "tmp", "modules"].map(PathBuf::from))
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    for directory in &directories {
        archive.directory(&directory.to_string_lossy());
    }
    for input in inputs {
        archive.file(&input.path, input.mode, &contents(&input.source)?);
    }
    archive.file("modules/order", 0o644, order.as_bytes());
    archive.file("init", 0o755, INIT.as_bytes());
    Ok(archive.finish())
}

/// The contents of a file, unpacked if its name shows that it is compressed.
fn contents(path: &Path) -> Result<Vec<u8>> {
    let Some((_, unpack)) = COMPRESSIONS
        .iter()
        .find(|(extension, _)| path.extension().is_some_and(|found| found == *extension))
    else {
        return std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    };
    let output = Command::new(unpack)
        .arg("-dc")
        .arg(path)
        .output()
        .with_context(|| format!("cannot run {unpack}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        bail!("cannot unpack {}: {}", path.display(), reason.trim());
    }
    Ok(output.stdout)
}

fn find_program(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists())
}

/// The programs and their shared libraries.
fn programs() -> Result<Vec<Input>> {
    let mut libraries = BTreeMap::new();
    let mut inputs = Vec::new();
    for (name, package) in PROGRAMS {
        let Some(source) = find_program(name) else {
            bail!("{name} is missing: install {package}")
        };
        inputs.push(program(name, source, &mut libraries)?);
    }
    for name in FURTHER_PROGRAMS {
        if let Some(source) = find_program(name) {
            inputs.push(program(name, source, &mut libraries)?);
        }
    }
    for name in OUR_PROGRAMS {
        // Tests of this crate's library alone have none, and need none.
        if let Some(source) = build_dir::sibling(name) {
            inputs.push(program(name, source, &mut libraries)?);
        }
    }
    inputs.extend(libraries.into_iter().map(|(path, source)| Input {
        path: path.trim_start_matches('/').into(),
        source,
        mode: 0o755,
    }));
    Ok(inputs)
}

/// Where a program goes; notes the libraries it needs.
fn program(name: &str, source: PathBuf, libraries: &mut BTreeMap<String, PathBuf>) -> Result<Input> {
    for library in shared_libraries(&source)? {
        libraries.insert(library.to_string_lossy().into_owned(), library);
    }
    Ok(Input {
        path: format!("usr/bin/{name}"),
        source,
        mode: 0o755,
    })
}

/// Absolute paths of the libraries, as the loader will ask for them, and of the loader.
fn shared_libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect())
}

/// All modules of a kernel, by name.
struct ModuleTree {
    paths: HashMap<String, PathBuf>,
}

impl ModuleTree {
    fn read(root: &Path) -> Result<ModuleTree> {
        let mut paths = HashMap::new();
        let mut open = vec![root.to_path_buf()];
        while let Some(dir) = open.pop() {
            let entries =
                std::fs::read_dir(&dir).with_context(|| format!("no modules in {}", dir.display()))?;
            for entry in entries {
                let path = entry?.path();
                if path.is_dir() {
                    open.push(path);
                } else if let Some(name) = module_name(&path) {
                    paths.insert(name, path);
                }
            }
        }
        Ok(ModuleTree { paths })
    }

    /// `wanted` and the modules on which they depend, dependencies first. Names the tree lacks are built into
    /// the kernel.
    fn ordered(&self, wanted: &[&str]) -> Result<Vec<(String, PathBuf)>> {
        let mut ordered = Vec::new();
        let mut seen = BTreeSet::new();
        for name in wanted {
            self.visit(name, &mut seen, &mut ordered)?;
        }
        Ok(ordered)
    }

    fn visit(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        ordered: &mut Vec<(String, PathBuf)>,
    ) -> Result<()> {
        let name = canonical(name);
        let Some(path) = self.paths.get(&name) else {
            return Ok(());
        };
        if seen.insert(name.clone()) {
            for dependency in dependencies(&contents(path)?) {
                self.visit(&dependency, seen, ordered)?;
            }
            ordered.push((name, path.clone()));
        }
        Ok(())
    }
}

/// The name of the module in that file, compressed or not; `None` if it is no module.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let plain = COMPRESSIONS
        .iter()
        .find_map(|(extension, _)| file.strip_suffix(extension)?.strip_suffix('.'))
        .unwrap_or(file);
    plain.strip_suffix(".ko").map(canonical)
}

/// File names and dependency lists disagree about dashes.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// The `depends=` entry of the module's information section: NUL-terminated strings.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = &module[start + KEY.len()..];
    let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
    let text = String::from_utf8_lossy(&value[..end]);
    text.split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(modules: &[(&str, &str)]) -> (tempfile::TempDir, ModuleTree) {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (name, depends) in modules {
            let contents = format!("\u{7f}ELF\0license=GPL\0depends={depends}\0retpoline=Y\0");
            std::fs::write(dir.path().join(format!("{name}.ko")), contents).expect("writes");
        }
        let tree = ModuleTree::read(dir.path()).expect("readable");
        (dir, tree)
    }

    #[test]
    fn compressed_modules_are_unpacked() {
        let (dir, _) = tree(&[("virtio-net", "net_failover"), ("net-failover", "")]);
        let plain = dir.path().join("virtio-net.ko");
        let before = contents(&plain).expect("readable");
        let packed = Command::new("xz").arg(&plain).status().expect("xz");
        assert!(packed.success() && !plain.exists());
        let tree = ModuleTree::read(dir.path()).expect("readable");
        let ordered = tree.ordered(&["virtio_net"]).expect("ordered");
        let names: Vec<&str> = ordered.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["net_failover", "virtio_net"]);
        assert_eq!(contents(&ordered[1].1).expect("unpacked"), before);
        std::fs::write(&ordered[1].1, b"no archive").expect("writes");
        assert!(contents(&ordered[1].1).is_err());
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let (_dir, tree) = tree(&[
            ("net-failover", "failover"),
            ("failover", ""),
            ("a", "net_failover,b"),
            ("b", "failover"),
        ]);
        let ordered = tree.ordered(&["a", "b", "built_in"]).expect("ordered");
        let names: Vec<&str> = ordered.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["failover", "net_failover", "b", "a"]);
    }
}
