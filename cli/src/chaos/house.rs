//! The engine under attack: private stores, two API processes and three workers, each behind proxies of its own.

use std::env;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use simulation::proxy::{Link, Proxy};

use super::faults::Store;
use super::record::locked;
use crate::services::{Mode, Services, ServicesConfig, SupervisedProcess, log_tail, log_to};

/// Below the range from which the system takes the ports of outgoing connections: a process that is down for a second
/// must find its port free again.
const PORTS: std::ops::Range<u16> = 15_000..31_000;

/// What a process of the engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `holdfast api`
    Api,
    /// `holdfast worker`
    Worker,
}

/// A process of the engine.
#[derive(Debug)]
pub struct Member {
    /// `api 1`, `worker 3`.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// `http://127.0.0.1:port` of an API, else empty.
    pub url: String,
    ops_url: String,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    log: PathBuf,
    postgres: Proxy,
    redis: Proxy,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Gone,
    Runs(SupervisedProcess),
    Frozen(SupervisedProcess),
}

/// The stores and the processes. Dropping it ends them all.
#[derive(Debug)]
pub struct House {
    /// Declared first: the engine ends before its stores.
    pub members: Vec<Member>,
    /// The stores, to be hurt.
    pub services: Arc<Mutex<Services>>,
    database_url: String,
    redis_url: String,
    stores_up: Mutex<(bool, bool)>,
}

impl House {
    /// Starts the stores, brings the schema up to date, and prepares the processes, which do not run yet.
    ///
    /// # Errors
    /// A server does not start, or no port is free.
    pub async fn build(apis: usize, workers: usize, logs: Option<&Path>) -> Result<Self> {
        let mut ports = quiet_ports();
        let mut port = || ports.next().context("no port is free");
        let config = ServicesConfig {
            mode: Mode::Durable,
            postgres_port: Some(port()?),
            redis_port: Some(port()?),
            ..ServicesConfig::test()
        };
        let services = tokio::task::spawn_blocking(move || Services::start(config)).await??;
        let (database_url, redis_url) = (services.database_url().to_owned(), services.redis_url().to_owned());
        let logs = logs.map_or_else(|| services.folder().path().join("logs"), Path::to_owned);
        fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let mut members = Vec::new();
        for number in 0..apis + workers {
            let (role, name) = if number < apis {
                (Role::Api, format!("api {}", number + 1))
            } else {
                (Role::Worker, format!("worker {}", number - apis + 1))
            };
            let (addr, ops_addr) = (format!("127.0.0.1:{}", port()?), format!("127.0.0.1:{}", port()?));
            let postgres = Proxy::start(host_of(&database_url)?).await?;
            let redis = Proxy::start(host_of(&redis_url)?).await?;
            let through = |url: &str, proxy: &Proxy| {
                Ok::<_, anyhow::Error>(url.replace(&host_of(url)?, &proxy.addr().to_string()))
            };
            let environment = vec![
                ("DATABASE_URL", through(&database_url, &postgres)?),
                ("REDIS_URL", through(&redis_url, &redis)?),
                ("HOLDFAST_FAKE_PROVIDER", "true".to_owned()),
                ("HOLDFAST_PG_CONNECTIONS", "8".to_owned()),
                ("HOLDFAST_LOG", env::var("HOLDFAST_LOG").unwrap_or_else(|_| "warn".to_owned())),
            ];
            let arguments = match role {
                Role::Api => {
                    vec!["api".to_owned(), "--addr".to_owned(), addr.clone(), "--ops-addr".to_owned(), ops_addr.clone()]
                }
                Role::Worker => vec!["worker".to_owned()],
            };
            let is_api = role == Role::Api;
            members.push(Member {
                log: logs.join(format!("{}.log", name.replace(' ', "-"))),
                url: if is_api { format!("http://{addr}") } else { String::new() },
                ops_url: if is_api { format!("http://{ops_addr}") } else { String::new() },
                state: Mutex::new(State::Gone),
                name,
                role,
                arguments,
                environment,
                postgres,
                redis,
            });
        }
        let services = Arc::new(Mutex::new(services));
        Ok(Self { members, services, database_url, redis_url, stores_up: Mutex::new((true, true)) })
    }

    /// Postgres, reached directly.
    #[must_use]
    pub fn database_url(&self) -> &str {
        &self.database_url
    }

    /// Redis, reached directly.
    #[must_use]
    pub fn redis_url(&self) -> &str {
        &self.redis_url
    }

    /// The processes of a role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |member| member.role == role)
    }

    /// Says whether Postgres and Redis run, for those who ask whether the engine can work.
    pub fn note_store(&self, store: Store, runs: bool) {
        let mut up = locked(&self.stores_up);
        match store {
            Store::Postgres => up.0 = runs,
            Store::Redis => up.1 = runs,
        }
    }

    /// Whether at least one worker runs and reaches both stores, and one API process does.
    #[must_use]
    pub fn can_tidy(&self) -> bool {
        *locked(&self.stores_up) == (true, true)
            && [Role::Api, Role::Worker].into_iter().all(|role| self.of(role).any(Member::is_well))
    }

    /// Makes every link whole, wakes who sleeps and starts who is gone. The stores are mended by whoever hurt them.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn heal(&self) -> Result<()> {
        for member in &self.members {
            member.set_link(Store::Postgres, Link::Whole);
            member.set_link(Store::Redis, Link::Whole);
            member.resume()?;
            member.start()?;
        }
        Ok(())
    }

    /// Waits until each API process says that it is ready.
    ///
    /// # Errors
    /// One does not, or it ended.
    pub async fn wait_until_ready(&self, limit: std::time::Duration) -> Result<()> {
        let http = reqwest::Client::builder().timeout(std::time::Duration::from_secs(3)).no_proxy().build()?;
        let begun = std::time::Instant::now();
        for member in self.of(Role::Api) {
            let ready = format!("{}/readyz", member.ops_url);
            while !http.get(&ready).send().await.is_ok_and(|answer| answer.status().is_success()) {
                member.must_run()?;
                if begun.elapsed() > limit {
                    bail!(
                        "{} is not ready after {} s:\n{}",
                        member.name,
                        limit.as_secs(),
                        log_tail(&member.log, 0, 12)
                    );
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }
}

impl Member {
    /// Starts it unless it runs.
    ///
    /// # Errors
    /// The system refuses.
    pub fn start(&self) -> Result<()> {
        let mut state = locked(&self.state);
        let is_gone = match &mut *state {
            State::Gone => true,
            State::Runs(process) | State::Frozen(process) => process.exit_status()?.is_some(),
        };
        if is_gone {
            let mut command = Command::new(env::current_exe()?);
            command.args(&self.arguments);
            // What is set for this process is not meant for those under attack.
            for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HOLDFAST_")) {
                command.env_remove(name);
            }
            command.envs(self.environment.iter().map(|(name, value)| (name, value)));
            log_to(&mut command, &self.log)?;
            *state = State::Runs(SupervisedProcess::spawn(command, Signal::SIGKILL)?);
        }
        Ok(())
    }

    fn must_run(&self) -> Result<()> {
        let runs = match &mut *locked(&self.state) {
            State::Runs(process) => process.exit_status()?.is_none(),
            State::Gone | State::Frozen(_) => false,
        };
        if !runs {
            bail!("{} ended while starting:\n{}", self.name, log_tail(&self.log, 0, 12));
        }
        Ok(())
    }

    /// Starts it again if it ended though nobody killed it, as any supervisor would; says so then.
    ///
    /// # Errors
    /// The system refuses.
    pub fn tend(&self) -> Result<Option<String>> {
        let ended = match &mut *locked(&self.state) {
            State::Gone => None,
            State::Runs(process) | State::Frozen(process) => process.exit_status()?,
        };
        let Some(status) = ended else { return Ok(None) };
        self.start()?;
        Ok(Some(format!("{} ended with {status}", self.name)))
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&self) -> Result<()> {
        let mut state = locked(&self.state);
        if let State::Runs(mut process) | State::Frozen(mut process) = std::mem::replace(&mut *state, State::Gone) {
            process.kill()?;
        }
        Ok(())
    }

    /// SIGSTOP.
    ///
    /// # Errors
    /// The system refuses.
    pub fn freeze(&self) -> Result<()> {
        let mut state = locked(&self.state);
        *state = match std::mem::replace(&mut *state, State::Gone) {
            State::Runs(mut process) => {
                process.signal(Signal::SIGSTOP)?;
                State::Frozen(process)
            }
            other => other,
        };
        Ok(())
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// The system refuses.
    pub fn resume(&self) -> Result<()> {
        let mut state = locked(&self.state);
        *state = match std::mem::replace(&mut *state, State::Gone) {
            State::Frozen(mut process) => {
                process.signal(Signal::SIGCONT)?;
                State::Runs(process)
            }
            other => other,
        };
        Ok(())
    }

    /// Changes its link to a store.
    pub fn set_link(&self, store: Store, link: Link) {
        match store {
            Store::Postgres => self.postgres.set(link),
            Store::Redis => self.redis.set(link),
        }
    }

    fn is_well(&self) -> bool {
        let runs = matches!(*locked(&self.state), State::Runs(_));
        runs && self.postgres.link() == Link::Whole && self.redis.link() == Link::Whole
    }
}

/// `host:port` of a URL.
fn host_of(url: &str) -> Result<String> {
    let rest = url.split_once("://").context("a URL without ://")?.1;
    let host = rest.rsplit('@').next().unwrap_or(rest);
    Ok(host.split('/').next().unwrap_or(host).to_owned())
}

/// Ports that nobody listens on at this moment; another process begins its search elsewhere.
fn quiet_ports() -> impl Iterator<Item = u16> {
    let span = usize::from(PORTS.end - PORTS.start);
    let first = (std::process::id() as usize * 97) % span;
    PORTS.cycle().skip(first).take(span).filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_url_is_between_the_password_and_the_path() {
        assert_eq!(host_of("postgres://a:b@127.0.0.1:5/name").unwrap(), "127.0.0.1:5");
        assert_eq!(host_of("redis://127.0.0.1:6").unwrap(), "127.0.0.1:6");
        assert!(host_of("127.0.0.1:6").is_err());
    }
}
