//! Files in the making: whatever ends the process, bar a kill or a crash, they do not stay behind.
//!
//! A list holds the path of every temporary file. Whoever makes, renames or removes one holds the list's lock, and so
//! does the thread of [`signals`](crate::signals) from the moment when it removes them until the process ends. So a
//! signal finds all of them, and either none or all outputs of a call in place.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
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
    /// Makes an empty file in `folder`, with the mode and, where the system permits it, the owner of `existing`. Without
    /// it, they are those of any new file.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn new(folder: &Path, existing: Option<&Metadata>) -> io::Result<Temporary> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".elsa-").suffix(".part");
        // Before the process's mask. The default is for secrets.
        let mode = existing.map_or(0o666, |existing| existing.mode() & 0o777);
        builder.permissions(Permissions::from_mode(mode));
        let mut live = live();
        let file = builder.tempfile_in(folder)?;
        live.push(file.path().to_path_buf());
        drop(live);
        let made = Temporary { file: Some(file) };
        if let (Some(existing), Some(file)) = (existing, made.get()) {
            let owned = fchown(file, Some(existing.uid()), Some(existing.gid()))
                .or_else(|_| fchown(file, None, Some(existing.gid())));
            if let Err(e) = owned {
                log::debug!("{}: the owner is not kept: {e}", folder.display());
            }
            let now = file.metadata()?;
            // The bits that act as somebody else go with the owner.
            let same = (now.uid(), now.gid()) == (existing.uid(), existing.gid());
            let mask = if same { 0o7777 } else { 0o777 };
            file.set_permissions(Permissions::from_mode(existing.mode() & mask))?;
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
        let file = self.get().ok_or(io::ErrorKind::NotFound)?;
        write(file)?;
        file.sync_all()
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

/// Removes every temporary file, then calls `end`. Nobody makes or renames one in between.
pub fn remove_all(end: impl FnOnce()) {
    let live = live();
    remove(&live);
    end();
}

fn remove(live: &[PathBuf]) {
    for path in live {
        if let Err(e) = std::fs::remove_file(path)
            && e.kind() != io::ErrorKind::NotFound
        {
            eprintln!("elsa: {}: cannot be removed: {e}", path.display());
        }
    }
}

/// Status of a program whose main thread panics.
const PANICKED: i32 = 101;

/// Has a panic end the process as one of the main thread does, without the temporary files, where the program is built
/// so that nothing unwinds: drops, which remove the files elsewhere, do not run there.
pub fn watch_panics() {
    if cfg!(not(panic = "abort")) {
        return;
    }
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        // Whoever holds the list may be the thread that panics, so nobody waits for it.
        let live = match LIVE.try_lock() {
            Ok(live) => Some(live),
            Err(TryLockError::Poisoned(e)) => Some(e.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        remove(live.as_deref().map_or(&[], Vec::as_slice));
        std::process::exit(PANICKED);
    }));
}
