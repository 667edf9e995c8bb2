//! Files in the making: whatever ends the process, bar a kill or a crash, they do not stay behind.
//!
//! A list holds the path of every temporary file. Whoever makes, renames or removes one holds the list's lock, and so
//! does [`remove_all`] from the moment when it removes them until the process ends. So a signal finds all of them, and either
//! none or all outputs of a call in place.
//!
//! A process that is killed leaves its files behind. Each has a lock for as long as its process lives, and a name that tells
//! whose output it is, so that the next call with that output removes what nobody holds.

use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{self, Mutex, MutexGuard, PoisonError};
use tempfile::NamedTempFile;

static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A list that is whole at any time, so that a panic elsewhere leaves it usable.
fn live() -> MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that is removed unless it replaces another.
#[derive(Debug)]
pub struct Temporary {
    /// None once it is removed or has its final name.
    file: Option<NamedTempFile>,
}

impl Temporary {
    /// Makes an empty file beside `target`, with the mode and, where the system permits it, the owner of `existing`. Without
    /// it, they are those of any new file. What processes that have ended left of the same target is removed.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn new(target: &Path, existing: Option<&Metadata>) -> io::Result<Temporary> {
        let (folder, prefix) = (folder(target), prefix(target));
        remove_orphans(folder, &prefix);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(SUFFIX);
        // Before the process's mask. The default is for secrets.
        let mode = existing.map_or(0o666, |existing| existing.mode() & 0o777);
        builder.permissions(Permissions::from_mode(mode));
        let mut live = live();
        let file = loop {
            step();
            let file = builder.tempfile_in(folder)?;
            match file.as_file().try_lock_shared() {
                Err(TryLockError::WouldBlock) => {}
                // Before it was locked, another process may have taken it for one that nobody holds.
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

    /// The file; none once it is removed or has its final name.
    #[must_use]
    pub fn get(&self) -> Option<&File> {
        self.file.as_ref().map(NamedTempFile::as_file)
    }

    /// Where the file lies; none once it is removed or has its final name.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(NamedTempFile::path)
    }

    /// Calls `write` with the file, and waits until its contents are on the device.
    ///
    /// # Errors
    /// What `write` and the file system report.
    pub fn fill(&self, write: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let file = self.get().ok_or(ErrorKind::NotFound)?;
        step();
        write(file)?;
        step();
        file.sync_all()
    }
}

/// How the names of temporary files end.
const SUFFIX: &str = ".part";

/// How the names of the temporary files of `target` begin. They are short, whatever its name is.
fn prefix(target: &Path) -> String {
    let name = target.file_name().unwrap_or_default().as_bytes();
    // FNV-1a.
    let hash = name
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    format!(".elsa-{hash:016x}-")
}

/// Removes the temporary files with this prefix that no process holds.
fn remove_orphans(folder: &Path, prefix: &str) {
    // A folder that may be written but not read keeps them.
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

/// Opens a regular file. Follows no link at the end of the path, and does not wait.
///
/// # Errors
/// What is no regular file, and what the file system reports.
pub fn regular(options: &mut fs::OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Gives `file` the mode and, where the system permits it, the owner of `existing`.
///
/// # Errors
/// What the file system reports.
pub fn resemble(file: &File, existing: &Metadata) -> io::Result<()> {
    let owned = fchown(file, Some(existing.uid()), Some(existing.gid()))
        .or_else(|_| fchown(file, None, Some(existing.gid())));
    if let Err(e) = owned {
        log::debug!("the owner is not kept: {e}");
    }
    let now = file.metadata()?;
    // The bits that act as somebody else go with the owner.
    let same = (now.uid(), now.gid()) == (existing.uid(), existing.gid());
    let mask = if same { 0o7777 } else { 0o777 };
    file.set_permissions(Permissions::from_mode(existing.mode() & mask))
}

/// Stands before every change of the file system that a kill could leave half done, and before an output is opened. Tests end
/// the process at a step of a given number, or have it wait there for a pipe.
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

/// The folder of a file.
#[must_use]
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Waits until the names in `folder` are on the device, where the file system can tell.
///
/// # Errors
/// What the file system reports.
pub fn sync(folder: &Path) -> io::Result<()> {
    step();
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // A folder that may be written but not read, and file systems that sync no folders.
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

/// Renames every file to its path, replacing what is there. No signal ends the process between two of them.
///
/// # Errors
/// What the file system reports, with the number of the file. The files before it have replaced theirs.
pub fn replace<'a>(files: impl IntoIterator<Item = (Temporary, &'a Path)>) -> Result<(), (usize, io::Error)> {
    let mut live = live();
    let mut failed = None;
    // Dropped after the lock is released: a drop takes it.
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

/// Removes every temporary file, then calls `end`. Nobody makes or renames one in between. `failed` hears of each file that
/// cannot be removed.
pub fn remove_all(failed: impl Fn(&Path, &io::Error), end: impl FnOnce()) {
    let live = live();
    remove(&live, failed);
    end();
}

/// As [`remove_all`], in a panic: the thread that holds the list may be the one that panics, so this does not wait for it.
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
