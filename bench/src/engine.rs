//! The engine under measurement: private stores, one api process, worker processes.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use domain::flow::Stores;
use domain::runtime::clock::Clock;
use domain::runtime::settings::StoreSettings;
use holdfast::services::{Mode, Services, ServicesConfig};
use serde_json::{Value, json};

use crate::client::{Connection, get, post};

/// In which Linux tells processor time, on every machine that this runs on.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Parser)]
struct StoreArgs {
    #[command(flatten)]
    stores: StoreSettings,
}

/// An event on sale.
pub struct Event {
    /// Its id.
    pub id: String,
    /// How many blocks it has, named 1, 2, …
    pub blocks: usize,
    /// Rows of ten seats in each.
    pub seats_per_block: usize,
}

/// The engine. Dropping it kills its processes.
pub struct Engine {
    api: Option<Child>,
    workers: Vec<Child>,
    services: Services,
    /// Where the API listens; empty while it does not run.
    pub addr: String,
    /// An admin key.
    pub key: String,
    venues: usize,
}

impl Drop for Engine {
    fn drop(&mut self) {
        for child in self.api.iter_mut().chain(&mut self.workers) {
            let _already_gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

fn holdfast() -> Result<PathBuf> {
    let binary = std::env::current_exe()?.with_file_name("holdfast");
    if !binary.exists() {
        bail!("{} is missing: run `cargo build --release` first", binary.display());
    }
    Ok(binary)
}

fn free_addr() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

impl Engine {
    /// Starts everything on free ports, with one worker.
    pub async fn start() -> Result<Self> {
        let mut engine = Self::prepare().await?;
        engine.start_worker()?;
        engine.start_api().await?;
        Ok(engine)
    }

    /// Starts the stores only.
    pub async fn prepare() -> Result<Self> {
        let services = Services::start(ServicesConfig { mode: Mode::Durable, ..ServicesConfig::test() })?;
        let mut engine =
            Self { api: None, workers: Vec::new(), services, addr: String::new(), key: String::new(), venues: 0 };
        if !engine.command(&["migrate"])?.stdout(Stdio::null()).status()?.success() {
            bail!("the migration failed");
        }
        let made = engine.command(&["keys", "create", "--scope", "admin", "--name", "bench", "--json"])?.output()?;
        let key: Value = serde_json::from_slice(&made.stdout).context("no key was made")?;
        engine.key = key["key"].as_str().context("no key was made")?.to_owned();
        Ok(engine)
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(holdfast()?);
        command.args(arguments).env("DATABASE_URL", self.database_url()).env("REDIS_URL", self.redis_url());
        command.env("HOLDFAST_LOG", "warn").env("HOLDFAST_RATE_ADDRESS_PER_SECOND", "0").stdin(Stdio::null());
        Ok(command)
    }

    /// Has Postgres write down when each transaction commits. Before any process runs.
    pub fn note_commits(&mut self) -> Result<()> {
        let set = "ALTER SYSTEM SET track_commit_timestamp = on";
        let done = Command::new("psql").args([self.database_url(), "-q", "-c", set]).status();
        if !done.context("psql is not installed")?.success() {
            bail!("psql failed");
        }
        Ok(self.services.postgres().restart()?)
    }

    /// Starts the API, and waits until it is ready.
    pub async fn start_api(&mut self) -> Result<()> {
        let (addr, ops) = (free_addr()?, free_addr()?);
        self.api = Some(self.command(&["api", "--addr", &addr, "--ops-addr", &ops])?.spawn()?);
        self.addr = addr;
        self.wait_until_ready(&ops).await
    }

    /// Starts one more worker. Returns which one it is.
    pub fn start_worker(&mut self) -> Result<usize> {
        self.workers.push(self.command(&["worker"])?.spawn()?);
        Ok(self.workers.len() - 1)
    }

    /// Starts one more worker, its log and its operators' listener where the caller wants them.
    pub fn start_watched_worker(&mut self, log: File, ops: &str) -> Result<usize> {
        let mut command = self.command(&["worker", "--ops-addr", ops])?;
        command.env("HOLDFAST_LOG", "info").stdout(log.try_clone()?).stderr(log);
        self.workers.push(command.spawn()?);
        Ok(self.workers.len() - 1)
    }

    /// Kills a worker as a crash would.
    pub fn kill_worker(&mut self, worker: usize) -> Result<()> {
        let child = self.workers.get_mut(worker).context("there is no such worker")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// The process id of a worker.
    pub fn worker_id(&self, worker: usize) -> Result<u32> {
        Ok(self.workers.get(worker).context("there is no such worker")?.id())
    }

    /// Where Postgres is.
    pub fn database_url(&self) -> &str {
        self.services.database_url()
    }

    /// Where Redis is.
    pub fn redis_url(&self) -> &str {
        self.services.redis_url()
    }

    /// The folder of the private servers.
    pub fn folder(&self) -> &Path {
        self.services.folder().path()
    }

    /// The stores, as any process of the engine sees them.
    pub fn stores(&self) -> Result<Stores> {
        let urls = ["bench", "--database-url", self.database_url(), "--redis-url", self.redis_url()];
        Ok(Stores::connect(&StoreArgs::try_parse_from(urls)?.stores, Clock::default())?)
    }

    async fn wait_until_ready(&self, ops: &str) -> Result<()> {
        for _ in 0..600 {
            if let Ok(mut connection) = Connection::open(ops).await
                && let Ok(answer) = connection.send(&get("/readyz")).await
                && answer.status == 200
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the engine is not ready after a minute")
    }

    /// Imports a venue of so many seats in blocks of so many, and puts an event there on sale.
    pub async fn open_event(&mut self, seats: usize, seats_per_block: usize) -> Result<Event> {
        let blocks = seats.div_ceil(seats_per_block);
        let mut csv = String::from("block,row,column,category,neighbours\n");
        for seat in 0..seats {
            let (block, place) = (seat / seats_per_block + 1, seat % seats_per_block);
            csv.push_str(&format!("{block},{},{},A,-\n", place / 10 + 1, place % 10 + 1));
        }
        let id = self.open_event_of(&csv, &json!({ "A": 10_000 })).await?;
        Ok(Event { id, blocks, seats_per_block })
    }

    /// Imports a venue from a file, and puts an event there on sale. Returns the event's id.
    pub async fn open_event_of(&mut self, csv: &str, prices: &Value) -> Result<String> {
        let id = self.create_event(csv, prices).await?;
        self.ask(&post(&format!("/v1/events/{id}/open"), &self.key, "application/json", "")).await?;
        for _ in 0..6_000 {
            if self.ask(&get(&format!("/v1/events/{id}"))).await?["status"] == "on_sale" {
                return Ok(id);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the event is not on sale after ten minutes")
    }

    /// Imports a venue from a file, and makes an event there, which nobody sells yet. Returns the event's id.
    pub async fn create_event(&mut self, csv: &str, prices: &Value) -> Result<String> {
        self.venues += 1;
        let name = format!("bench-{}", self.venues);
        let path = format!("/v1/venues/import?format=csv&name={name}&time_zone=Asia/Seoul");
        let venue = self.ask(&post(&path, &self.key, "text/csv", csv)).await?;
        let event = json!({
            "venue": venue["venue"], "title": name, "starts_at": "2030-05-01T18:30", "currency": "KRW",
            "prices": prices, "hold_ttl_seconds": 3_600,
        });
        let event = self.ask(&post("/v1/events", &self.key, "application/json", &event.to_string())).await?;
        Ok(event["id"].as_str().context("no event was made")?.to_owned())
    }

    /// Sends a request that must succeed.
    pub async fn ask(&self, request: &[u8]) -> Result<Value> {
        let mut connection = Connection::open(&self.addr).await?;
        let answer = connection.send(request).await?;
        if answer.status >= 300 {
            bail!("{}: {}", answer.status, String::from_utf8_lossy(answer.body));
        }
        Ok(serde_json::from_slice(answer.body)?)
    }

    /// Single-row inserts, committed one by one, per second, on the same Postgres: the machine's floor.
    pub fn pgbench(&self, clients: usize, seconds: u64) -> Result<f64> {
        let script = self.services.folder().path().join("insert.sql");
        std::fs::write(&script, "INSERT INTO bench_floor (a, b, c) VALUES (1, gen_random_uuid(), 'held');\n")?;
        let url = self.services.database_url();
        let table = "CREATE TABLE IF NOT EXISTS bench_floor (id bigserial PRIMARY KEY, a bigint, b uuid, c text)";
        Command::new("psql").args([url, "-q", "-c", table]).status().context("psql is not installed")?;
        let (clients, seconds) = (clients.to_string(), seconds.to_string());
        let mut command = Command::new("pgbench");
        command.args(["-n", "-M", "prepared", "-c", &clients, "-j", "2", "-T", &seconds, "-f"]).arg(&script).arg(url);
        let output = command.output().context("pgbench is not installed")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let tps = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        tps.with_context(|| format!("pgbench printed no rate: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Has Postgres do at once what it would do in the minutes after a load.
    pub fn settle(&self) -> Result<()> {
        let done = Command::new("psql")
            .args([self.services.database_url(), "-q", "-c", "VACUUM ANALYZE", "-c", "CHECKPOINT"])
            .status()
            .context("psql is not installed")?;
        if !done.success() {
            bail!("psql failed");
        }
        Ok(())
    }

    /// Resident memory of the processes, MB.
    pub fn memory(&self) -> Result<Vec<(&'static str, f64)>> {
        let api = self.api.iter().map(|api| ("api", api.id()));
        let workers = self.workers.iter().map(|worker| ("worker", worker.id()));
        api.chain(workers).map(|(name, id)| Ok((name, memory_of(id, "VmRSS:")?))).collect()
    }

    /// The seconds of processor time that each part has used so far.
    pub fn processor_seconds(&mut self) -> Result<BTreeMap<&'static str, f64>> {
        let redis = self.services.redis().id();
        let postgres = self.services.postgres().id();
        let mut used = BTreeMap::from([("api", 0.0), ("worker", 0.0), ("Redis", 0.0), ("Postgres", 0.0)]);
        for entry in std::fs::read_dir("/proc")? {
            let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // It may have ended meanwhile.
            let Ok(stat) = std::fs::read_to_string(format!("/proc/{id}/stat")) else { continue };
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            let parent: u32 = fields.get(1).and_then(|field| field.parse().ok()).unwrap_or(0);
            let is_of = |child: &Child| child.id() == id;
            let part = match id {
                _ if id == redis => "Redis",
                _ if id == postgres || parent == postgres => "Postgres",
                _ if self.api.as_ref().is_some_and(is_of) => "api",
                _ if self.workers.iter().any(is_of) => "worker",
                _ => continue,
            };
            let ticks = [11, 12].iter().filter_map(|&at| fields.get(at)?.parse::<f64>().ok()).sum::<f64>();
            *used.entry(part).or_default() += ticks / TICKS_PER_SECOND;
        }
        Ok(used)
    }

    /// Stops everything.
    pub fn stop(self) -> Result<()> {
        drop(self);
        Ok(())
    }
}

/// A figure of a process's memory as the kernel names it (`VmRSS:` now, `VmHWM:` at most), MB.
pub fn memory_of(process: u32, figure: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(figure)).context("the kernel does not say")?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kilobytes / 1_000.0)
}
