//! `/metrics` for Prometheus.

use std::sync::OnceLock;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use domain::flow::Stores;
use domain::queue::{queue_stats, record_queue_gauges};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Buckets of durations, in seconds: a hold takes a few milliseconds, a lost store some seconds.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How long the queues may take to say how full they are.
const QUEUES_LIMIT: Duration = Duration::from_secs(1);

/// The recorder of this process. `metrics` allows one per process, so this is the one global here.
static INSTALLED: OnceLock<PrometheusHandle> = OnceLock::new();

/// Metrics cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[error("another recorder of metrics is in place")]
pub struct MetricsError(#[from] BuildError);

/// What has been recorded.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Starts recording; a second call finds the first one's recorder.
    ///
    /// # Errors
    /// [`MetricsError`].
    pub fn install() -> Result<Self, MetricsError> {
        if let Some(handle) = INSTALLED.get() {
            return Ok(Self(handle.clone()));
        }
        let installed = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .and_then(PrometheusBuilder::install_recorder);
        match installed {
            Ok(handle) => {
                metrics::gauge!("holdfast_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
                Ok(Self(INSTALLED.get_or_init(|| handle).clone()))
            }
            // Two starts at once: the other one was first.
            Err(error) => INSTALLED.get().cloned().map(Self).ok_or(MetricsError(error)),
        }
    }
}

/// Everything that was recorded, in Prometheus's text form.
pub async fn render(State((metrics, stores)): State<(Metrics, Stores)>) -> Response {
    match tokio::time::timeout(QUEUES_LIMIT, queue_stats(stores.jobs.redis())).await {
        Ok(Ok(stats)) => record_queue_gauges(&stats),
        // The last figures stay; that the queues do not answer is a figure of its own.
        Ok(Err(_)) | Err(_) => metrics::counter!("holdfast_queue_stats_failed_total").increment(1),
    }
    metrics.0.run_upkeep();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.0.render()).into_response()
}
