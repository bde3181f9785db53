//! The folder that the private servers live in, and the account that they run as.
//!
//! Postgres refuses to run as root. Run as root, the servers therefore drop to `postgres` or `nobody`, and the folder
//! stands where that account can reach it: root's home is closed to everybody else.

use std::env;
use std::fs::{self, DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{AccessFlags, User, access, geteuid, mkdtemp};

use super::error::StartServiceError;
use super::lock::{FolderLock, LOCK_FILE, is_abandoned};
use super::{postgres, redis};

/// Every fresh folder's name begins so; the rest is mkdtemp's.
const FRESH_PREFIX: &str = "holdfast-test-";

/// An unprivileged account of this machine.
#[derive(Debug, Clone)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
}

/// A locked folder for private servers. Only one process at a time has it; dropping it lets the next one in.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    account: Option<Account>,
    removed_at_end: bool,
    lock: FolderLock,
}

impl DataFolder {
    /// Makes or reopens the folder at `path`, which keeps its data for the next start. Fails when another process has
    /// it, and when it exists and holds something that is not ours.
    pub fn open(path: &Path) -> Result<Self, StartServiceError> {
        let account = account_to_drop_to()?;
        let is_ours = path.join(LOCK_FILE).exists();
        let holds_anything = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
        if holds_anything && !is_ours {
            return Err(StartServiceError::NotOurs { folder: path.to_owned(), marker: LOCK_FILE });
        }
        if !path.exists() {
            // Looked at before anything is made: a refusal leaves no empty folder behind.
            if let Some(existing) = path.ancestors().find(|ancestor| ancestor.exists()) {
                must_be_reachable(existing, account.as_ref())?;
            }
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(StartServiceError::io("cannot make", parent))?;
            }
            DirBuilder::new().mode(0o700).create(path).map_err(StartServiceError::io("cannot make", path))?;
        }
        Self::lock(path, account, false)
    }

    /// Makes a fresh folder in the temp folder, which is removed when it is dropped. Folders that killed processes
    /// left behind are removed on the way.
    pub fn fresh() -> Result<Self, StartServiceError> {
        let account = account_to_drop_to()?;
        let temp = env::temp_dir();
        // A user's private temp folder may be closed to the account that root drops to.
        let parent = match &account {
            Some(account) if first_closed_folder(&temp, account).is_some() => PathBuf::from("/tmp"),
            _ => temp,
        };
        remove_abandoned(&parent, account.as_ref());
        let template = parent.join(format!("{FRESH_PREFIX}XXXXXX"));
        let path = mkdtemp(&template)
            .map_err(|errno| StartServiceError::io("cannot make a folder like", &template)(errno.into()))?;
        Self::lock(&path, account, true)
    }

    fn lock(path: &Path, account: Option<Account>, removed_at_end: bool) -> Result<Self, StartServiceError> {
        let path = path.canonicalize().map_err(StartServiceError::io("cannot find", path))?;
        if let Some(parent) = path.parent() {
            must_be_reachable(parent, account.as_ref())?;
        }
        let lock = FolderLock::take(&path)?;
        let folder = Self { path, account, removed_at_end, lock };
        folder.give_to_account(&folder.path)?;
        Ok(folder)
    }

    /// The folder's absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The account that the servers drop to; `None` when not run as root.
    pub fn account_name(&self) -> Option<&str> {
        self.account.as_ref().map(|account| account.name.as_str())
    }

    /// Sets what a refused second start is told about this one.
    pub(super) fn say_what_runs(&self, what: &str) -> Result<(), StartServiceError> {
        self.lock.write_holder(what)
    }

    /// Makes `command` run as the account, in this folder, with messages in English.
    pub(super) fn run_here(&self, command: &mut Command) {
        command.current_dir(&self.path).env("LC_ALL", "C").env("TZ", "UTC");
        if let Some(account) = &self.account {
            command.uid(account.uid).gid(account.gid).env("HOME", &self.path);
        }
    }

    /// Makes the subfolder `name` with mode 0700, owned by the account.
    pub(super) fn make_subfolder(&self, name: &str) -> Result<PathBuf, StartServiceError> {
        let path = self.path.join(name);
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&path)
            .map_err(StartServiceError::io("cannot make", &path))?;
        self.give_to_account(&path)?;
        Ok(path)
    }

    /// Makes the account the owner of `path`, closed to everybody else.
    pub(super) fn give_to_account(&self, path: &Path) -> Result<(), StartServiceError> {
        let mode = if path.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(StartServiceError::io("cannot close to others", path))?;
        match &self.account {
            Some(account) => chown(path, Some(account.uid), Some(account.gid))
                .map_err(StartServiceError::io("cannot give away", path)),
            None => Ok(()),
        }
    }
}

impl Drop for DataFolder {
    fn drop(&mut self) {
        if self.removed_at_end {
            // What cannot be removed now is removed by a later fresh folder.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Where `holdfast dev` keeps its data unless told otherwise: `.holdfast` in `checkout` (git-ignored); for root a folder
/// under `/var/lib` named after the checkout, or under the temp folder where `/var/lib` cannot be written.
pub fn default_data_dir(checkout: &Path) -> PathBuf {
    if !geteuid().is_root() {
        return checkout.join(".holdfast");
    }
    let var_lib = PathBuf::from("/var/lib");
    let parent = if access(&var_lib, AccessFlags::W_OK).is_ok() { var_lib } else { env::temp_dir() };
    parent.join(format!("holdfast{}", checkout.to_string_lossy().replace('/', "-")))
}

/// Removes a data folder with all that is in it; `false` if there was none. Fails while servers run in it, and when it
/// is not a data folder of ours.
pub fn remove_data_dir(path: &Path) -> Result<bool, StartServiceError> {
    if !path.exists() {
        return Ok(false);
    }
    if !path.join(LOCK_FILE).exists() {
        return Err(StartServiceError::NotOurs { folder: path.to_owned(), marker: LOCK_FILE });
    }
    let path = path.canonicalize().map_err(StartServiceError::io("cannot find", path))?;
    let _lock = FolderLock::take(&path)?;
    postgres::end_orphan_in(&path)?;
    redis::end_orphan_in(&path)?;
    fs::remove_dir_all(&path).map_err(StartServiceError::io("cannot remove", &path))?;
    Ok(true)
}

fn account_to_drop_to() -> Result<Option<Account>, StartServiceError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    ["postgres", "nobody"]
        .into_iter()
        .find_map(|name| User::from_name(name).ok().flatten())
        .map(|user| Some(Account { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() }))
        .ok_or(StartServiceError::NoAccount)
}

fn must_be_reachable(folder: &Path, account: Option<&Account>) -> Result<(), StartServiceError> {
    let Some(account) = account else { return Ok(()) };
    match first_closed_folder(folder, account) {
        Some(blocked_at) => Err(StartServiceError::Unreachable { account: account.name.clone(), blocked_at }),
        None => Ok(()),
    }
}

/// The first folder on the way from the root to `path` that shuts `account` out.
fn first_closed_folder(path: &Path, account: &Account) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let mut ancestors: Vec<&Path> = path.ancestors().collect();
    ancestors.reverse();
    ancestors
        .into_iter()
        .find(|folder| fs::metadata(folder).is_ok_and(|metadata| !may_enter(&metadata, account)))
        .map(Path::to_owned)
}

fn may_enter(folder: &Metadata, account: &Account) -> bool {
    let wanted = if folder.uid() == account.uid {
        0o100
    } else if folder.gid() == account.gid {
        0o010
    } else {
        0o001
    };
    folder.mode() & wanted != 0
}

/// Removes the fresh folders that killed processes left in `parent`. Only folders of our own accounts are looked at:
/// the temp folder is everybody's.
fn remove_abandoned(parent: &Path, account: Option<&Account>) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        let is_fresh = entry.file_name().to_string_lossy().starts_with(FRESH_PREFIX);
        let is_own_folder = fs::symlink_metadata(&path).is_ok_and(|metadata| {
            let own = metadata.uid() == geteuid().as_raw() || account.is_some_and(|it| it.uid == metadata.uid());
            metadata.is_dir() && own
        });
        if is_fresh && is_own_folder && is_abandoned(&path) {
            // Its servers may still be ending: then the next fresh folder tries again.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_ours_is_never_removed_or_used() {
        let path = env::temp_dir().join(format!("holdfast-not-ours-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("precious"), "data").unwrap();
        let removed = remove_data_dir(&path);
        let opened = DataFolder::open(&path);
        let kept = fs::read_to_string(path.join("precious")).unwrap();
        fs::remove_dir_all(&path).unwrap();
        assert!(matches!(removed, Err(StartServiceError::NotOurs { .. })), "{removed:?}");
        assert!(matches!(opened, Err(StartServiceError::NotOurs { .. })), "{opened:?}");
        assert_eq!(kept, "data");
    }

    #[test]
    fn a_folder_closed_to_the_account_is_named() {
        let path = env::temp_dir().join(format!("holdfast-closed-{}", std::process::id()));
        fs::create_dir_all(path.join("inside")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let stranger = Account { name: "stranger".to_owned(), uid: 4_000_001, gid: 4_000_001 };
        let closed = first_closed_folder(&path.join("inside"), &stranger);
        let canonical = path.canonicalize().unwrap();
        fs::remove_dir_all(&path).unwrap();
        assert_eq!(closed, Some(canonical));
    }
}
