//! Which servers the tests use: those of DATABASE_URL and REDIS_URL (`./dev test` starts them once for all tests), else
//! private ones that this process starts for itself.

use std::sync::OnceLock;

use holdfast::services::{Services, ServicesConfig};

/// A Postgres in which databases may be made, and a Redis in which a prefix is enough.
#[derive(Debug)]
pub struct Servers {
    /// `postgres://…/database`, of a role that may create databases.
    pub database_url: String,
    /// `redis://…`
    pub redis_url: String,
    /// Ours alone: they die with this process.
    _private: Option<Services>,
}

/// The servers, started on the first call where the environment names none.
pub fn servers() -> &'static Servers {
    static SERVERS: OnceLock<Servers> = OnceLock::new();
    SERVERS.get_or_init(|| {
        let named = |name| std::env::var(name).ok().filter(|url| !url.is_empty());
        if let (Some(database_url), Some(redis_url)) = (named("DATABASE_URL"), named("REDIS_URL")) {
            return Servers { database_url, redis_url, _private: None };
        }
        let services = Services::start(ServicesConfig::test()).expect("private servers start");
        let (database_url, redis_url) = (services.database_url().to_owned(), services.redis_url().to_owned());
        Servers { database_url, redis_url, _private: Some(services) }
    })
}
