//! Where the servers' binaries are installed.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::StartServiceError;

const POSTGRES_REMEDY: &str = "Type `apt-get install postgresql` (Debian, Ubuntu) or `brew install postgresql@17`, or \
     name the folder of `initdb` and `postgres` in HOLDFAST_PG_BIN";
const REDIS_REMEDY: &str = "Type `apt-get install redis-server` (Debian, Ubuntu) or `brew install redis`, or name the \
     binary in HOLDFAST_REDIS_SERVER";

/// Homebrew's folders on Apple silicon, on Intel and on Linux.
const BREW_PREFIXES: [&str; 3] = ["/opt/homebrew", "/usr/local", "/home/linuxbrew/.linuxbrew"];

/// A Redis or Valkey server binary and its major version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisBinary {
    /// The executable.
    pub path: PathBuf,
    /// 7 for Redis 7.0.15; 0 when the binary would not tell.
    pub major: u32,
}

/// Finds the folder that holds `initdb` and `postgres`: `HOLDFAST_PG_BIN`, else the newest of
/// `/usr/lib/postgresql/*/bin` (Debian keeps initdb off PATH), else the newest of Homebrew's, else PATH.
pub fn find_postgres() -> Result<PathBuf, StartServiceError> {
    let missing =
        |looked_in: String| StartServiceError::NotInstalled { program: "postgres", looked_in, remedy: POSTGRES_REMEDY };
    if let Some(named) = env::var_os("HOLDFAST_PG_BIN").filter(|value| !value.is_empty()) {
        let folder = PathBuf::from(named);
        let found = holds_postgres(&folder);
        return if found { Ok(folder) } else { Err(missing(format!("HOLDFAST_PG_BIN={}", folder.display()))) };
    }
    installed_postgres().next().ok_or_else(|| missing("/usr/lib/postgresql/*/bin, Homebrew's folders, PATH".to_owned()))
}

/// Finds the binaries of one major version, for a cluster that was made with it: a newer Postgres cannot read it. Where
/// that version is gone, [`find_postgres`]'s answer is given, whose refusal says what does not fit.
pub(super) fn find_postgres_of_version(major: &str) -> Result<PathBuf, StartServiceError> {
    let newest = find_postgres()?;
    let fits = |folder: &PathBuf| {
        let said = Command::new(folder.join("postgres")).arg("--version").output();
        // "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)"
        said.is_ok_and(|output| {
            let said = String::from_utf8_lossy(&output.stdout);
            let version = said.split_whitespace().nth(2).unwrap_or_default();
            version.split(['.', 'b', 'r', 'd']).next() == Some(major)
        })
    };
    if fits(&newest) {
        return Ok(newest);
    }
    let older = installed_postgres().find(fits);
    Ok(older.unwrap_or(newest))
}

fn installed_postgres() -> impl Iterator<Item = PathBuf> {
    let mut candidates = newest_first(Path::new("/usr/lib/postgresql"), "");
    for prefix in BREW_PREFIXES {
        candidates.extend(newest_first(&Path::new(prefix).join("opt"), "postgresql@"));
        candidates.push(Path::new(prefix).join("opt/postgresql/bin"));
    }
    candidates.extend(path_folders());
    candidates.into_iter().filter(|folder| holds_postgres(folder))
}

/// Finds a Redis server: `HOLDFAST_REDIS_SERVER`, else `redis-server`, else `valkey-server`, on PATH and in the folders
/// that PATH often lacks.
pub fn find_redis() -> Result<RedisBinary, StartServiceError> {
    let missing = |looked_in: String| StartServiceError::NotInstalled {
        program: "redis-server",
        looked_in,
        remedy: REDIS_REMEDY,
    };
    if let Some(named) = env::var_os("HOLDFAST_REDIS_SERVER").filter(|value| !value.is_empty()) {
        let path = PathBuf::from(named);
        let looked_in = format!("HOLDFAST_REDIS_SERVER={}", path.display());
        return if path.is_file() { Ok(with_version(path)) } else { Err(missing(looked_in)) };
    }
    let mut folders: Vec<PathBuf> = path_folders();
    folders.extend(["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from));
    folders.extend(BREW_PREFIXES.map(|prefix| Path::new(prefix).join("bin")));
    ["redis-server", "valkey-server"]
        .into_iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file())
        .map(with_version)
        .ok_or_else(|| missing("PATH, /usr/bin, Homebrew's folders; also for valkey-server".to_owned()))
}

fn holds_postgres(folder: &Path) -> bool {
    folder.join("initdb").is_file() && folder.join("postgres").is_file()
}

fn path_folders() -> Vec<PathBuf> {
    env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default()
}

/// The `bin` folders of the versions installed side by side under `parent`, as in `parent/15/bin`, highest first.
fn newest_first(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let mut versions: Vec<(u32, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix(prefix)?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().map(|(_, folder)| folder).collect()
}

fn with_version(path: PathBuf) -> RedisBinary {
    let said = Command::new(&path).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let major = major_version(&String::from_utf8_lossy(&said)).unwrap_or(0);
    RedisBinary { path, major }
}

/// Reads `v=7.0.15` out of "Redis server v=7.0.15 sha=…".
fn major_version(said: &str) -> Option<u32> {
    let (_, version) = said.split_once("v=")?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_installed_version_comes_first() {
        let parent = env::temp_dir().join(format!("holdfast-binaries-{}", std::process::id()));
        for version in ["9", "15", "16", "common", "x17"] {
            fs::create_dir_all(parent.join(version).join("bin")).unwrap();
        }
        let found = newest_first(&parent, "");
        fs::remove_dir_all(&parent).unwrap();
        assert_eq!(found, ["16", "15", "9"].map(|version| parent.join(version).join("bin")));
    }

    #[test]
    fn a_redis_or_valkey_tells_its_major_version() {
        assert_eq!(major_version("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64"), Some(7));
        assert_eq!(major_version("Valkey server v=8.1.1 sha=0:0 malloc=libc"), Some(8));
        assert_eq!(major_version("something else"), None);
    }
}
