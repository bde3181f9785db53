//! What the binary `holdfast` is made of: the private Postgres and Redis that `holdfast dev` and the tests run on, and
//! one module per subcommand.

pub mod dev;
pub mod services;
