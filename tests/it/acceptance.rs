//! Acceptance cases that no subject's own module shows: faults that real systems of this kind have had, restated for this
//! one. A case's id stands before its test.

mod blocks;
mod callers;
mod clocks;
mod imports;
mod maps;
mod postgres;
mod scripts;
mod takeover;
