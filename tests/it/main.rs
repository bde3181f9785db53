//! The tests that need real stores: one binary, a module for each subject.

#![cfg(test)]

mod acceptance;
mod attacks;
mod audit;
mod blocking;
mod board;
mod bursts;
mod chaos;
mod crashes;
mod deadlines;
mod expiry;
mod failover;
mod harness;
mod holds;
mod http;
mod idempotency;
mod kills;
mod layout;
mod limits;
mod mirror;
mod model_conformance;
mod names;
mod payments;
mod processes;
mod races;
mod redis_gone;
mod redis_servers;
mod simulation;
mod stale_healing;
mod warm_up;
mod workers;
