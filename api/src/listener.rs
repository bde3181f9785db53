//! Accepting connections: HTTP/1.1 with a limit on slow headers, and an end that lets requests finish.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::rate::Peer;

/// How long the head of a request may take to arrive; also how long a kept connection may stay idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// After a failure to accept (no file descriptors left, say) the next attempt waits, or it would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `router` to every connection until `stop`; then takes no new ones and waits for the requests under way, for
/// `patience` at most. Returns how many connections were cut off.
pub async fn serve_connections(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    (stop, patience): (CancellationToken, Duration),
) -> usize {
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(connections_max));
    loop {
        // A connection waits in the kernel's queue until there is room for it.
        let slot = tokio::select! {
            () = stop.cancelled() => break,
            slot = Arc::clone(&slots).acquire_owned() => slot,
        };
        let Ok(slot) = slot else { break };
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => start_connection(stream, peer, &router, (&graceful, slot)),
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let open = graceful.count();
    match tokio::time::timeout(patience, graceful.shutdown()).await {
        Ok(()) => 0,
        Err(_) => open,
    }
}

fn start_connection(
    stream: TcpStream,
    peer: Peer,
    router: &Router,
    (graceful, slot): (&GracefulShutdown, OwnedSemaphorePermit),
) {
    // An answer is one small write: waiting for more (Nagle) would only delay it.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone at once");
        return;
    }
    let router = router.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        let _slot = slot;
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection broke");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::Notify;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

    async fn ask(addr: Peer) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(REQUEST).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn a_request_under_way_is_finished_before_the_process_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (entered, leave) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (inside, go) = (Arc::clone(&entered), Arc::clone(&leave));
        let router = Router::new().route(
            "/",
            get(async move |ConnectInfo(peer): ConnectInfo<Peer>| {
                inside.notify_one();
                go.notified().await;
                peer.ip().to_string()
            }),
        );
        let stop = CancellationToken::new();
        let patience = (stop.clone(), Duration::from_secs(10));
        let serving = tokio::spawn(serve_connections(listener, router, 10, patience));
        let asking = tokio::spawn(ask(addr));
        tokio::time::timeout(Duration::from_secs(10), entered.notified()).await.unwrap();
        stop.cancel();
        leave.notify_one();
        let answer = tokio::time::timeout(Duration::from_secs(10), asking).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("127.0.0.1"), "{answer}");
        assert_eq!(tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap(), 0);
        assert!(TcpStream::connect(addr).await.is_err(), "no new connection");
    }

    #[tokio::test]
    async fn a_request_that_never_ends_does_not_keep_the_process() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let entered = Arc::new(Notify::new());
        let inside = Arc::clone(&entered);
        let router = Router::new().route(
            "/",
            get(async move || {
                inside.notify_one();
                std::future::pending::<&'static str>().await
            }),
        );
        let stop = CancellationToken::new();
        let serving = tokio::spawn(serve_connections(listener, router, 10, (stop.clone(), Duration::from_millis(50))));
        let asking = tokio::spawn(ask(addr));
        tokio::time::timeout(Duration::from_secs(10), entered.notified()).await.unwrap();
        stop.cancel();
        assert_eq!(tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap(), 1);
        asking.abort();
    }
}
