//! The engine under measurement: private stores, one api process, one worker process.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use holdfast::services::{Mode, Services, ServicesConfig};
use serde_json::{Value, json};

use crate::client::{Connection, get, post};

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
    api: Child,
    worker: Child,
    services: Services,
    /// Where the API listens.
    pub addr: String,
    /// An admin key.
    pub key: String,
    venues: usize,
}

impl Drop for Engine {
    fn drop(&mut self) {
        for child in [&mut self.api, &mut self.worker] {
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
    /// Starts everything on free ports.
    pub async fn start() -> Result<Self> {
        let services = Services::start(ServicesConfig { mode: Mode::Durable, ..ServicesConfig::test() })?;
        let command = |arguments: &[&str]| -> Result<Command> {
            let mut command = Command::new(holdfast()?);
            command.args(arguments).env("DATABASE_URL", services.database_url()).env("REDIS_URL", services.redis_url());
            command.env("HOLDFAST_LOG", "warn").env("HOLDFAST_RATE_ADDRESS_PER_SECOND", "0").stdin(Stdio::null());
            Ok(command)
        };
        let migrated = command(&["migrate"])?.stdout(Stdio::null()).status()?;
        if !migrated.success() {
            bail!("the migration failed");
        }
        let made = command(&["keys", "create", "--scope", "admin", "--name", "bench", "--json"])?.output()?;
        let key: Value = serde_json::from_slice(&made.stdout).context("no key was made")?;
        let key = key["key"].as_str().context("no key was made")?.to_owned();
        let (addr, ops) = (free_addr()?, free_addr()?);
        let api = command(&["api", "--addr", &addr, "--ops-addr", &ops])?.spawn()?;
        let worker = command(&["worker"])?.spawn()?;
        let engine = Self { api, worker, services, addr, key, venues: 0 };
        engine.wait_until_ready(&ops).await?;
        Ok(engine)
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
        self.venues += 1;
        let blocks = seats.div_ceil(seats_per_block);
        let mut csv = String::from("block,row,column,category,neighbours\n");
        for seat in 0..seats {
            let (block, place) = (seat / seats_per_block + 1, seat % seats_per_block);
            csv.push_str(&format!("{block},{},{},A,-\n", place / 10 + 1, place % 10 + 1));
        }
        let name = format!("bench-{}", self.venues);
        let path = format!("/v1/venues/import?format=csv&name={name}&time_zone=Asia/Seoul");
        let venue = self.ask(&post(&path, &self.key, "text/csv", &csv)).await?;
        let event = json!({
            "venue": venue["venue"], "title": name, "starts_at": "2030-05-01T18:30", "currency": "KRW",
            "prices": { "A": 10_000 }, "hold_ttl_seconds": 3_600,
        });
        let event = self.ask(&post("/v1/events", &self.key, "application/json", &event.to_string())).await?;
        let id = event["id"].as_str().context("no event was made")?.to_owned();
        self.ask(&post(&format!("/v1/events/{id}/open"), &self.key, "application/json", "")).await?;
        for _ in 0..6_000 {
            if self.ask(&get(&format!("/v1/events/{id}"))).await?["status"] == "on_sale" {
                return Ok(Event { id, blocks, seats_per_block });
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the event is not on sale after ten minutes")
    }

    async fn ask(&self, request: &[u8]) -> Result<Value> {
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
        let resident = |child: &Child| -> Result<f64> {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
            let kilobytes: f64 = line.trim().trim_end_matches(" kB").trim().parse()?;
            Ok(kilobytes / 1_000.0)
        };
        Ok(vec![("api", resident(&self.api)?), ("worker", resident(&self.worker)?)])
    }

    /// Stops everything.
    pub fn stop(self) -> Result<()> {
        drop(self);
        Ok(())
    }
}
