//! Users who make links, move directories and listen where others should. Needs the privileges of root.

use super::*;
use rustix::fs::Mode;
use rustix::process::{Uid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

const ALICE: u32 = 1001;
const BOB: u32 = 1002;

/// A directory where only root can write, or `None` without the privileges to give files to others.
fn ours() -> Option<TempDir> {
    if !geteuid().is_root() {
        eprintln!("left out: files can be given to other users by root only");
        return None;
    }
    Some(directory_of_this_test())
}

/// A directory where only this user can write, whatever the umask is, which other tests change for a moment.
fn directory_of_this_test() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

fn directory(path: &Path, user: u32, mode: u32) -> PathBuf {
    fs::create_dir(path).unwrap();
    chown(path, Some(user), Some(user)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    path.to_owned()
}

/// Runs as a user, in a thread.
fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    let uid = Uid::from_raw(user);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let root = rustix::process::Gid::from_raw(0);
            set_thread_res_gid(root, root, root).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

/// A VMM of that user listens.
fn vmm(path: &Path, user: u32) -> UnixListener {
    as_user(user, || UnixListener::bind(path).unwrap())
}

fn access(mode: u32) -> Access {
    Access {
        mode: Mode::from_raw_mode(mode),
        group: None,
    }
}

fn owned(path: &Path, owner: u32) -> SocketPath {
    SocketPath {
        path: path.to_owned(),
        owner: Some(owner),
    }
}

fn refused(path: &Path) -> Refusal {
    connect_to(&path.to_owned().into()).unwrap_err()
}

/// One user leads the way to the socket of another one's VMM, and to directories of the other one.
#[test]
fn no_link_of_another_user_is_followed() {
    let Some(dir) = ours() else { return };
    let [a, b] =
        [("a", ALICE), ("b", BOB)].map(|(name, user)| directory(&dir.path().join(name), user, 0o700));
    let _vmm = vmm(&b.join("vm.sock"), BOB);
    connect_to(&b.join("vm.sock").into()).unwrap();
    as_user(ALICE, || {
        symlink(b.join("vm.sock"), a.join("vm.sock")).unwrap();
        symlink(&b, a.join("there")).unwrap();
    });
    assert!(matches!(refused(&a.join("vm.sock")), Refusal::Link { at } if at == a.join("vm.sock")));
    assert!(matches!(refused(&a.join("there/vm.sock")), Refusal::Link { at } if at == a.join("there")));
    for path in ["vm.sock", "there/vm.sock", "there/new.sock"].map(|name| a.join(name)) {
        // Whatever is configured: a link may lead to another VMM of the right user.
        connect_to(&owned(&path, BOB)).unwrap_err();
        listen_at(&path.clone().into(), access(0o400)).unwrap_err();
        remove(&path.into());
    }
    assert!(b.join("vm.sock").exists());
    assert_eq!(fs::read_dir(&b).unwrap().count(), 1, "nothing was made there");
}

#[test]
fn links_of_root_are_followed() {
    let Some(dir) = ours() else { return };
    let a = directory(&dir.path().join("a"), ALICE, 0o700);
    let _vmm = vmm(&a.join("vm.sock"), ALICE);
    symlink("a", dir.path().join("relative")).unwrap();
    directory(&dir.path().join("root"), 0, 0o755);
    symlink(dir.path().join("root/../a"), dir.path().join("absolute")).unwrap();
    symlink("absolute/vm.sock", dir.path().join("vm.sock")).unwrap();
    for path in ["relative/vm.sock", "absolute/vm.sock", "vm.sock"] {
        connect_to(&dir.path().join(path).into()).unwrap();
    }
    symlink("loop", dir.path().join("loop")).unwrap();
    refused(&dir.path().join("loop"));
    refused(&dir.path().join("loop/vm.sock"));
    // Where others can write, root's links stay as they are only with the sticky bit.
    let shared = directory(&dir.path().join("shared"), 0, 0o1777);
    symlink(&a, shared.join("link")).unwrap();
    connect_to(&shared.join("link/vm.sock").into()).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(
        refused(&shared.join("link/vm.sock")),
        Refusal::Link { .. }
    ));
}

/// Sockets and directories of others can get into a directory by other ways than links: moved, linked hard,
/// made there together.
#[test]
fn directories_and_socket_belong_to_one_user() {
    let Some(dir) = ours() else { return };
    let a = directory(&dir.path().join("a"), ALICE, 0o777);
    let _of_bob = vmm(&a.join("vm.sock"), BOB);
    let refusal = refused(&a.join("vm.sock"));
    assert!(matches!(
        refusal,
        Refusal::Owner {
            user: BOB,
            expected: ALICE,
            ..
        }
    ));
    assert_eq!(
        refusal.to_string(),
        format!(
            "{} belongs to user 1002, not to user 1001 as the directories before it; if that is the VMM's user, set \
             `owner` of the port to 1002",
            a.join("vm.sock").display()
        )
    );
    connect_to(&owned(&a.join("vm.sock"), BOB)).unwrap();
    connect_to(&owned(&a.join("vm.sock"), ALICE)).unwrap_err();
    let b = directory(&a.join("b"), BOB, 0o700);
    let _vmm = vmm(&b.join("vm.sock"), BOB);
    let _own = vmm(&directory(&a.join("own"), ALICE, 0o700).join("vm.sock"), ALICE);
    assert!(matches!(refused(&b.join("vm.sock")), Refusal::Owner { at, .. } if at == b));
    listen_at(&b.join("new.sock").into(), access(0o400)).unwrap_err();
    connect_to(&owned(&b.join("vm.sock"), BOB)).unwrap();
    connect_to(&a.join("own/vm.sock").into()).unwrap();
    // What root made for the user is the user's as well.
    let _root = UnixListener::bind(directory(&a.join("root"), 0, 0o755).join("vm.sock")).unwrap();
    connect_to(&a.join("root/vm.sock").into()).unwrap();
    assert!(matches!(refused(&a.join("own/../vm.sock")), Refusal::Up { .. }));
}

/// Usual places: a directory of root's, with a socket of the VMM's user, or one that libvirt made.
#[test]
fn directories_of_root_hold_sockets_of_any_user() {
    let Some(dir) = ours() else { return };
    for user in [0, ALICE] {
        let path = dir.path().join(format!("{user}.sock"));
        let _vmm = UnixListener::bind(&path).unwrap();
        chown(&path, Some(user), None).unwrap();
        connect_to(&path.clone().into()).unwrap();
        connect_to(&owned(&path, user)).unwrap();
        connect_to(&owned(&path, BOB)).unwrap_err();
    }
}

/// A directory in which everybody can make a socket, so that the first one has it.
#[test]
fn a_shared_directory_takes_an_owner() {
    let Some(dir) = ours() else { return };
    for mode in [0o1777, 0o777, 0o1770, 0o770] {
        let shared = directory(&dir.path().join(format!("{mode:o}")), 0, mode);
        chown(&shared, None, Some(0)).unwrap();
        let path = shared.join("vm.sock");
        let vmm = vmm(&path, ALICE);
        assert!(
            matches!(refused(&path), Refusal::Shared { user: ALICE, .. }),
            "{mode:o}"
        );
        connect_to(&owned(&path, ALICE)).unwrap();
        connect_to(&owned(&path, BOB)).unwrap_err();
        let below = directory(&shared.join("below"), ALICE, 0o700).join("vm.sock");
        listen_at(&below.clone().into(), access(0o400)).unwrap_err();
        listen_at(&owned(&below, ALICE), access(0o400)).unwrap();
        drop(vmm);
        fs::remove_file(&path).unwrap();
        let _ours = UnixListener::bind(&path).unwrap();
        assert_eq!(
            connect_to(&path.clone().into()).is_ok(),
            mode & 0o1000 != 0,
            "{mode:o}"
        );
        // Those who may write there connect to a socket of ours.
        listen_at(&shared.join("ours.sock").into(), access(0o400)).unwrap();
    }
}

/// The socket is right, and another user's process listens: whoever was given the descriptor.
#[test]
fn the_process_that_listens_is_of_the_socket_s_owner() {
    let Some(dir) = ours() else { return };
    let path = dir.path().join("vm.sock");
    let _vmm = vmm_of(&path, BOB);
    assert!(matches!(
        refused(&path),
        Refusal::Listener {
            user: BOB,
            expected: ALICE,
            ..
        }
    ));
    connect_to(&owned(&path, ALICE)).unwrap_err();
}

fn vmm_of(path: &Path, listener: u32) -> UnixListener {
    fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o777)).unwrap();
    let vmm = vmm(path, listener);
    fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    chown(path, Some(ALICE), None).unwrap();
    vmm
}

/// A user moves directories and makes links while the switch looks, as fast as it can. No connection arrives
/// at the other user's VMM, and no socket in its directory.
#[test]
fn a_user_who_moves_things_meanwhile_achieves_nothing() {
    let Some(dir) = ours() else { return };
    let [a, b] =
        [("a", ALICE), ("b", BOB)].map(|(name, user)| directory(&dir.path().join(name), user, 0o755));
    let inner = |name: &str| directory(&a.join(name), ALICE, 0o755);
    let [here, _] = ["here", "spare"].map(inner);
    let _own = vmm(&here.join("vm.sock"), ALICE);
    let others = vmm(&b.join("vm.sock"), BOB);
    others.set_nonblocking(true).unwrap();
    let ending = AtomicBool::new(false);
    let (mut connected, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            as_user(ALICE, || {
                while !ending.load(Ordering::Relaxed) {
                    let _ = fs::rename(&here, a.join("away"));
                    let _ = symlink(&b, &here);
                    let _ = fs::remove_file(&here);
                    let _ = fs::rename(a.join("away"), &here);
                    let _ = fs::rename(here.join("vm.sock"), here.join("old.sock"));
                    let _ = symlink(b.join("vm.sock"), here.join("vm.sock"));
                    let _ = fs::rename(here.join("old.sock"), here.join("vm.sock"));
                }
            });
        });
        for _ in 0..5_000 {
            match connect_to(&here.join("vm.sock").into()) {
                Ok(_) => connected += 1,
                Err(_) => refused += 1,
            }
            let path = here.join("ours.sock").into();
            if listen_at(&path, access(0o400)).is_ok() {
                remove(&path);
            }
        }
        ending.store(true, Ordering::Relaxed);
    });
    assert!(others.accept().is_err(), "a connection arrived");
    assert_eq!(fs::read_dir(&b).unwrap().count(), 1, "a socket was made");
    assert!(
        refused > 0,
        "{connected} connected, {refused} refused: nothing was moved"
    );
}

#[test]
fn listens_only_where_nobody_else_does() {
    let dir = directory_of_this_test();
    let path = SocketPath::from(dir.path().join("a.sock"));
    let first = listen_at(&path, access(0o660)).unwrap();
    assert_eq!(
        fs::metadata(&path.path).unwrap().permissions().mode() & 0o777,
        0o660
    );
    assert!(matches!(listen_at(&path, access(0o400)), Err(Refusal::Taken)));
    connect_to(&path).unwrap();
    drop(first);
    connect_to(&path).unwrap_err();
    listen_at(&path, access(0o400)).unwrap();
    let file = SocketPath::from(dir.path().join("file"));
    fs::write(&file.path, "precious").unwrap();
    assert!(matches!(
        listen_at(&file, access(0o400)),
        Err(Refusal::InTheWay(_))
    ));
    assert!(matches!(connect_to(&file), Err(Refusal::InTheWay(_))));
    assert_eq!(fs::read(&file.path).unwrap(), b"precious");
    let nowhere = connect_to(&dir.path().join("nothing/a.sock").into()).unwrap_err();
    assert!(
        nowhere.is_not_found() && nowhere.to_string().contains("/nothing: "),
        "{nowhere}"
    );
}

/// Where we listen, links are neither followed nor removed, not even ours.
#[test]
fn a_symbolic_link_is_left_alone_with_what_it_leads_to() {
    let dir = directory_of_this_test();
    let (target, path) = (
        dir.path().join("target"),
        SocketPath::from(dir.path().join("a.sock")),
    );
    let stale = UnixListener::bind(&target).unwrap();
    symlink(&target, &path.path).unwrap();
    let refused = |what: &str| {
        listen_at(&path, access(0o400)).expect_err(what);
        remove(&path);
        assert!(fs::symlink_metadata(&path.path).unwrap().is_symlink(), "{what}");
    };
    refused("somebody listens at the target");
    drop(stale);
    refused("nobody does");
    assert!(fs::metadata(&target).unwrap().file_type().is_socket());
    fs::remove_file(&target).unwrap();
    refused("there is no target");
    // Nor is anything removed that is no socket.
    fs::remove_file(&path.path).unwrap();
    fs::write(&path.path, "precious").unwrap();
    remove(&path);
    assert_eq!(fs::read(&path.path).unwrap(), b"precious");
}

/// A process that may write to the directory replaces each socket by a link to another user's file, as fast
/// as it can.
#[test]
fn a_file_s_mode_is_not_changed_through_a_link_put_in_the_socket_s_place() {
    let dir = directory_of_this_test();
    let (secret, path) = (
        dir.path().join("secret"),
        SocketPath::from(dir.path().join("a.sock")),
    );
    fs::write(&secret, "").unwrap();
    let mode = || fs::metadata(&secret).unwrap().mode() & 0o777;
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let ending = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ending.load(Ordering::Relaxed) {
                // The socket is gone and the link is there in one step.
                let _ = symlink(&secret, dir.path().join("link"));
                let _ = fs::rename(dir.path().join("link"), &path.path);
                let _ = fs::remove_file(&path.path);
            }
        });
        for _ in 0..20_000 {
            let _ = listen_at(&path, access(0o660));
            if mode() != 0o600 {
                break;
            }
        }
        ending.store(true, Ordering::Relaxed);
    });
    assert_eq!(mode(), 0o600);
}

#[test]
fn a_socket_is_of_its_group_from_the_beginning() {
    let Some(dir) = ours() else { return };
    let path = SocketPath::from(dir.path().join("a.sock"));
    let access = Access {
        group: Some(BOB),
        ..access(0o660)
    };
    let _listener = listen_at(&path, access).unwrap();
    let found = fs::metadata(&path.path).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (0, BOB, 0o660));
    // Of this thread alone.
    let next = SocketPath::from(dir.path().join("b.sock"));
    let _listener = listen_at(&next, Access::OWNER).unwrap();
    assert_eq!(fs::metadata(&next.path).unwrap().gid(), 0);
    let home = directory(&dir.path().join("alice"), ALICE, 0o755);
    let own = SocketPath::from(home.join("a.sock"));
    let refusal = as_user(ALICE, || listen_at(&own, access).unwrap_err());
    assert!(matches!(refusal, Refusal::Group { group: BOB }), "{refusal}");
    assert!(!own.path.exists());
}
