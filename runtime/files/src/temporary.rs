//! Temporary files. They are removed when the process ends, unless the process is killed or crashes.
//!
//! A list contains the path of every temporary file. Code that creates, renames or removes a temporary file holds the
//! list's lock, and [`remove_all`] keeps the lock until the process has ended. A signal handler therefore finds every
//! temporary file, and a signal leaves either none or all outputs of a call in place.
//!
//! A killed process leaves its temporary files behind. A live process keeps its files locked. The name of a temporary
//! file is derived from the output's name, so the next call with the same output removes the files that no process has
//! locked.

use super::error::FileError;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{self, Mutex, MutexGuard, PoisonError};
use tempfile::NamedTempFile;

static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Locks the list of temporary files. If a thread panics while it holds the lock, the list stays usable, because it is
/// always consistent.
fn live() -> MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that is removed when this value is dropped, unless it has replaced its target.
#[derive(Debug)]
pub struct Temporary {
    /// `None` once the file is removed or has its final name.
    file: Option<NamedTempFile>,
}

impl Temporary {
    /// Creates an empty file next to `target`. The new file has the mode of `existing` and, if the system permits it,
    /// the owner of `existing`. If `existing` is `None`, the file has the mode and owner that any new file has. Removes
    /// files that earlier processes left for the same target.
    ///
    /// # Errors
    /// Returns errors of the file system.
    pub fn new(target: &Path, existing: Option<&Metadata>) -> io::Result<Temporary> {
        let (folder, prefix) = (folder(target), prefix(target));
        remove_orphans(folder, &prefix);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(SUFFIX);
        // The process's mask still applies to this mode. The library's default mode is for secrets.
        let mode = existing.map_or(0o666, |existing| existing.mode() & 0o777);
        builder.permissions(Permissions::from_mode(mode));
        let mut live = live();
        let file = loop {
            step();
            let file = builder.tempfile_in(folder)?;
            match file.as_file().try_lock_shared() {
                Err(TryLockError::WouldBlock) => {}
                // Another process removed the file as an orphan before it was locked, so a new file is created.
                _ if file.as_file().metadata()?.nlink() == 0 => {}
                locked => {
                    if let Err(TryLockError::Error(e)) = locked {
                        log::debug!("{}: no advisory lock: {e}", folder.display());
                    }
                    break file;
                }
            }
        };
        live.push(file.path().to_path_buf());
        drop(live);
        let made = Temporary { file: Some(file) };
        if let (Some(existing), Some(file)) = (existing, made.get()) {
            resemble(file, existing)?;
        }
        Ok(made)
    }

    /// Returns the file, or `None` once it is removed or has its final name.
    #[must_use]
    pub fn get(&self) -> Option<&File> {
        self.file.as_ref().map(NamedTempFile::as_file)
    }

    /// Returns the path of the file, or `None` once it is removed or has its final name.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(NamedTempFile::path)
    }

    /// Calls `write` with the file, and waits until its contents are on the device.
    ///
    /// # Errors
    /// Returns errors of `write` and of the file system.
    pub fn fill(&self, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let file = self.get().ok_or(ErrorKind::NotFound)?;
        step();
        write(file)?;
        step();
        file.sync_all()
    }
}

/// Suffix of the names of temporary files.
const SUFFIX: &str = ".part";

/// Returns a prefix for the names of `target`'s temporary files. The prefix is short even if the target's name is long.
fn prefix(target: &Path) -> String {
    let name = target.file_name().unwrap_or_default().as_bytes();
    // FNV-1a hash of the name.
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    format!(".elsa-{hash:016x}-")
}

/// Removes the temporary files in `folder` whose names begin with `prefix`, unless a process has locked them.
fn remove_orphans(folder: &Path, prefix: &str) {
    // If the folder cannot be read, its orphans remain.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.as_bytes();
        if !(name.starts_with(prefix.as_bytes()) && name.ends_with(SUFFIX.as_bytes())) {
            continue;
        }
        let path = entry.path();
        let Ok(file) = regular(File::options().read(true), &path) else { continue };
        if file.try_lock().is_ok() {
            match fs::remove_file(&path) {
                Ok(()) => log::info!("{}: removed, its process has ended", path.display()),
                Err(e) => log::debug!("{}: not removed: {e}", path.display()),
            }
        }
    }
}

/// Opens a regular file without following a link at the end of the path and without blocking.
///
/// # Errors
/// Returns an error if the file is not regular, and errors of the file system.
pub fn regular(options: &mut fs::OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Gives `file` the mode and, if the system permits it, the owner of `existing`.
///
/// # Errors
/// Returns errors of the file system.
pub fn resemble(file: &File, existing: &Metadata) -> io::Result<()> {
    let owned = fchown(file, Some(existing.uid()), Some(existing.gid()))
        .or_else(|_| fchown(file, None, Some(existing.gid())));
    if let Err(e) = owned {
        log::debug!("the owner is not kept: {e}");
    }
    let now = file.metadata()?;
    // The set-user-ID and set-group-ID bits are kept only together with the owner.
    let same = (now.uid(), now.gid()) == (existing.uid(), existing.gid());
    let mask = if same { 0o7777 } else { 0o777 };
    file.set_permissions(Permissions::from_mode(existing.mode() & mask))
}

/// Marks one step of a call. A step is the opening of an output, or a point at which a kill could leave a change to the
/// file system incomplete. For tests, the process can be made to abort, or to wait for a pipe, at the step with a given
/// number.
pub fn step() {
    static STEPS: AtomicU64 = AtomicU64::new(0);
    if cfg!(debug_assertions) {
        let step = (STEPS.fetch_add(1, Ordering::Relaxed) + 1).to_string();
        let is = |name| std::env::var(name).is_ok_and(|at| at == step);
        if is("ELSA_TEST_ABORT_BEFORE") {
            std::process::abort();
        }
        if let Some(pipe) = std::env::var_os("ELSA_TEST_PIPE").filter(|_| is("ELSA_TEST_WAIT_BEFORE")) {
            let _ = fs::read(pipe);
        }
    }
}

/// Returns the folder of a file.
#[must_use]
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Renames each file to its path in `names`, and waits until the names are on the device. `names` pairs each path with
/// the argument that error messages name.
///
/// # Errors
/// Returns errors of the file system. The renames before a failed one remain in effect.
pub fn replace_all(files: Vec<Temporary>, names: &[(&'static str, PathBuf)]) -> Result<(), FileError> {
    let paths = names.iter().map(|(_, path)| path.as_path());
    replace(files.into_iter().zip(paths)).map_err(|(at, source)| {
        let (argument, path) = names[at].clone();
        FileError::Write { argument, path, source }
    })?;
    // A rename changes the folder, so the folders are synced.
    sync_folders(names.iter().map(|(argument, path)| (*argument, path.as_path())))
}

/// Waits until the names of files are on the device. `names` pairs each path with the argument that error messages
/// name. Each folder is synced once.
///
/// # Errors
/// Returns errors of the file system.
pub fn sync_folders<'a>(names: impl Iterator<Item = (&'static str, &'a Path)>) -> Result<(), FileError> {
    let folders: BTreeMap<&Path, (&'static str, &Path)> =
        names.map(|(argument, path)| (folder(path), (argument, path))).collect();
    folders.into_iter().try_for_each(|(folder, (argument, path))| {
        sync(folder).map_err(|source| FileError::Write { argument, path: path.to_path_buf(), source })
    })
}

/// Waits until changes of file names in `folder` are on the device. Does not wait if the folder is not readable, or if
/// its file system cannot sync folders.
///
/// # Errors
/// Returns errors of the file system.
fn sync(folder: &Path) -> io::Result<()> {
    step();
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Not an error: the folder is not readable, or its file system cannot sync folders.
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            log::debug!("{}: not synced: {e}", folder.display());
            Ok(())
        }
        done => done,
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            let mut live = live();
            live.retain(|path| path != file.path());
            drop(file);
        }
    }
}

/// Renames every file to its path, replacing the existing file. No signal ends the process between two renames.
///
/// # Errors
/// Returns errors of the file system, with the index of the file that was not renamed. The files before this file have
/// replaced their targets.
pub fn replace<'a>(files: impl IntoIterator<Item = (Temporary, &'a Path)>) -> Result<(), (usize, io::Error)> {
    let mut live = live();
    let mut failed = None;
    // Files are dropped after the lock is released, because dropping a file requires the lock.
    let mut rest = Vec::new();
    for (at, (mut temporary, path)) in files.into_iter().enumerate() {
        if failed.is_none()
            && let Some(file) = temporary.file.take()
        {
            let name = file.path().to_path_buf();
            step();
            match file.persist(path) {
                Ok(_) => live.retain(|live| *live != name),
                Err(e) => {
                    temporary.file = Some(e.file);
                    failed = Some((at, e.error));
                }
            }
        }
        rest.push(temporary);
    }
    drop(live);
    drop(rest);
    failed.map_or(Ok(()), Err)
}

/// Removes every temporary file, then calls `end`. No file is created or renamed between the removal and the call.
/// `failed` is called for each file that cannot be removed.
pub fn remove_all(failed: impl Fn(&Path, &io::Error), end: impl FnOnce()) {
    let live = live();
    remove(&live, failed);
    end();
}

/// Removes every temporary file after a panic, without ending the process. Does not wait for the lock of the list of
/// temporary files, because the panicking thread may hold this lock.
pub fn remove_all_in_panic(failed: impl Fn(&Path, &io::Error)) {
    let live = match LIVE.try_lock() {
        Ok(live) => live,
        Err(sync::TryLockError::Poisoned(e)) => e.into_inner(),
        Err(sync::TryLockError::WouldBlock) => return,
    };
    remove(&live, failed);
}

fn remove(live: &[PathBuf], failed: impl Fn(&Path, &io::Error)) {
    for path in live {
        if let Err(e) = fs::remove_file(path)
            && e.kind() != ErrorKind::NotFound
        {
            failed(path, &e);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn living_files_of_the_same_target_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("y.npy");
        let first = Temporary::new(&target, None).unwrap();
        let second = Temporary::new(&target, None).unwrap();
        for file in [&first, &second] {
            assert!(file.path().unwrap().exists());
        }
        drop((first, second));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
