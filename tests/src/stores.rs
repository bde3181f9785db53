//! One test's stores: a database of its own, copied from a migrated template, and a Redis prefix of its own.

use std::fmt::Write as _;

use domain::flow::Stores;
use domain::flow::warm_up::{repair_missed, warm_up};
use domain::runtime::clock::{Clock, new_uuid};
use domain::runtime::settings::StoreSettings;
use domain::runtime::telemetry::{LogFormat, LogSettings, start_logging};
use domain::store::pg::{MIGRATOR, Pg};
use redis::aio::MultiplexedConnection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Executor as _};
use tokio::runtime::RuntimeFlavor;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::servers::servers;

/// Any number that nobody else takes: held while the template is made.
const TEMPLATE_LOCK: i64 = 0x686f_6c64_6661_7374;

/// One test's stores. Dropped, database and keys are gone.
pub struct TestStores {
    /// As one process uses them.
    pub stores: Stores,
    /// What they were connected by; [`TestStores::another_process`] uses them again.
    pub settings: StoreSettings,
    /// Moves time for all of them.
    pub clock: Clock,
    /// The auditor's own way into Postgres.
    pub sql: PgPool,
    database: String,
}

impl TestStores {
    /// Stores on the shared servers. What they do is logged where `HOLDFAST_TEST_LOG` says what (`debug`, `workers=debug`).
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Stores with other settings than the usual; the database is made before they are asked.
    pub async fn start_with(change: impl FnOnce(&mut StoreSettings)) -> Self {
        if let Ok(log) = std::env::var("HOLDFAST_TEST_LOG") {
            start_logging(&LogSettings { log, log_format: LogFormat::Text });
        }
        let nonce = new_uuid().simple().to_string();
        let nonce = &nonce[nonce.len() - 16..];
        let database = format!("holdfast_test_{nonce}");
        let database_url = make_database(&database).await;
        let mut settings = StoreSettings {
            database_url,
            redis_url: servers().redis_url.clone(),
            queue_redis_url: None,
            redis_prefix: format!("t-{nonce}:"),
            redis_cluster_tags: false,
            redis_configure: false,
            pg_connections: 8,
            hold_lanes: 4,
            pg_statement_ms: 4_000,
        };
        change(&mut settings);
        let clock = Clock::default();
        let stores = Stores::connect(&settings, clock.clone()).expect("the settings can be used");
        stores.claim_layout().await.expect("a fresh installation has no layout yet");
        let options: PgConnectOptions = settings.database_url.parse().unwrap();
        let sql = PgPoolOptions::new().max_connections(2).connect_lazy_with(options.application_name("auditor"));
        Self { stores, settings, clock, sql, database }
    }

    /// The same installation as another process would use it; time moves for both.
    pub fn another_process(&self) -> Stores {
        Stores::connect(&self.settings, self.clock.clone()).expect("the settings were used before")
    }

    /// The same installation as a process with other settings would use it.
    pub fn another_process_with(&self, change: impl FnOnce(&mut StoreSettings)) -> Stores {
        let mut settings = self.settings.clone();
        change(&mut settings);
        Stores::connect(&settings, self.clock.clone()).expect("the settings can be used")
    }

    /// The same installation as a process would use it that cannot reach Redis.
    pub fn a_process_without_redis(&self) -> Stores {
        // Nobody listens on port 1.
        self.another_process_with(|settings| settings.redis_url = "redis://127.0.0.1:1".to_owned())
    }

    /// A process that finds Redis lost and warms it up first: what was changed while Redis was away shows then.
    pub async fn another_process_after_a_loss(&self) -> Stores {
        let stores = self.another_process();
        warm_up(&stores).await.expect("Redis is rebuilt");
        stores
    }

    /// Lets the test's own process do what every API process does beside its requests: ask for a warm-up once Redis is
    /// back after changes that it missed. Until the guard is dropped.
    #[must_use]
    pub fn repair_as_an_api(&self) -> DropGuard {
        let shutdown = CancellationToken::new();
        tokio::spawn(repair_missed(self.stores.clone(), shutdown.clone()));
        shutdown.drop_guard()
    }

    /// The name of its database.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Moves time.
    pub fn advance(&self, by_ms: i64) {
        self.clock.advance(by_ms);
    }

    /// The auditor's own way into Redis.
    pub async fn redis(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.settings.redis_url.as_str()).unwrap();
        client.get_multiplexed_async_connection().await.expect("Redis answers the auditor")
    }

    /// A key of this installation.
    pub fn key(&self, rest: &str) -> String {
        format!("{}{rest}", self.settings.redis_prefix)
    }

    /// The deadline index's key: what belongs to the installation shares one slot of a cluster.
    pub fn deadlines_key(&self) -> String {
        let word = if self.settings.redis_cluster_tags { "{holdfast}" } else { "holdfast" };
        self.key(&format!("{word}:deadlines"))
    }

    /// Every key of this installation, sorted; the queues' too.
    pub async fn keys(&self) -> Vec<String> {
        keys_of(&self.settings).await
    }

    /// Loses all that Redis has of this installation, as FLUSHALL would.
    pub async fn lose_redis(&self) {
        remove_keys(&self.settings).await;
    }

    /// Counts rows by SQL of the test's own.
    pub async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.sql).await.unwrap()
    }
}

impl Drop for TestStores {
    fn drop(&mut self) {
        let (database, settings) = (self.database.clone(), self.settings.clone());
        let tidy = async move {
            let mut admin = admin().await;
            admin
                .execute(sqlx::AssertSqlSafe(format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)")))
                .await
                .unwrap();
            // A Redis of the test's own may be gone already, with all its keys.
            let shared = settings.redis_url.starts_with(&servers().redis_url);
            if shared {
                remove_keys(&settings).await;
            }
        };
        // A drop cannot wait for a future of the test's runtime; a thread of its own can.
        let tidied = std::thread::spawn(|| {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(tidy);
        });
        // Others go on meanwhile: the server waits for those that are just connecting, and they for this runtime.
        let is_tidy = match tokio::runtime::Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| tidied.join()).is_ok(),
            _ => tidied.join().is_ok(),
        };
        if !is_tidy && !std::thread::panicking() {
            panic!("the test's database or keys could not be removed");
        }
    }
}

async fn admin() -> PgConnection {
    let options: PgConnectOptions = servers().database_url.parse().expect("DATABASE_URL is a Postgres URL");
    options.connect().await.expect("Postgres answers")
}

fn url_of(database: &str) -> String {
    let options: PgConnectOptions = servers().database_url.parse().unwrap();
    options.database(database).to_url_lossy().to_string()
}

async fn make_database(database: &str) -> String {
    let mut admin = admin().await;
    let template = template(&mut admin).await;
    admin.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {database} TEMPLATE {template}"))).await.unwrap();
    url_of(database)
}

/// A migrated database to copy from, made once however many test processes ask. Its name says which migrations.
async fn template(admin: &mut PgConnection) -> String {
    let mut name = "holdfast_template_".to_owned();
    let hash = MIGRATOR
        .iter()
        .flat_map(|migration| migration.checksum.iter())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let _infallible = write!(name, "{hash:016x}");
    let exists = "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)";
    if sqlx::query_scalar(exists).bind(&name).fetch_one(&mut *admin).await.unwrap() {
        return name;
    }
    sqlx::query("SELECT pg_advisory_lock($1)").bind(TEMPLATE_LOCK).execute(&mut *admin).await.unwrap();
    let exists: bool = sqlx::query_scalar(exists).bind(&name).fetch_one(&mut *admin).await.unwrap();
    if !exists {
        // Under another name until it is whole: whoever finds the name finds all of it.
        let draft = format!("{name}_draft");
        admin.execute(sqlx::AssertSqlSafe(format!("DROP DATABASE IF EXISTS {draft} WITH (FORCE)"))).await.unwrap();
        admin.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {draft}"))).await.unwrap();
        let pg = Pg::connect(&url_of(&draft), 1, 60_000, Clock::default()).unwrap();
        pg.migrate().await.expect("the migrations run on an empty database");
        pg.pool().close().await;
        admin.execute(sqlx::AssertSqlSafe(format!("ALTER DATABASE {draft} RENAME TO {name}"))).await.unwrap();
    }
    sqlx::query("SELECT pg_advisory_unlock($1)").bind(TEMPLATE_LOCK).execute(&mut *admin).await.unwrap();
    name
}

async fn keys_of(settings: &StoreSettings) -> Vec<String> {
    let client = redis::Client::open(settings.redis_url.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    simulation::audit::keys_of(&mut connection, &settings.redis_prefix).await.expect("Redis answers")
}

async fn remove_keys(settings: &StoreSettings) {
    let keys = keys_of(settings).await;
    let client = redis::Client::open(settings.redis_url.as_str()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for chunk in keys.chunks(1_000) {
        let () = redis::cmd("UNLINK").arg(chunk).query_async(&mut connection).await.unwrap();
    }
}
