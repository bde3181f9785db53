//! A worker in the test's own process: all queues, the bridge and the sweep.

use std::time::Duration;

use domain::queue::Queue;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use workers::WorkerSettings;

use crate::stores::TestStores;

/// A worker that runs. Dropped, it is asked to stop.
pub struct RunningWorker {
    shutdown: CancellationToken,
    run: JoinHandle<()>,
}

impl RunningWorker {
    /// Starts a worker on connections of its own, as another process would have them.
    pub fn start(test: &TestStores) -> Self {
        let settings = WorkerSettings { queues: Queue::ALL.to_vec(), configure_redis: test.settings.redis_configure };
        let shutdown = CancellationToken::new();
        let run = tokio::spawn(workers::run(test.another_process(), settings, shutdown.clone()));
        Self { shutdown, run }
    }

    /// Stops it in good order.
    ///
    /// # Panics
    /// Where it does not end in a reasonable time, or has panicked.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(30), &mut self.run).await;
        ended.expect("the worker stops").expect("the worker has not panicked");
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}
