//! `holdfast migrate`: brings the database's schema up to date.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::output::{OutputArgs, end, print};
use crate::runtime::{DatabaseArgs, block_on};

/// Arguments of `holdfast migrate`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  DATABASE_URL=postgres://holdfast@localhost/holdfast holdfast migrate")]
pub struct MigrateArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `holdfast migrate`. Safe to run again, and by several at once.
#[must_use]
pub fn run(args: &MigrateArgs) -> ExitCode {
    end(block_on(async {
        args.database.connect()?.migrate().await?;
        Ok(print(args.output, &json!({ "migrated": true }), "the database is up to date")?)
    }))
}
