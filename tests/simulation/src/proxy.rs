//! A TCP proxy that breaks the network and not the code: it stands before Postgres or Redis, and refuses, freezes or
//! loses answers when told.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the proxy does with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// It passes them on.
    Whole,
    /// It keeps what is sent for so long before it passes it on; answers come back at once. Each request that a
    /// connection sends and waits for takes that much longer.
    Slow(Duration),
    /// It ends every connection, and each new one at once: the server is gone.
    Cut,
    /// It keeps connections open and passes nothing on: the server hangs. What was sent meanwhile arrives afterwards.
    Frozen,
    /// It passes requests on and no answers, until told otherwise; then those connections end: the work was done, and
    /// nobody heard.
    Deaf,
}

/// A proxy before one server. Dropped, it ends with all its connections.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    link: watch::Sender<Link>,
    /// Answers that still pass before the link is deaf; below 0: it is not counted.
    answers: Arc<AtomicI64>,
    accept: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of the loopback, before the server at `target` (`host:port`).
    ///
    /// # Errors
    /// No port can be had.
    pub async fn start(target: String) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let (link, state) = watch::channel(Link::Whole);
        let answers = Arc::new(AtomicI64::new(-1));
        let counted = (link.clone(), Arc::clone(&answers));
        let accept = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (target, state) = (target.clone(), state.clone());
                tokio::spawn(serve(client, target, (state, counted.clone())));
            }
        });
        Ok(Self { addr, link, answers, accept })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes what it does, for connections that stand and for those that come.
    pub fn set(&self, link: Link) {
        self.answers.store(-1, Ordering::SeqCst);
        self.link.send_replace(link);
    }

    /// Lets so many more answers pass, and then none: [`Link::Deaf`] in the middle of something.
    pub fn deafen_after(&self, answers: u32) {
        if answers == 0 {
            self.set(Link::Deaf);
        } else {
            self.answers.store(i64::from(answers), Ordering::SeqCst);
        }
    }

    /// Ends deafness, or the counting towards it; any other state stays.
    pub fn hear_again(&self) {
        self.answers.store(-1, Ordering::SeqCst);
        if self.link() == Link::Deaf {
            self.set(Link::Whole);
        }
    }

    /// What it does.
    #[must_use]
    pub fn link(&self) -> Link {
        *self.link.borrow()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accept.abort();
        self.link.send_replace(Link::Cut);
    }
}

type Counted = (watch::Sender<Link>, Arc<AtomicI64>);

async fn serve(client: TcpStream, target: String, (mut state, counted): (watch::Receiver<Link>, Counted)) {
    if *state.borrow_and_update() == Link::Cut {
        return;
    }
    let Ok(server) = TcpStream::connect(&target).await else { return };
    // Requests and answers are small: waiting for more of them would only add to what is measured.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Whichever half ends takes the connection with it.
    tokio::select! {
        () = pump(from_client, to_server, (state.clone(), &counted), Half::Requests) => {}
        () = pump(from_server, to_client, (state, &counted), Half::Answers) => {}
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Requests,
    Answers,
}

/// Passes bytes on for as long as the link lets it.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    (mut state, (link, answers)): (watch::Receiver<Link>, &Counted),
    half: Half,
) {
    let mut buffer = vec![0_u8; 16 * 1024];
    let mut lost = false;
    loop {
        let now = *state.borrow_and_update();
        match (now, half) {
            (Link::Cut, _) => return,
            // An answer was lost: whatever follows would answer the wrong request.
            (Link::Whole | Link::Slow(_) | Link::Frozen, _) if lost => return,
            (Link::Frozen, _) => {
                if state.changed().await.is_err() {
                    return;
                }
                continue;
            }
            (Link::Whole | Link::Slow(_), _) | (Link::Deaf, Half::Requests) => {
                tokio::select! {
                    read = from.read(&mut buffer) => {
                        let Ok(length @ 1..) = read else { return };
                        let sent = buffer.get(..length).unwrap_or_default();
                        // The link may have changed while the bytes were on their way.
                        let now = *state.borrow();
                        match (now, half) {
                            (Link::Deaf, Half::Answers) => lost = true,
                            (Link::Cut, _) => return,
                            (Link::Frozen, _) => {
                                if state.wait_for(|link| *link != Link::Frozen).await.is_err()
                                    || to.write_all(sent).await.is_err() { return }
                            }
                            (Link::Whole | Link::Slow(_) | Link::Deaf, _) => {
                                if let (Link::Slow(by), Half::Requests) = (now, half) {
                                    tokio::time::sleep(by).await;
                                }
                                if to.write_all(sent).await.is_err() { return }
                                if half == Half::Answers && answers.fetch_sub(1, Ordering::SeqCst) == 1 {
                                    link.send_replace(Link::Deaf);
                                }
                            }
                        }
                    }
                    changed = state.changed() => if changed.is_err() { return },
                }
            }
            (Link::Deaf, Half::Answers) => {
                tokio::select! {
                    read = from.read(&mut buffer) => {
                        if !matches!(read, Ok(1..)) { return }
                        lost = true;
                    }
                    changed = state.changed() => if changed.is_err() { return },
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers every byte with the next one.
    async fn server() -> String {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte + 1).await.unwrap();
                    }
                });
            }
        });
        addr.to_string()
    }

    async fn ask(stream: &mut TcpStream, byte: u8) -> Option<u8> {
        stream.write_u8(byte).await.ok()?;
        tokio::time::timeout(Duration::from_millis(200), stream.read_u8()).await.ok()?.ok()
    }

    #[tokio::test]
    async fn a_link_is_whole_frozen_deaf_or_cut() {
        let proxy = Proxy::start(server().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut stream, 1).await, Some(2));
        proxy.set(Link::Frozen);
        assert_eq!(ask(&mut stream, 3).await, None);
        proxy.set(Link::Whole);
        assert_eq!(stream.read_u8().await.unwrap(), 4, "what was sent meanwhile arrives afterwards");
        proxy.set(Link::Slow(Duration::from_millis(60)));
        let asked = std::time::Instant::now();
        assert_eq!(ask(&mut stream, 13).await, Some(14));
        assert!(asked.elapsed() >= Duration::from_millis(60), "{:?}", asked.elapsed());
        proxy.set(Link::Deaf);
        assert_eq!(ask(&mut stream, 5).await, None);
        proxy.set(Link::Whole);
        assert_eq!(ask(&mut stream, 7).await, None, "the connection whose answer was lost has ended");
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut stream, 8).await, Some(9));
        proxy.deafen_after(2);
        assert_eq!([ask(&mut stream, 8).await, ask(&mut stream, 8).await], [Some(9), Some(9)]);
        assert_eq!(ask(&mut stream, 8).await, None, "two answers were left");
        proxy.set(Link::Whole);
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        proxy.set(Link::Cut);
        assert_eq!(ask(&mut stream, 10).await, None);
        let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
        assert_eq!(ask(&mut stream, 11).await, None);
    }
}
