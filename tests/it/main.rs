//! The tests that need real stores: one binary, a module for each subject.

#![cfg(test)]

mod harness;
