//! Breaks the engine by a seed, and proves that nothing was lost.
//!
//! - [`run`]: many histories at once, each on an event of its own, on real stores.
//! - [`history`]: one history: its steps, what breaks, and what comes to rest at its end.
//! - [`oracle`]: who may own what, from what callers were told; shares no code with the flows and stores.
//! - [`audit`]: reads Postgres and Redis by its own means and says what breaks an invariant.
//! - [`provider`]: a payment provider that obeys a script and keeps books of its own.
//! - [`chaos`]: the judgement of a chaos run, in which real processes die under real load.
//! - [`proxy`]: a network that breaks.

pub mod audit;
pub mod chaos;
pub mod conform;
pub mod history;
mod jobs;
pub mod lane;
pub mod model;
pub mod mutations;
pub mod op;
pub mod oracle;
pub mod provider;
pub mod proxy;
pub mod rng;
pub mod run;
pub mod settle;
pub mod stop;
pub mod workload;
