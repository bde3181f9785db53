//! One lock file per data folder: whoever holds it may run servers there.
//!
//! The lock is the kernel's (`flock`), so it goes with its holder however that ends; the text in the file is only for
//! the person whose second start is refused.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::error::StartServiceError;

/// The lock file's name. Its presence also marks a folder as ours, which `remove_data_dir` insists on.
pub(super) const LOCK_FILE: &str = "holdfast.lock";

/// The held lock of a data folder; dropping it lets the next process in.
#[derive(Debug)]
pub(super) struct FolderLock {
    file: Flock<File>,
    path: PathBuf,
}

impl FolderLock {
    /// Takes the lock of `folder`, or says who has it.
    pub(super) fn take(folder: &Path) -> Result<Self, StartServiceError> {
        let path = folder.join(LOCK_FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(StartServiceError::io("cannot open the lock file", &path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => {
                let lock = Self { file, path };
                lock.write_holder("starting")?;
                Ok(lock)
            }
            Err((mut file, Errno::EWOULDBLOCK)) => {
                let mut holder = String::new();
                // An unreadable note only makes the refusal less helpful.
                let _ = file.read_to_string(&mut holder);
                Err(StartServiceError::AlreadyRunning { folder: folder.to_owned(), holder: holder.trim().to_owned() })
            }
            Err((_, errno)) => Err(StartServiceError::io("cannot lock", &path)(errno.into())),
        }
    }

    /// Replaces the note that a refused second start reads.
    pub(super) fn write_holder(&self, what_runs: &str) -> Result<(), StartServiceError> {
        let note = format!("process {}, {what_runs}\n", std::process::id());
        let mut file: &File = &self.file;
        file.set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| file.write_all(note.as_bytes()))
            .map_err(StartServiceError::io("cannot write the lock file", &self.path))
    }
}

/// Whether `folder` has been left behind by a process that is gone: its lock file names a holder, and nobody holds it.
pub(super) fn is_abandoned(folder: &Path) -> bool {
    let path = folder.join(LOCK_FILE);
    // A file without a note belongs to a process that is just about to take the lock.
    if fs::metadata(&path).map_or(true, |metadata| metadata.len() == 0) {
        return false;
    }
    let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { return false };
    Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok()
}
