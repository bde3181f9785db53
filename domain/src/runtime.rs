//! What the world gives: the clock, randomness, settings, telemetry, the signal to stop.

pub mod clock;
pub mod settings;
pub mod telemetry;
