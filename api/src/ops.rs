//! The operators' listener: the board at `/`, `/metrics`, `/livez`, `/readyz`.
//!
//! On a loopback address it is open to this machine, elsewhere it asks for an API key of scope ops. Probes are always
//! open: they say nothing but yes or no unless a key asks for more.

pub mod board;
mod guard;
pub mod health;
pub mod metrics;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use domain::flow::Stores;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::auth::{ApiKeyCache, BuyerTokens, Identity};
use crate::edge::Edge;
use crate::listener::serve_connections;
use crate::problem::{Problem, ProblemCode};
use crate::rate::{RateLimits, RateSettings, TrustedProxies};
use crate::serve::{bind, key_source};
use crate::settings::{OpsSettings, ServeError};

pub use guard::Guard;
pub use health::Health;
pub use metrics::Metrics;

/// Requests at once, and connections: operators and probes are few.
const REQUESTS_MAX: usize = 256;
/// How long an operator's request may take: the board may look through many jobs.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the operators' requests may take to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the process is on its way out.
#[derive(Debug, Clone, Default)]
pub struct Draining(Arc<AtomicBool>);

impl Draining {
    /// From now on `/readyz` says no.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The running listener.
#[derive(Debug)]
pub struct OpsListener {
    draining: Draining,
    stop: CancellationToken,
    serving: JoinHandle<usize>,
}

impl OpsListener {
    /// The switch that turns readiness off.
    pub fn draining(&self) -> &Draining {
        &self.draining
    }

    /// Closes the listener.
    pub async fn stop(self) {
        self.stop.cancel();
        // A panic in it has been logged; there is nothing left to wait for then.
        let _cut = self.serving.await;
    }
}

/// Starts the operators' listener of a process: the api's or a worker's.
///
/// # Errors
/// [`ServeError`].
pub async fn start(settings: OpsSettings, stores: Stores, identity: Arc<Identity>) -> Result<OpsListener, ServeError> {
    let listener = bind(settings.addr, "HOLDFAST_OPS_ADDR").await?;
    let metrics = Metrics::install().map_err(ServeError::Metrics)?;
    let draining = Draining::default();
    let router = router(&settings, stores, identity, (metrics, draining.clone()));
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve_connections(listener, router, REQUESTS_MAX, (stop.clone(), PATIENCE)));
    Ok(OpsListener { draining, stop, serving })
}

/// Starts the operators' listener of a worker, and serves it until `shutdown`.
///
/// # Errors
/// [`ServeError`].
pub async fn serve_worker_ops(
    settings: OpsSettings,
    stores: Stores,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let identity = Arc::new(Identity {
        keys: ApiKeyCache::new(key_source(&stores)),
        tokens: BuyerTokens::new(None, None, 0)?,
        rates: RateLimits::new(&RateSettings::unlimited()),
        proxies: TrustedProxies::default(),
    });
    let listener = start(settings, stores, identity).await?;
    shutdown.cancelled().await;
    listener.draining().begin();
    listener.stop().await;
    Ok(())
}

/// The listener's router with everything around it.
pub fn router(
    settings: &OpsSettings,
    stores: Stores,
    identity: Arc<Identity>,
    (metrics, draining): (Metrics, Draining),
) -> Router {
    let edge = Edge::new("ops", REQUESTS_MAX, REQUEST_TIMEOUT, stores.pg.clock().clone());
    let guard = Guard::new(settings, identity);
    let health = Health::new(stores.clone(), draining, guard.clone());
    let guarded = Router::new()
        .route("/metrics", get(metrics::render))
        .with_state((metrics, stores.clone()))
        // The board's pages are compiled for the root: they take what no other route takes.
        .merge(board::board_router(stores.jobs.redis()))
        .layer(from_fn_with_state(guard, guard::admit));
    let router = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(health::readyz))
        .with_state(health)
        // The board's pages are the fallback: what is nowhere else is looked for there, behind the same guard.
        .merge(guarded)
        .method_not_allowed_fallback(async || Problem::new(ProblemCode::MethodNotAllowed));
    edge.seal(edge.guard(router))
}
