//! The Postgres and Redis that `dev up` works on: those named by DATABASE_URL and REDIS_URL, else private ones.

use std::env;
use std::path::{Path, PathBuf};

use super::PortArgs;
use super::error::{DevError, say};
use crate::services::{DataFolder, Services, ServicesConfig, StartServiceError};

/// The stores of `dev up`, and the locked folder where it keeps its logs and keys.
#[derive(Debug)]
pub(super) enum Stores {
    /// Somebody else's servers.
    Given { database_url: String, redis_url: String, folder: DataFolder },
    /// Our children.
    Private(Box<Services>),
}

impl Stores {
    /// Takes the servers that the environment names if it names both; else starts private ones in `data_dir`.
    pub(super) fn find(data_dir: PathBuf, ports: &PortArgs) -> Result<Self, DevError> {
        let named = |name| env::var(name).ok().filter(|url| !url.is_empty());
        if let (Some(database_url), Some(redis_url)) = (named("DATABASE_URL"), named("REDIS_URL")) {
            return Ok(Self::Given { database_url, redis_url, folder: DataFolder::open(&data_dir)? });
        }
        let mut config = ServicesConfig::durable(data_dir);
        config.postgres_port = ports.pg_port;
        config.redis_port = ports.redis_port;
        Ok(Self::Private(Box::new(Services::start(config)?)))
    }

    pub(super) fn database_url(&self) -> &str {
        match self {
            Self::Given { database_url, .. } => database_url,
            Self::Private(services) => services.database_url(),
        }
    }

    pub(super) fn redis_url(&self) -> &str {
        match self {
            Self::Given { redis_url, .. } => redis_url,
            Self::Private(services) => services.redis_url(),
        }
    }

    /// The folder of the logs and keys.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Given { folder, .. } => folder.path(),
            Self::Private(services) => services.folder().path(),
        }
    }

    /// Looks once: a private server that has died is started again on its port.
    pub(super) fn tend(&mut self) -> Result<(), StartServiceError> {
        let Self::Private(services) = self else { return Ok(()) };
        if !services.postgres().is_running() {
            say("Postgres ended; it starts again");
            services.postgres().restart()?;
        }
        if !services.redis().is_running() {
            say("Redis ended; it starts again");
            services.redis().restart()?;
        }
        Ok(())
    }

    /// Stops private servers.
    pub(super) fn stop(self) -> Result<(), StartServiceError> {
        match self {
            Self::Given { .. } => Ok(()),
            Self::Private(services) => services.stop(),
        }
    }
}
