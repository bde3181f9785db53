//! `holdfast openapi`: prints the OpenAPI document, as `GET /openapi.json` serves it.

use std::io::Write as _;
use std::process::ExitCode;

use crate::output::{CommandError, end};

/// Runs `holdfast openapi`.
#[must_use]
pub fn run() -> ExitCode {
    end(write())
}

fn write() -> Result<(), CommandError> {
    let document = serde_json::to_string_pretty(&::api::openapi::document())?;
    Ok(writeln!(std::io::stdout().lock(), "{document}")?)
}
