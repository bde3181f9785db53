//! Putting the API process together and taking it apart again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use domain::flow::Stores;
use domain::flow::warm_up::{repair_missed, warm_up_at_start};
use domain::runtime::clock::random_secret;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::app::{App, FakeProvider};
use crate::auth::{ApiKeyCache, ApiKeySource, BuyerTokens, Identity, KnownKey, LookupError, identify};
use crate::edge::{Edge, cors};
use crate::listener::serve_connections;
use crate::ops::{self, Draining};
use crate::rate::RateLimits;
use crate::routes;
use crate::settings::{ApiSettings, ServeError};

/// The name in the installation's table of the secret that signs anonymous buyers' tokens.
const SECRET_NAME: &str = "anonymous_buyer_secret";

/// Serves the API and the operators' listener until `shutdown`, then lets requests finish.
///
/// # Errors
/// [`ServeError`] where it cannot start.
pub async fn serve(settings: ApiSettings, stores: Stores, shutdown: CancellationToken) -> Result<(), ServeError> {
    let listener = bind(settings.addr, "HOLDFAST_ADDR").await?;
    let identity = identity(&settings, &stores).await?;
    follow_clock(&stores, shutdown.clone()).await;
    let fake = if settings.fake_provider { FakeProvider::Allowed } else { FakeProvider::Refused };
    let app = App::new(stores.clone(), Arc::clone(&identity), fake, settings.streams);
    let router = public_router(&settings, app.clone())?;
    let ops = ops::start(settings.ops.clone(), stores.clone(), identity).await?;
    tokio::spawn(warm_up_at_start(stores.clone(), "api".to_owned(), shutdown.clone()));
    tokio::spawn(repair_missed(stores, shutdown.clone()));
    tracing::info!(addr = %settings.addr, ops_addr = %settings.ops.addr, "serving");

    let stop = CancellationToken::new();
    let patience = Duration::from_millis(settings.ops.stop_ms);
    let connections_max = usize::try_from(settings.connections_max).unwrap_or(usize::MAX);
    let serving = tokio::spawn(serve_connections(listener, router, connections_max, (stop.clone(), patience)));
    shutdown.cancelled().await;
    drain(ops.draining(), &settings).await;
    app.close_streams();
    stop.cancel();
    let cut = serving.await.unwrap_or_default();
    // What has been asked for is done, even if nobody is left to be told.
    if tokio::time::timeout(patience, app.finish_writes()).await.is_err() {
        tracing::warn!("some writes did not end in time");
    }
    ops.stop().await;
    tracing::info!(connections_cut = cut, "stopped");
    Ok(())
}

/// Asks Postgres for the time, now and now and then: what callers are told must not depend on this machine's clock.
async fn follow_clock(stores: &Stores, shutdown: CancellationToken) {
    const ASK_EVERY: Duration = Duration::from_secs(30);
    let pg = stores.pg.clone();
    let _away_for_now = pg.now().await;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(ASK_EVERY) => {}
            }
            let _away_for_now = pg.now().await;
        }
    });
}

/// Readiness says no first, so that whoever sends requests here sends them elsewhere before the door is shut.
async fn drain(draining: &Draining, settings: &ApiSettings) {
    draining.begin();
    tracing::info!(drain_ms = settings.ops.drain_ms, "draining");
    tokio::time::sleep(Duration::from_millis(settings.ops.drain_ms)).await;
}

pub(crate) async fn bind(addr: SocketAddr, setting: &'static str) -> Result<TcpListener, ServeError> {
    TcpListener::bind(addr).await.map_err(|source| ServeError::Listen { addr, setting, source })
}

/// The public listener's router with everything around it: what `serve` serves, and what tests call.
///
/// # Errors
/// [`ServeError::Origin`].
pub fn public_router(settings: &ApiSettings, app: App) -> Result<Router, ServeError> {
    let requests_max = usize::try_from(settings.requests_max).unwrap_or(usize::MAX);
    let clock = app.stores().pg.clock().clone();
    let edge = Edge::new("api", requests_max, settings.request_timeout(), clock);
    let identity = Arc::clone(app.identity());
    let router = routes::router(app).layer(from_fn_with_state(identity, identify));
    let mut router = edge.guard(router);
    if let Some(layer) = cors(&settings.cors_origins).map_err(ServeError::Origin)? {
        router = router.layer(layer);
    }
    Ok(edge.seal(router))
}

/// Keys, tokens and rates as the settings say.
///
/// # Errors
/// [`ServeError`] names the setting at fault, or Postgres cannot tell the installation's secret.
pub async fn identity(settings: &ApiSettings, stores: &Stores) -> Result<Arc<Identity>, ServeError> {
    let own_secret = if settings.anonymous_buyers {
        // One secret for the installation: a token made by one process is good at every other, and after a restart.
        let new: String = random_secret().iter().map(|byte| format!("{byte:02x}")).collect();
        Some(stores.pg.keep_installation_value(SECRET_NAME, &new).await.map_err(ServeError::Secret)?)
    } else {
        None
    };
    let secret = own_secret.as_ref().map(String::as_bytes);
    Ok(Arc::new(Identity {
        keys: ApiKeyCache::new(key_source(stores)),
        tokens: BuyerTokens::new(settings.shop_key().as_ref(), secret, settings.anonymous_buyer_ttl_seconds)?,
        rates: RateLimits::new(&settings.rates),
        proxies: settings.proxies()?,
    }))
}

/// API keys as Postgres has them.
pub fn key_source(stores: &Stores) -> ApiKeySource {
    let pg = stores.pg.clone();
    Arc::new(move |hash| {
        let pg = pg.clone();
        Box::pin(async move {
            let found = pg.find_api_key(&hash).await.map_err(|error| LookupError(Box::new(error)))?;
            Ok(found.map(|(id, scope)| KnownKey { id, scope }))
        })
    })
}
