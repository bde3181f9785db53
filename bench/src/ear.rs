//! A plain subscriber to Redis on a thread of its own, which notes when each message came. It is no part of the engine:
//! it hears what anybody would hear.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};

/// A message: its channel, its text, and when it came, microseconds since the epoch.
pub type Hear = Box<dyn FnMut(&str, &[u8], i64) -> Result<()> + Send>;

/// The connection that stands now.
type Connected = Arc<Mutex<Option<TcpStream>>>;

/// Microseconds since the epoch by this machine's clock, which is also the stores'.
#[expect(clippy::disallowed_methods, reason = "it measures the engine from outside")]
pub fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// The subscriber. It comes back when its connection is cut, and misses what was said meanwhile.
pub struct Ear {
    stop: Arc<AtomicBool>,
    connected: Connected,
    thread: JoinHandle<Result<()>>,
}

impl Ear {
    /// Subscribes to a pattern; `name` is how CLIENT LIST shows it. Returns once it listens.
    pub fn listen(addr: &str, name: &'static str, pattern: &str, mut hear: Hear) -> Result<Self> {
        let (stop, connected) = (Arc::new(AtomicBool::new(false)), Connected::default());
        let (addr, pattern, stopped) = (addr.to_owned(), pattern.to_owned(), Arc::clone(&stop));
        let mut first = Some(subscribe(&addr, name, &pattern, &connected)?);
        let stands = Arc::clone(&connected);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let connection = match first.take() {
                    Some(connection) => Ok(connection),
                    None => subscribe(&addr, name, &pattern, &stands),
                };
                // Cut: again, as any client would.
                match connection.map(|connection| follow(connection, &mut hear)) {
                    Ok(Ok(())) | Err(_) => std::thread::sleep(Duration::from_millis(20)),
                    Ok(Err(failed)) => return Err(failed),
                }
            }
            Ok(())
        });
        Ok(Self { stop, connected, thread })
    }

    /// Ends it; what it heard is complete then.
    pub fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(stream) = self.connected.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _already_cut = stream.shutdown(Shutdown::Both);
        }
        match self.thread.join() {
            Ok(ended) => ended,
            Err(_panic) => bail!("a subscriber panicked"),
        }
    }
}

fn subscribe(addr: &str, name: &str, pattern: &str, connected: &Connected) -> Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(addr).with_context(|| format!("cannot reach {addr}"))?;
    stream.write_all(format!("CLIENT SETNAME {name}\r\nPSUBSCRIBE {pattern}\r\n").as_bytes())?;
    *connected.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream.try_clone()?);
    let mut reader = BufReader::with_capacity(256 * 1024, stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if !line.starts_with("+OK") {
        bail!("Redis refused: {line}");
    }
    Ok(reader)
}

/// Until the connection is cut.
fn follow(mut reader: BufReader<TcpStream>, hear: &mut Hear) -> Result<()> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    while reader.fill_buf().is_ok_and(|come| !come.is_empty()) {
        let came_us = now_us();
        if read_message(&mut reader, &mut parts).is_err() {
            break;
        }
        if let [kind, _pattern, channel, text] = parts.as_slice()
            && kind == b"pmessage"
        {
            hear(std::str::from_utf8(channel)?, text, came_us)?;
        }
    }
    Ok(())
}

/// Reads an array of texts and numbers, as RESP has it.
fn read_message(reader: &mut BufReader<TcpStream>, parts: &mut Vec<Vec<u8>>) -> Result<()> {
    parts.clear();
    let count = read_head(reader, '*')?;
    for _ in 0..count {
        match read_head(reader, '$') {
            Ok(length) => {
                let mut part = vec![0; length + 2];
                reader.read_exact(&mut part)?;
                part.truncate(length);
                parts.push(part);
            }
            Err(_number) => parts.push(Vec::new()),
        }
    }
    Ok(())
}

fn read_head(reader: &mut BufReader<TcpStream>, kind: char) -> Result<usize> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    line.strip_prefix(kind).and_then(|rest| rest.trim_end().parse().ok()).context("not what was expected")
}
