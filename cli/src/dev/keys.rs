//! The API keys of `dev up`. The engine keeps only hashes, so the keys themselves lie in the data folder, readable by
//! nobody else, for the next start to show them again.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::children::Invocation;
use super::error::DevError;

/// One key per scope.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Keys {
    /// Sets up venues and events.
    pub(super) admin: String,
    /// Reserves and pays for any buyer.
    pub(super) sales: String,
    /// Opens the operators' listener.
    pub(super) ops: String,
}

impl Keys {
    /// The keys of an earlier start; `None` if there are none or the file is damaged (then new ones are made).
    pub(super) fn load(path: &Path) -> Option<Self> {
        serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
    }

    /// Makes a key per scope with `holdfast keys create` and keeps them at `path`.
    pub(super) fn create(path: &Path, database_url: &str) -> Result<Self, DevError> {
        let make = |scope: &str| {
            let name = format!("dev up, {scope}");
            let output = Invocation::new(&["keys", "create", "--scope", scope, "--name", &name, "--json"])
                .env("DATABASE_URL", database_url)
                .output()?;
            let answer: Option<Value> = serde_json::from_str(&output).ok();
            let key = answer.as_ref().and_then(|it| it.get("key")).and_then(Value::as_str).map(str::to_owned);
            key.ok_or_else(|| DevError::Child {
                command: "keys create --json".to_owned(),
                outcome: "printed no `key`".to_owned(),
                output,
            })
        };
        let keys = Self { admin: make("admin")?, sales: make("sales")?, ops: make("ops")? };
        keys.store(path).map_err(DevError::io(format!("keep the keys in {}", path.display())))?;
        Ok(keys)
    }

    fn store(&self, path: &Path) -> io::Result<()> {
        // Written anew with its mode from the first byte on, never opened to others in between.
        if path.exists() {
            fs::remove_file(path)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(serde_json::to_string_pretty(self)?.as_bytes())
    }
}
