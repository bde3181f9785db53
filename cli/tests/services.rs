//! The private Postgres and Redis: they answer, keep what they promise, know each other by the lock, and never outlive
//! the process that started them.

#![expect(clippy::unwrap_used, reason = "a step that fails is the test's failure")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use holdfast::services::{
    Mode, PostgresConfig, PostgresServer, RedisConfig, RedisServer, Services, ServicesConfig, StartServiceError,
    find_postgres, remove_data_dir,
};

const LIMIT: Duration = Duration::from_secs(20);

/// A folder of the temp folder that goes with the test. Its parents let the account in that root drops to.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = remove_data_dir(&self.0);
    }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "{what} did not happen within {LIMIT:?}");
        std::thread::yield_now();
    }
}

/// Sends one inline command and gives the first line of the answer.
fn redis(port: u16, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// The value that `CONFIG GET` answers.
fn redis_setting(port: u16, name: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(format!("CONFIG GET {name}\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().nth(4).unwrap_or_else(|| panic!("{name}: {answer}")).to_owned()
}

fn psql(url: &str, sql: &str) -> Output {
    let program = find_postgres().unwrap().join("psql");
    Command::new(program).args([url, "-XAtqc", sql]).env("PGCONNECT_TIMEOUT", "2").output().unwrap()
}

fn query(url: &str, sql: &str) -> String {
    let output = psql(url, sql);
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn runs(id: u32) -> bool {
    // A zombie has ended: it only waits for whoever adopted it.
    if Path::new("/proc/self/stat").exists() {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        return stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'));
    }
    let state = Command::new("ps").args(["-o", "stat=", "-p", &id.to_string()]).output().unwrap().stdout;
    !state.is_empty() && !state.starts_with(b"Z")
}

#[test]
fn both_servers_answer_with_the_settings_the_engine_insists_on() {
    let services = Services::start(ServicesConfig::test()).unwrap();
    let folder = services.folder().path().to_owned();
    let mut services = services;
    let port = services.redis().port();
    assert_eq!(redis_setting(port, "maxmemory-policy"), "noeviction");
    assert_eq!(redis_setting(port, "hz"), "100");
    let events = redis_setting(port, "notify-keyspace-events");
    assert!(events.contains('E') && events.contains('x'), "{events}");
    assert_eq!(redis_setting(port, "appendonly"), "no");
    let url = services.database_url().to_owned();
    assert_eq!(query(&url, "show server_encoding"), "UTF8");
    assert_eq!(query(&url, "show timezone"), "UTC");
    assert_eq!(query(&url, "show fsync"), "off");
    services.stop().unwrap();
    assert!(!folder.exists(), "{} was left behind", folder.display());
}

#[test]
fn a_stranger_without_the_password_gets_no_session() {
    let postgres = PostgresServer::start(PostgresConfig::test()).unwrap();
    let (_, host) = postgres.url().split_once('@').unwrap();
    let output = psql(&format!("postgres://holdfast:guess@{host}"), "select 1");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("password authentication failed"), "{said}");
}

#[test]
fn a_second_start_finds_its_data_again() {
    let folder = Folder::new("durable");
    let mut first = Services::start(ServicesConfig::durable(folder.0.clone())).unwrap();
    assert_eq!(query(first.database_url(), "show fsync"), "on");
    assert_eq!(redis_setting(first.redis().port(), "appendonly"), "yes");
    query(first.database_url(), "create table kept (label text)");
    query(first.database_url(), "insert into kept values ('가')");
    assert_eq!(redis(first.redis().port(), "SET kept yes").unwrap(), "+OK");
    first.stop().unwrap();

    let mut second = Services::start(ServicesConfig::durable(folder.0.clone())).unwrap();
    assert_eq!(query(second.database_url(), "select label from kept"), "가");
    assert_eq!(redis(second.redis().port(), "EXISTS kept").unwrap(), ":1");
    second.stop().unwrap();
}

#[test]
fn a_second_start_in_the_same_folder_is_told_who_runs_where() {
    let folder = Folder::new("locked");
    let mut first = Services::start(ServicesConfig::durable(folder.0.clone())).unwrap();
    let ports = [first.postgres().port(), first.redis().port()];
    let refusal = Services::start(ServicesConfig::durable(folder.0.clone())).unwrap_err();
    assert!(matches!(refusal, StartServiceError::AlreadyRunning { .. }), "{refusal}");
    let said = refusal.to_string();
    assert!(said.contains(&std::process::id().to_string()), "{said}");
    assert!(ports.iter().all(|port| said.contains(&format!("127.0.0.1:{port}"))), "{said}");
    let wiped = remove_data_dir(&folder.0).unwrap_err();
    assert!(matches!(wiped, StartServiceError::AlreadyRunning { .. }), "{wiped}");
    assert_eq!(query(first.database_url(), "select 1"), "1");
    first.stop().unwrap();
    assert!(remove_data_dir(&folder.0).unwrap());
    assert!(!remove_data_dir(&folder.0).unwrap(), "the second removal finds nothing");
}

#[test]
fn a_redis_can_be_killed_paused_and_restarted_on_its_port() {
    let mut server = RedisServer::start(RedisConfig::test()).unwrap();
    let port = server.port();
    assert_eq!(redis(port, "SET seat held").unwrap(), "+OK");

    server.pause().unwrap();
    assert!(redis(port, "PING").is_err(), "a paused Redis answers nothing");
    assert!(server.is_running());
    server.resume().unwrap();
    wait_for("an answer after the pause", || redis(port, "PING").is_ok_and(|answer| answer == "+PONG"));

    server.kill().unwrap();
    assert!(!server.is_running());
    assert!(redis(port, "PING").is_err(), "a killed Redis answers nothing");
    server.restart().unwrap();
    assert_eq!(server.port(), port);
    assert_eq!(redis(port, "EXISTS seat").unwrap(), ":0", "a test's Redis forgets");
}

#[test]
fn a_redis_takes_the_settings_of_a_test() {
    let settings = vec![("maxmemory-policy".to_owned(), "allkeys-lru".to_owned())];
    let lax = RedisServer::start(RedisConfig { settings, ..RedisConfig::test() }).unwrap();
    assert_eq!(redis_setting(lax.port(), "maxmemory-policy"), "allkeys-lru");
    let settings = vec![("rename-command".to_owned(), "CONFIG ".to_owned())];
    let strict = RedisServer::start(RedisConfig { settings, ..RedisConfig::test() }).unwrap();
    let refused = redis(strict.port(), "CONFIG GET hz").unwrap();
    assert!(refused.starts_with("-ERR unknown command"), "{refused}");
}

#[test]
fn a_killed_postgres_keeps_what_it_acknowledged() {
    let mut server = PostgresServer::start(PostgresConfig { mode: Mode::Durable, ..PostgresConfig::test() }).unwrap();
    let url = server.url().to_owned();
    query(&url, "create table claims (seat int primary key)");
    query(&url, "insert into claims select generate_series(1, 1000)");
    server.kill().unwrap();
    assert!(!server.is_running());
    assert!(!psql(&url, "select 1").status.success());
    server.restart().unwrap();
    assert_eq!(query(&url, "select count(*) from claims"), "1000");
}

#[test]
fn a_paused_postgres_answers_nothing_until_it_is_resumed() {
    let mut server = PostgresServer::start(PostgresConfig::test()).unwrap();
    let url = server.url().to_owned();
    server.pause().unwrap();
    assert!(!psql(&url, "select 1").status.success());
    server.resume().unwrap();
    wait_for("an answer after the pause", || psql(&url, "select 1").status.success());
}

#[test]
fn a_server_that_cannot_start_says_why_with_its_last_log_lines() {
    let settings = vec![("shared_buffers".to_owned(), "nonsense".to_owned())];
    let failure = PostgresServer::start(PostgresConfig { settings, ..PostgresConfig::test() }).unwrap_err().to_string();
    assert!(failure.contains("invalid value for parameter \"shared_buffers\""), "{failure}");
    let settings = vec![("no-such-setting".to_owned(), "1".to_owned())];
    let failure = RedisServer::start(RedisConfig { settings, ..RedisConfig::test() }).unwrap_err().to_string();
    assert!(failure.contains("no-such-setting"), "{failure}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let failure = RedisServer::start(RedisConfig { port: Some(port), ..RedisConfig::test() }).unwrap_err();
    assert!(matches!(failure, StartServiceError::PortTaken { port: named } if named == port), "{failure}");
    let failure = PostgresServer::start(PostgresConfig { port: Some(port), ..PostgresConfig::test() }).unwrap_err();
    assert!(matches!(failure, StartServiceError::PortTaken { port: named } if named == port), "{failure}");
}

fn holdfast(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.args(arguments).env_remove("HOLDFAST_PG_PORT").env_remove("HOLDFAST_REDIS_PORT").stdin(Stdio::null());
    command
}

#[test]
fn a_command_gets_the_urls_and_its_exit_code_is_passed_on() {
    let script = "echo $DATABASE_URL $REDIS_URL; exit 7";
    let output = holdfast(&["dev", "services", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("postgres://holdfast:") && said.contains(" redis://127.0.0.1:"), "{said}");
}

#[test]
fn a_missing_binary_is_exit_code_2_and_says_what_to_type() {
    let output = holdfast(&["dev", "services", "--", "true"]).env("HOLDFAST_PG_BIN", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("apt-get install postgresql") && said.contains("HOLDFAST_PG_BIN=/nowhere"), "{said}");
}

/// A `holdfast dev services` of its own, and the process ids of its servers.
fn servers_in_a_process_of_their_own(data_dir: &Path) -> (Child, [u32; 2]) {
    let data_dir = data_dir.to_str().unwrap();
    let mut parent = holdfast(&["dev", "services", "--mode", "durable", "--json", "--data-dir", data_dir])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("database_url"), "{line}");
    let id_in = |file: &str| {
        let text = fs::read_to_string(Path::new(data_dir).join(file)).unwrap();
        text.lines().next().unwrap().trim().parse().unwrap()
    };
    (parent, [id_in("postgres/postmaster.pid"), id_in("redis/redis.pid")])
}

#[test]
#[cfg(target_os = "linux")]
fn no_server_outlives_a_killed_parent_and_the_next_start_finds_the_data() {
    let folder = Folder::new("orphans");
    let (mut parent, servers) = servers_in_a_process_of_their_own(&folder.0);
    assert!(servers.iter().all(|id| runs(*id)));
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_for("the end of both servers", || !servers.iter().any(|id| runs(*id)));
    let mut again = Services::start(ServicesConfig::durable(folder.0.clone())).unwrap();
    assert_eq!(query(again.database_url(), "select 1"), "1");
    assert_eq!(redis(again.redis().port(), "PING").unwrap(), "+PONG");
    again.stop().unwrap();
}

#[test]
fn an_interrupted_parent_stops_its_servers_and_ends_well() {
    let folder = Folder::new("interrupted");
    let (mut parent, servers) = servers_in_a_process_of_their_own(&folder.0);
    let id = nix::unistd::Pid::from_raw(parent.id().try_into().unwrap());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).unwrap();
    assert!(parent.wait().unwrap().success());
    assert!(!servers.iter().any(|id| runs(*id)), "the servers end before their parent");
}

#[test]
fn what_a_killed_test_left_is_removed_by_the_next_one() {
    let mut parent = holdfast(&["dev", "services", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (_, rest) = line.split_once("\"data_dir\":\"").unwrap();
    let left = PathBuf::from(rest.split('"').next().unwrap());
    assert!(left.exists());
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_for("the removal of the abandoned folder", || {
        drop(RedisServer::start(RedisConfig::test()).unwrap());
        !left.exists()
    });
}
