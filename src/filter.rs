//! Which entries of the sources are copied: patterns with rsync's meaning, sizes,
//! and lists of names. Pure: nothing is asked of a disk here.

/// What is left out of a copy, and protected from being deleted.
#[derive(Clone, Debug, Default)]
pub struct Filter {}
