//! The harness of the tests that need real stores: a fresh database and a Redis prefix for each test, events on sale,
//! time that the test moves, a payment provider that obeys a script, and an auditor.
//!
//! - [`stores::TestStores`]: one test's stores; dropped, they leave nothing behind.
//! - [`sale::Sale`]: an event on sale there, its seats named as people name them (`A-1`).
//! - [`provider::ScriptedProvider`]: a payment provider that outlives crashes, as a real one does.
//! - [`process::EngineProcess`]: a process of the engine, started for real, to be killed.
//! - [`repair::settle`]: what the workers would do, done at once, by the flows.
//! - [`audit`]: reads Postgres and Redis by its own means and says what breaks an invariant.
//! - [`worker::RunningWorker`]: a worker, with bridge and sweep, in this process.
//! - [`wait::until`]: waits for a condition; nothing here sleeps for a while and hopes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a harness that cannot go on fails its test"
)]

pub mod audit;
pub mod process;
pub mod repair;
pub mod sale;
pub mod servers;
pub mod stores;
pub mod wait;
pub mod web;
pub mod worker;

pub use simulation::provider;
