//! Private Postgres and Redis servers, run from installed binaries without Docker and without root's help.
//!
//! A [`Services`] is one Postgres and one Redis on free ports of 127.0.0.1, in one folder that only one process at a
//! time may use. Both servers die with the process that started them, even by `kill -9`. Two modes: [`Mode::Durable`]
//! loses no acknowledged write, [`Mode::Test`] is fast and forgetful.
//!
//! Starting blocks for some 200 ms (2 s the first time, for initdb); it needs no runtime and may be called from any
//! thread. Tests that must hurt a server of their own start a [`PostgresServer`] or [`RedisServer`] alone and `kill`,
//! `pause`, `resume` or `restart` it.

mod binaries;
mod error;
mod folder;
mod lock;
mod postgres;
mod process;
mod redis;

use std::path::PathBuf;
use std::sync::Arc;

pub use binaries::{RedisBinary, find_postgres, find_redis};
pub use error::StartServiceError;
pub use folder::{DataFolder, default_data_dir, remove_data_dir};
pub use postgres::{PostgresConfig, PostgresServer};
pub use process::SupervisedProcess;
pub(crate) use process::{log_tail, log_to};
pub use redis::{RedisConfig, RedisServer};

/// What a private server promises about its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Every acknowledged write survives a crash (Redis: but for the last second).
    Durable,
    /// No fsync, no append-only file: fast, and worth nothing after a crash of the machine.
    Test,
}

/// Where and how [`Services`] run. `ServicesConfig::test()` and `ServicesConfig::durable(dir)` are the usual two.
#[derive(Debug, Clone)]
pub struct ServicesConfig {
    /// What the servers promise about their data.
    pub mode: Mode,
    /// The folder of both servers, whose data the next start finds; `None` makes a fresh one in the temp folder, which
    /// is removed at the end.
    pub data_dir: Option<PathBuf>,
    /// Postgres's port on 127.0.0.1; `None` takes a free one.
    pub postgres_port: Option<u16>,
    /// Redis's port on 127.0.0.1; `None` takes a free one.
    pub redis_port: Option<u16>,
}

impl ServicesConfig {
    /// Fast, forgetful servers in a fresh folder, on free ports.
    pub fn test() -> Self {
        Self { mode: Mode::Test, data_dir: None, postgres_port: None, redis_port: None }
    }

    /// Servers that keep their data in `data_dir`, on free ports.
    pub fn durable(data_dir: PathBuf) -> Self {
        Self { mode: Mode::Durable, data_dir: Some(data_dir), postgres_port: None, redis_port: None }
    }
}

/// A running Postgres and a running Redis in one locked folder. Dropping it stops both.
#[derive(Debug)]
pub struct Services {
    redis: RedisServer,
    postgres: PostgresServer,
    folder: Arc<DataFolder>,
}

impl Services {
    /// Starts both servers and returns once each has answered. Fails with [`StartServiceError::AlreadyRunning`] when
    /// another process runs servers in the same folder, with [`StartServiceError::NotInstalled`] when a binary is
    /// missing, and with the server's last log lines when one does not come up.
    pub fn start(config: ServicesConfig) -> Result<Self, StartServiceError> {
        // Both are looked for first, so that a machine without Redis does not wait for initdb to be told so.
        find_postgres()?;
        find_redis()?;
        let folder = Arc::new(match &config.data_dir {
            Some(path) => DataFolder::open(path)?,
            None => DataFolder::fresh()?,
        });
        let redis = RedisServer::start_in(
            Arc::clone(&folder),
            RedisConfig { mode: config.mode, port: config.redis_port, ..RedisConfig::test() },
        )?;
        let postgres = PostgresServer::start_in(
            Arc::clone(&folder),
            PostgresConfig { mode: config.mode, port: config.postgres_port, ..PostgresConfig::test() },
        )?;
        folder.say_what_runs(&format!("postgres 127.0.0.1:{}, redis 127.0.0.1:{}", postgres.port(), redis.port()))?;
        Ok(Self { redis, postgres, folder })
    }

    /// `postgres://user:password@127.0.0.1:port/holdfast`; the user is the cluster's superuser.
    pub fn database_url(&self) -> &str {
        self.postgres.url()
    }

    /// `redis://127.0.0.1:port`.
    pub fn redis_url(&self) -> &str {
        self.redis.url()
    }

    /// The Postgres server, to restart or to hurt.
    pub fn postgres(&mut self) -> &mut PostgresServer {
        &mut self.postgres
    }

    /// The Redis server, to restart or to hurt.
    pub fn redis(&mut self) -> &mut RedisServer {
        &mut self.redis
    }

    /// The folder that both servers live in.
    pub fn folder(&self) -> &DataFolder {
        &self.folder
    }

    /// Stops both servers cleanly, each within 30 s, and removes a fresh folder.
    pub fn stop(mut self) -> Result<(), StartServiceError> {
        let redis = self.redis.stop();
        self.postgres.stop()?;
        redis
    }
}
