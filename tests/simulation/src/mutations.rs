//! Does the proof bite? Faults put into the engine's source on purpose, one at a time; each must be noticed.

mod bench;
mod table;

pub use bench::{Bench, BenchError, Verdict};
pub use table::MUTATIONS;

/// What must notice a mutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Catcher {
    /// The random histories of the model, which decides by the engine's code.
    Model,
    /// The comparison of the engine on real stores with the model.
    Conform,
    /// The simulation: histories that break on real stores, and an auditor that shares no code with the flows.
    Sim,
}

impl Catcher {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Model, Self::Conform, Self::Sim];

    /// The binary.
    #[must_use]
    pub fn binary(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Conform => "conform",
            Self::Sim => "sim",
        }
    }

    /// How many histories it may take.
    #[must_use]
    pub fn histories(self) -> u64 {
        match self {
            Self::Model => 50_000,
            Self::Conform => 400,
            Self::Sim => 500,
        }
    }
}

/// A fault.
#[derive(Debug, Clone, Copy)]
pub struct Mutation {
    /// Its name.
    pub name: &'static str,
    /// The file, from the repository's root.
    pub file: &'static str,
    /// What stands there, exactly once.
    pub find: &'static str,
    /// What is put there.
    pub replace: &'static str,
    /// What it breaks.
    pub invariant: &'static str,
    /// What it is, in a line.
    pub why: &'static str,
    /// What must notice it.
    pub catcher: Catcher,
}

impl Mutation {
    /// The file's text with the fault in it; none where its place is not there exactly once.
    #[must_use]
    pub fn apply(&self, text: &str) -> Option<String> {
        (text.matches(self.find).count() == 1).then(|| text.replacen(self.find, self.replace, 1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_mutation_has_one_place_in_the_source() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let lost: Vec<&str> = MUTATIONS
            .iter()
            .filter(|mutation| {
                let text = std::fs::read_to_string(root.join(mutation.file)).unwrap_or_default();
                mutation.apply(&text).is_none()
            })
            .map(|mutation| mutation.name)
            .collect();
        assert!(lost.is_empty(), "the source has changed under these: {lost:?}");
    }

    #[test]
    fn mutations_have_names_of_their_own() {
        let names: HashSet<&str> = MUTATIONS.iter().map(|mutation| mutation.name).collect();
        assert_eq!(names.len(), MUTATIONS.len());
        assert!(MUTATIONS.len() >= 12);
    }
}
