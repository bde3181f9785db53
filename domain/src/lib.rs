//! Holdfast's model and rules, and with the feature `io` its stores and flows.
//!
//! Without `io` this crate asks the world for nothing: no clock, no randomness, no network.
//!
//! # Words
//! *Venue, block, column, row, seat* are fixed places. An *event* is what people attend. A *claim* is the Postgres row
//! that owns one seat of one event; a *seat bucket* is the Redis value that shows it. A *reservation* is a buyer's
//! seats for one event; to *hold* is to make one; its *deadline* is when it dies unless it is paid for. A *job* is work
//! in a *queue*. The *bridge* turns expired keys into jobs, the *sweep* catches what the bridge missed, the *warm-up*
//! rebuilds Redis from Postgres. A *seat change* is the message that a seat's status changed.
//!
//! # Invariants
//! - **I1** A seat of an event has at most one owner.
//! - **I2** Once settled: CONFIRMED ⇔ its seats are sold to it ⇔ captured − refunded = the price of its seats.
//!   CONFIRMED is never said before the money is captured.
//! - **I3** No seat stays held past its deadline for a next buyer; with workers running, none looks held for more than
//!   1 s after it.
//! - **I4** Multi-seat holds are all or nothing, and a refusal names every seat in conflict.
//! - **I5** Every accepted job is done, waiting or in the dead list; each outside effect happened once.
//! - **I6** Snapshot + following seat changes = a fresh snapshot. Postgres and Redis agree once settled.
//! - **I7** With nothing to do, the expiry machinery sends Postgres no queries at all.
//! - **I8** A hold costs the same at a thousand seats and at a million.

pub mod id;
pub mod label;
pub mod money;
pub mod time;

pub mod demo;
pub mod import;
pub mod venue;

pub mod decide;
pub mod event;
pub mod gateway;
pub mod limits;
pub mod payment;
pub mod reservation;
pub mod seat;
pub mod seat_map;

#[cfg(feature = "io")]
pub mod flow;
#[cfg(feature = "io")]
pub mod queue;
#[cfg(feature = "io")]
pub mod runtime;
#[cfg(feature = "io")]
pub mod store;
