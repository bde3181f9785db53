//! `holdfast dev reset`.

use std::process::ExitCode;

use clap::Args;

use super::DataDirArgs;
use super::error::{DevError, print};
use crate::services::remove_data_dir;

/// Arguments of `holdfast dev reset`.
#[derive(Debug, Args)]
pub(super) struct ResetArgs {
    #[command(flatten)]
    data_dir: DataDirArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: ResetArgs) -> Result<ExitCode, DevError> {
    let path = args.data_dir.resolve()?;
    let removed = remove_data_dir(&path)?;
    let shown = path.display().to_string();
    if args.json {
        print(&serde_json::json!({ "data_dir": shown, "removed": removed }).to_string())?;
    } else if removed {
        print(&format!("Removed {shown}"))?;
    } else {
        print(&format!("Nothing to remove: there is no {shown}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
