//! A copy of the tracked files, in which one fault at a time is built and run.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use domain::runtime::clock::Clock;
use domain::store::pg::Pg;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Executor as _};

use super::{Catcher, Mutation};

/// The seed of the catchers' runs.
const SEED: &str = "1";

/// Why mutations cannot be tried.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A file or a program is missing.
    #[error("{what}")]
    Io {
        /// What was to be done.
        what: String,
        /// Why it was not.
        #[source]
        source: io::Error,
    },
    /// The source has changed under a mutation.
    #[error("the place of {0} is not in the source exactly once")]
    Lost(&'static str),
    /// The database that queries are checked against could not be made.
    #[error("Postgres cannot be prepared for checking queries")]
    Database(#[source] sqlx::Error),
    /// The same, by the migrations.
    #[error("the migrations do not run")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// The unchanged copy does not build, or its run finds something.
    #[error("without any mutation: {0}")]
    Control(String),
}

/// What became of a mutation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It was noticed: by what.
    Caught(String),
    /// It was not.
    Survived,
    /// It does not build: then it shows nothing.
    Unbuilt(String),
}

/// The copy.
pub struct Bench {
    root: PathBuf,
    tree: PathBuf,
    target: PathBuf,
    database_url: String,
}

fn at<T>(what: impl Into<String>, result: io::Result<T>) -> Result<T, BenchError> {
    result.map_err(|source| BenchError::Io { what: what.into(), source })
}

impl Bench {
    /// Copies the tracked files of `root` as they are now under `target`, and makes the database that changed queries
    /// are checked against.
    ///
    /// # Errors
    /// [`BenchError`].
    pub async fn prepare(root: &Path, target: &Path, server: &str) -> Result<Self, BenchError> {
        let tree = target.join("mutations/tree");
        let list = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
        let list = at("git lists the tracked files", list)?.stdout;
        for path in String::from_utf8_lossy(&list).split('\0').filter(|path| !path.is_empty()) {
            // A file that is tracked and deleted is no part of the copy.
            if let Ok(text) = std::fs::read(root.join(path)) {
                write_if_other(&tree.join(path), &text)?;
            }
        }
        let database_url = make_database(server).await.map_err(BenchError::Database)?;
        let pg = Pg::connect(&database_url, 1, 60_000, Clock::default()).map_err(BenchError::Database)?;
        pg.migrate().await?;
        pg.pool().close().await;
        Ok(Self { root: root.to_owned(), tree, target: target.to_owned(), database_url })
    }

    /// Builds and runs the copy without any mutation.
    ///
    /// # Errors
    /// [`BenchError::Control`] where that finds something.
    pub fn control(&self, catchers: &[Catcher]) -> Result<(), BenchError> {
        for catcher in catchers {
            match self.judge(*catcher)? {
                Verdict::Survived => {}
                Verdict::Caught(what) | Verdict::Unbuilt(what) => return Err(BenchError::Control(what)),
            }
        }
        Ok(())
    }

    /// Builds the copy with a mutation in it and runs `catcher` on it.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn try_mutation(&self, mutation: &Mutation, catcher: Catcher) -> Result<Verdict, BenchError> {
        let file = self.tree.join(mutation.file);
        let text = at(mutation.file, std::fs::read_to_string(self.root.join(mutation.file)))?;
        let mutated = mutation.apply(&text).ok_or(BenchError::Lost(mutation.name))?;
        at(mutation.file, std::fs::write(&file, mutated))?;
        let verdict = self.judge(catcher);
        at(mutation.file, std::fs::write(&file, text))?;
        verdict
    }

    fn judge(&self, catcher: Catcher) -> Result<Verdict, BenchError> {
        // With the whole workspace the dependencies have the features that they were built with.
        let mut build = Command::new("cargo");
        build.args(["build", "--quiet", "--locked", "--workspace", "--bin", catcher.binary()]).current_dir(&self.tree);
        build
            .env("CARGO_TARGET_DIR", &self.target)
            .env("SQLX_OFFLINE", "false")
            .env("DATABASE_URL", &self.database_url);
        let built = at("cargo builds", build.output())?;
        if !built.status.success() {
            return Ok(Verdict::Unbuilt(last_lines(&built.stderr)));
        }
        let mut run = Command::new(self.target.join("debug").join(catcher.binary()));
        run.args([SEED, &catcher.histories().to_string()]);
        let ran = at(catcher.binary(), run.output())?;
        Ok(if ran.status.success() { Verdict::Survived } else { Verdict::Caught(finding(&ran)) })
    }
}

fn write_if_other(path: &Path, text: &[u8]) -> Result<(), BenchError> {
    // What is as it was keeps its time: cargo builds only what has changed.
    if std::fs::read(path).is_ok_and(|known| known == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        at(folder.display().to_string(), std::fs::create_dir_all(folder))?;
    }
    at(path.display().to_string(), std::fs::write(path, text))
}

async fn make_database(server: &str) -> Result<String, sqlx::Error> {
    let options: PgConnectOptions = server.parse()?;
    let mut admin = options.connect().await?;
    admin.execute("DROP DATABASE IF EXISTS holdfast_mutations WITH (FORCE)").await?;
    admin.execute("CREATE DATABASE holdfast_mutations").await?;
    Ok(options.database("holdfast_mutations").to_url_lossy().to_string())
}

fn last_lines(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

/// In a line: what was found, and in which history.
fn finding(ran: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    let told = if stdout.trim().is_empty() { stderr } else { stdout };
    let first = told.lines().next().unwrap_or_default();
    let second = told.lines().find(|line| line.starts_with(['I', 'r', 'c', 'p', 'b', 't', 'd']) && *line != first);
    let last = told.lines().rev().find(|line| !line.starts_with("again")).unwrap_or_default();
    let what: String = second.unwrap_or(last).chars().take(160).collect();
    format!("{} {what}", first.trim_end_matches(':'))
}
