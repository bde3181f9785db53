//! What the binary `holdfast` is made of: the private Postgres and Redis that `holdfast dev` and the tests run on, and
//! one module per subcommand.

pub mod api;
pub mod audit;
pub mod chaos;
pub mod dev;
pub mod events;
pub mod import;
pub mod jobs;
pub mod keys;
pub mod migrate;
pub mod openapi;
pub mod output;
pub mod runtime;
pub mod services;
pub mod sim;
pub mod worker;
