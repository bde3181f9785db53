//! `holdfast dev up`: the whole engine on this machine, for as long as this process lives.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::children::{Invocation, KeptChild};
use super::demo::{DemoEvent, Engine};
use super::error::{DevError, print, say};
use super::keys::Keys;
use super::run::Signals;
use super::stores::Stores;
use super::{DataDirArgs, PortArgs};

const TEND_EVERY: Duration = Duration::from_millis(100);
const READY_LIMIT: Duration = Duration::from_secs(60);

/// Arguments of `holdfast dev up`.
#[derive(Debug, Args)]
pub(super) struct UpArgs {
    #[command(flatten)]
    data_dir: DataDirArgs,
    #[command(flatten)]
    ports: PortArgs,
    /// Where the API listens [default: 127.0.0.1:8080, or a free port if that is taken]
    #[arg(long, env = "HOLDFAST_ADDR", value_name = "ADDRESS")]
    addr: Option<SocketAddr>,
    /// Where the operators' listener listens [default: 127.0.0.1:8081, or a free port if that is taken]
    #[arg(long, env = "HOLDFAST_OPS_ADDR", value_name = "ADDRESS")]
    ops_addr: Option<SocketAddr>,
    /// Import no demo venues and open no demo events.
    #[arg(long)]
    no_demo: bool,
    /// Print one JSON object when everything is up.
    #[arg(long)]
    json: bool,
}

/// What `dev up` tells when everything is up; `--json` prints just this.
#[derive(Debug, Serialize)]
struct Report {
    api: String,
    docs: String,
    ops: String,
    database_url: String,
    redis_url: String,
    data_dir: String,
    logs: Vec<String>,
    keys: Keys,
    events: Vec<DemoEvent>,
    curl: Vec<String>,
}

pub(super) fn run(args: UpArgs) -> Result<ExitCode, DevError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(DevError::io("start a runtime".to_owned()))?;
    runtime.block_on(up(args))
}

async fn up(args: UpArgs) -> Result<ExitCode, DevError> {
    let signals = Signals::catch()?;
    let begun = Instant::now();
    let stores = Stores::find(args.data_dir.resolve()?, &args.ports)?;
    step(begun, "Postgres and Redis are ready");
    Invocation::new(&["migrate"]).env("DATABASE_URL", stores.database_url()).output()?;
    step(begun, "The schema is up to date");
    let addr = args.addr.map_or_else(|| listen_near(8080), Ok)?;
    let ops_addr = args.ops_addr.map_or_else(|| listen_near(8081), Ok)?;
    let mut household = Household::start(stores, addr, ops_addr)?;
    let done = tokio::select! {
        () = signals.wait() => Ok(()),
        failure = household.live(&args, addr, ops_addr, begun) => failure,
    };
    say("Stopping");
    let stopped = household.stop();
    done.and(stopped).map(|()| ExitCode::SUCCESS)
}

fn step(begun: Instant, what: &str) {
    say(&format!("{:5.1} s  {what}", begun.elapsed().as_secs_f64()));
}

/// The stores and the engine's processes.
#[derive(Debug)]
struct Household {
    /// Declared first: the engine ends before its stores.
    children: Vec<KeptChild>,
    stores: Stores,
}

impl Household {
    fn start(stores: Stores, addr: SocketAddr, ops_addr: SocketAddr) -> Result<Self, DevError> {
        let logs = stores.path().join("logs");
        fs::create_dir_all(&logs).map_err(DevError::io(format!("make {}", logs.display())))?;
        let with_stores = |invocation: Invocation| {
            invocation.env("DATABASE_URL", stores.database_url()).env("REDIS_URL", stores.redis_url())
        };
        let api = Invocation::new(&["api", "--addr", &addr.to_string(), "--ops-addr", &ops_addr.to_string()])
            .env("HOLDFAST_FAKE_PROVIDER", "true");
        // The worker has no operators' listener here: the api's shows the queues, and one page is enough for a look.
        let worker = Invocation::new(&["worker"]);
        let children = vec![
            KeptChild::start("api", with_stores(api), &logs)?,
            KeptChild::start("worker", with_stores(worker), &logs)?,
        ];
        Ok(Self { children, stores })
    }

    /// Brings the engine up, tells how to use it, and then keeps everything running. It returns only with a failure.
    async fn live(
        &mut self,
        args: &UpArgs,
        addr: SocketAddr,
        ops_addr: SocketAddr,
        begun: Instant,
    ) -> Result<(), DevError> {
        let mut engine = Engine::new(addr, ops_addr)?;
        self.wait_until_ready(&engine).await?;
        step(begun, "The api and a worker are ready");
        let keys = self.keys(&mut engine).await?;
        let events = if args.no_demo {
            Vec::new()
        } else {
            tokio::select! {
                events = engine.open_demo() => events?,
                failure = self.tend() => return failure,
            }
        };
        step(begun, "Everything is up");
        self.tell(args.json, &engine, keys, events)?;
        self.tend().await
    }

    async fn wait_until_ready(&mut self, engine: &Engine) -> Result<(), DevError> {
        let begun = Instant::now();
        while !engine.is_ready().await {
            for child in &mut self.children {
                child.must_run()?;
            }
            if begun.elapsed() > READY_LIMIT {
                return Err(DevError::TooSlow {
                    what: "the engine's readiness".to_owned(),
                    limit_s: READY_LIMIT.as_secs(),
                });
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The keys of the last start where the engine still takes them, else new ones.
    async fn keys(&self, engine: &mut Engine) -> Result<Keys, DevError> {
        let path = self.stores.path().join("keys.json");
        if let Some(keys) = Keys::load(&path)
            && engine.takes_key(&keys.admin).await?
        {
            return Ok(keys);
        }
        let keys = Keys::create(&path, self.stores.database_url())?;
        if engine.takes_key(&keys.admin).await? {
            return Ok(keys);
        }
        Err(DevError::TooSlow { what: "the engine's taking of its new admin key".to_owned(), limit_s: 0 })
    }

    fn tell(&self, json: bool, engine: &Engine, keys: Keys, events: Vec<DemoEvent>) -> Result<(), DevError> {
        let curl = engine.examples(&keys.sales, events.first());
        let report = Report {
            api: engine.api().to_owned(),
            docs: format!("{}/docs", engine.api()),
            ops: engine.ops().to_owned(),
            database_url: self.stores.database_url().to_owned(),
            redis_url: self.stores.redis_url().to_owned(),
            data_dir: self.stores.path().display().to_string(),
            logs: self.children.iter().map(|child| child.log().display().to_string()).collect(),
            keys,
            events,
            curl,
        };
        if json {
            let line =
                serde_json::to_string(&report).map_err(|error| DevError::io("write JSON".to_owned())(error.into()))?;
            return print(&line);
        }
        print(&report.to_string())
    }

    /// Keeps the stores and the processes running; returns only with a failure.
    async fn tend(&mut self) -> Result<(), DevError> {
        loop {
            tokio::time::sleep(TEND_EVERY).await;
            self.stores.tend()?;
            for child in &mut self.children {
                child.tend()?;
            }
        }
    }

    /// Stops the engine, then its stores.
    fn stop(mut self) -> Result<(), DevError> {
        // All are asked before the first is waited for: they end side by side.
        self.children.iter_mut().for_each(KeptChild::ask_to_stop);
        let stopped: Result<Vec<()>, DevError> = self.children.into_iter().map(KeptChild::stop).collect();
        self.stores.stop()?;
        stopped.map(|_| ())
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "\nHoldfast runs; Ctrl-C stops it, and the next start finds its data again.\n")?;
        writeln!(f, "  API         {}", self.api)?;
        writeln!(f, "  Its docs    {}", self.docs)?;
        writeln!(f, "  Operators   {}", self.ops)?;
        writeln!(f, "  Postgres    {}", self.database_url)?;
        writeln!(f, "  Redis       {}", self.redis_url)?;
        writeln!(f, "  Data        {}", self.data_dir)?;
        writeln!(f, "  Logs        {}", self.logs.join("\n              "))?;
        writeln!(f, "  Admin key   {}", self.keys.admin)?;
        writeln!(f, "  Sales key   {}", self.keys.sales)?;
        writeln!(f, "  Ops key     {}", self.keys.ops)?;
        for event in &self.events {
            writeln!(f, "  On sale     {}, {} seats, event {}", event.title, event.seats, event.id)?;
        }
        if !self.curl.is_empty() {
            writeln!(f, "\nRead a block, hold a seat in it, pay:\n")?;
            for line in &self.curl {
                writeln!(f, "  {line}\n")?;
            }
        }
        Ok(())
    }
}

/// The usual address, or a free port where something else listens on it.
fn listen_near(port: u16) -> Result<SocketAddr, DevError> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    free.and_then(|listener| listener.local_addr()).map_err(DevError::io("find a free port on 127.0.0.1".to_owned()))
}
