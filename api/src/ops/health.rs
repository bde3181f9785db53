//! Whether this process can do its work.
//!
//! `/livez` speaks for the process only: restarting it cures neither Postgres nor Redis. `/readyz` says no where
//! requests would fail (Postgres away, migrations missing, draining), and `degraded` where they are only slower (Redis
//! away, or not warmed up yet).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use domain::flow::Stores;
use serde::Serialize;
use tokio::sync::Mutex;

use super::{Draining, Guard};
use crate::edge::Verbatim;

/// How long a check may take.
const CHECK_LIMIT: Duration = Duration::from_secs(2);
/// How long a result is repeated: many probes cost no more than one.
const KEPT: Duration = Duration::from_millis(500);

/// How one thing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// As it should be.
    Ok,
    /// The work goes on without it, slower.
    Degraded,
    /// The work cannot be done.
    Failed,
}

/// One thing and how it is.
#[derive(Debug, Clone, Serialize)]
struct Check {
    name: &'static str,
    state: Condition,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<Cow<'static, str>>,
}

/// What there is to know.
#[derive(Debug, Clone, Serialize)]
struct Report {
    status: Condition,
    checks: Vec<Check>,
}

/// Looks at the stores, at most once every half second.
#[derive(Clone)]
pub struct Health {
    stores: Stores,
    draining: Draining,
    guard: Guard,
    last: Arc<Mutex<Option<(Instant, Report)>>>,
}

impl Health {
    /// Health over these stores; `guard` decides who may read the details.
    pub fn new(stores: Stores, draining: Draining, guard: Guard) -> Self {
        Self { stores, draining, guard, last: Arc::default() }
    }

    async fn report(&self) -> Report {
        // One looks, the others wait for what it finds.
        let mut last = self.last.lock().await;
        let recent = last.as_ref().filter(|(at, _)| at.elapsed() < KEPT).map(|(_, report)| report.clone());
        let mut report = match recent {
            Some(report) => report,
            None => {
                let report = look(&self.stores).await;
                *last = Some((Instant::now(), report.clone()));
                report
            }
        };
        if self.draining.has_begun() {
            report.status = Condition::Failed;
            report.checks.push(Check {
                name: "draining",
                state: Condition::Failed,
                note: Some("the process is stopping".into()),
            });
        }
        report
    }
}

async fn look(stores: &Stores) -> Report {
    let postgres = async {
        match tokio::time::timeout(CHECK_LIMIT, stores.pg.is_migrated()).await {
            Ok(Ok(true)) => [(Condition::Ok, None), (Condition::Ok, None)],
            Ok(Ok(false)) => [(Condition::Ok, None), (Condition::Failed, Some("run `holdfast migrate`"))],
            Ok(Err(_)) => [(Condition::Failed, Some("it does not answer")), (Condition::Failed, Some("unknown"))],
            Err(_) => [(Condition::Failed, Some("it is too slow")), (Condition::Failed, Some("unknown"))],
        }
    };
    let redis = async {
        match tokio::time::timeout(CHECK_LIMIT, stores.redis.probe()).await {
            Ok(Ok(())) => (Condition::Ok, None),
            Ok(Err(_)) => (Condition::Degraded, Some("it does not answer: holds go on from Postgres alone")),
            Err(_) => (Condition::Degraded, Some("it is too slow: holds go on from Postgres alone")),
        }
    };
    let warm_up = async {
        match tokio::time::timeout(CHECK_LIMIT, stores.redis.epoch()).await {
            Ok(Ok(Some(_))) => (Condition::Ok, None),
            Ok(Ok(None)) => (Condition::Degraded, Some(warm_up_note(stores).await)),
            Ok(Err(_)) | Err(_) => (Condition::Degraded, Some(Cow::Borrowed("unknown"))),
        }
    };
    // Only looked at: setting what is missing is the workers' part.
    let settings = async {
        match tokio::time::timeout(CHECK_LIMIT, stores.redis.check_server(false)).await {
            Ok(Ok(found)) if found.warnings.is_empty() => (Condition::Ok, None),
            Ok(Ok(found)) if !found.announces_expiries => {
                (Condition::Ok, Some("warning: expiry bridge: notifications off, or unknown; the sweep expires alone"))
            }
            Ok(Ok(_)) => (Condition::Ok, Some("warning: maxmemory-policy must be noeviction and hz 100")),
            Ok(Err(_)) | Err(_) => (Condition::Degraded, Some("unknown")),
        }
    };
    let ([postgres, migrations], redis, settings, warm_up) = tokio::join!(postgres, redis, settings, warm_up);
    let fixed = |(state, note): (Condition, Option<&'static str>)| (state, note.map(Cow::Borrowed));
    let named = [
        ("postgres", fixed(postgres)),
        ("migrations", fixed(migrations)),
        ("redis", fixed(redis)),
        ("redis_settings", fixed(settings)),
        ("warm_up", warm_up),
    ];
    let checks: Vec<Check> = named.into_iter().map(|(name, (state, note))| Check { name, state, note }).collect();
    let has = |state| checks.iter().any(|check| check.state == state);
    let status = match (has(Condition::Failed), has(Condition::Degraded)) {
        (true, _) => Condition::Failed,
        (false, true) => Condition::Degraded,
        (false, false) => Condition::Ok,
    };
    Report { status, checks }
}

/// How far a worker is that rebuilds Redis.
async fn warm_up_note(stores: &Stores) -> Cow<'static, str> {
    match tokio::time::timeout(CHECK_LIMIT, stores.redis.warm_up_progress()).await {
        Ok(Ok(Some(progress))) => format!("a worker is rebuilding Redis from Postgres: {progress} so far").into(),
        Ok(Ok(None) | Err(_)) | Err(_) => "a worker has still to rebuild Redis from Postgres".into(),
    }
}

/// `ok` or `degraded` with 200, `failed` with 503; with `?verbose`, for who may see it, what is the matter.
pub async fn readyz(State(health): State<Health>, method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let report = health.report().await;
    let verbose =
        uri.query().is_some_and(|query| query.split('&').any(|it| it == "verbose" || it.starts_with("verbose=")));
    let status = if report.status == Condition::Failed { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    if verbose && let Err(problem) = health.guard.admit(&method, &headers).await {
        return problem.into_response();
    }
    let body = if verbose {
        serde_json::json!({ "status": report.status, "checks": report.checks })
    } else {
        serde_json::json!({ "status": report.status })
    };
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response();
    response.extensions_mut().insert(Verbatim);
    if !status.is_success() {
        response.headers_mut().insert(header::RETRY_AFTER, 1.into());
    }
    response
}
