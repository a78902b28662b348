//! File systems that misbehave: a small tmpfs in a mount namespace of the test's own thread.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use super::*;

/// Runs `test` with a tmpfs of 1 MiB at a folder that only this thread sees.
fn on_small_tmpfs(test: impl FnOnce(&Path) + Send) {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let path = folder.path();
        scope.spawn(move || {
            // SAFETY: unshare concerns this thread alone and touches no memory.
            if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
                let error = io::Error::last_os_error();
                assert!(std::env::var_os("CI").is_none(), "no mount namespace: {error}");
                eprintln!("skipped, no mount namespace: {error}");
                return;
            }
            mount("none", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "");
            mount("tmpfs", path, "tmpfs", 0, "size=1m");
            test(path);
        });
    });
}

fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong, data: &str) {
    let text = |text: &[u8]| CString::new(text).unwrap();
    let (source, target) = (text(source.as_bytes()), text(target.as_os_str().as_bytes()));
    let (kind, data) = (text(kind.as_bytes()), text(data.as_bytes()));
    // SAFETY: all strings are NUL-terminated and live through the call.
    let done = unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

#[test]
fn a_full_disk_pauses_and_goes_on() {
    on_small_tmpfs(|root| {
        let entries = [(800 << 10, 0)];
        let content = content_of(&entries);
        let ballast = root.join("ballast");
        fs::write(&ballast, vec![1; 512 << 10]).unwrap();
        let storage = Arc::new(storage_of(root, &entries));
        let (store, _) = ResumeStore::open(Arc::clone(&storage), None).unwrap();
        let mut failed_at = None;
        for piece in 0..800 {
            let (offset, bytes) = piece_of(&content, piece);
            match store.write_at(offset, &[IoSlice::new(bytes)]).and_then(|()| store.verified(piece)) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::DiskFull, "{error}");
                    failed_at = Some(piece);
                    break;
                }
            }
        }
        let failed_at = failed_at.expect("1 MiB does not hold it");
        if let Err(error) = store.checkpoint() {
            assert_eq!(error.kind, ErrorKind::DiskFull);
        }
        fs::remove_file(ballast).unwrap();
        for piece in failed_at..800 {
            let (offset, bytes) = piece_of(&content, piece);
            store.write_at(offset, &[IoSlice::new(bytes)]).and_then(|()| store.verified(piece)).unwrap();
        }
        store.close(true).unwrap();
        assert_eq!(read_all(&storage).unwrap(), content);
        let (store, loaded) = ResumeStore::open(storage, None).unwrap();
        assert!(matches!(loaded, Loaded::Resumed(found) if found.have.is_full()));
        assert!(store.with(|resume| resume.durable.is_full()));
    });
}

#[test]
fn a_full_disk_is_told_before_the_start() {
    on_small_tmpfs(|root| {
        let options = StorageOptions { preallocate: Preallocate::Full, ..StorageOptions::default() };
        let info = Arc::new(info(PIECE, &[(600 << 10, 0), (600 << 10, 0)]));
        let storage = Storage::open(info, root, options).unwrap();
        assert_eq!(storage.preallocate().unwrap_err().kind, ErrorKind::DiskFull);
        assert_eq!(fs::read_dir(root).unwrap().count(), 0);
        storage.set_wanted(1, false).unwrap();
        storage.preallocate().unwrap();
    });
}

#[test]
fn a_read_only_folder_is_an_error_until_it_is_not() {
    on_small_tmpfs(|root| {
        let entries = [(3000, 0), (3000, 0)];
        let content = content_of(&entries);
        let storage = storage_of(root, &entries);
        storage.write_at(0, &[IoSlice::new(&content[..1024])]).unwrap();
        storage.options.handles.remove_storage(storage.id);
        mount("none", root, "", libc::MS_REMOUNT | libc::MS_RDONLY, "");
        for offset in [0, 4000] {
            let error = storage.write_at(offset, &[IoSlice::new(&content[..10])]).unwrap_err();
            assert_eq!(error.kind, ErrorKind::ReadOnly, "{error}");
        }
        let mut back = [0; 1024];
        storage.read_at(0, &mut back).unwrap();
        assert_eq!(back, content[..1024]);
        mount("none", root, "", libc::MS_REMOUNT, "");
        write_all(&storage, &content);
        assert_eq!(read_all(&storage).unwrap(), content);
    });
}

#[test]
fn a_disk_that_goes_and_comes_back_is_not_replaced_by_its_mount_point() {
    on_small_tmpfs(|root| {
        let entries = [(1024, 0), (1024, 0)];
        let content = content_of(&entries);
        let storage = storage_of(root, &entries);
        storage.write_at(0, &[IoSlice::new(&content[..1024])]).unwrap();
        mount("tmpfs", root, "tmpfs", 0, "size=1m");
        let error = storage.write_at(1024, &[IoSlice::new(&content[1024..])]).unwrap_err();
        assert!(error.kind == ErrorKind::Vanished && fs::read_dir(root).unwrap().count() == 0, "{error}");
        let target = CString::new(root.as_os_str().as_bytes()).unwrap();
        // SAFETY: the string is NUL-terminated.
        assert_eq!(unsafe { libc::umount(target.as_ptr()) }, 0);
        write_all(&storage, &content);
        assert_eq!(read_all(&storage).unwrap(), content);
    });
}

#[test]
fn storage_opened_for_reading_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("missing");
    let options = StorageOptions { read_only: true, ..StorageOptions::default() };
    let storage = Storage::open(Arc::new(info(PIECE, &[(10, 0)])), &missing, options).unwrap();
    assert_eq!(storage.write_at(0, &[IoSlice::new(&[1])]).unwrap_err().kind, ErrorKind::ReadOnly);
    assert_eq!(storage.read_at(0, &mut [0]).unwrap_err().kind, ErrorKind::Vanished);
    assert!(!missing.exists());
}
