//! Which entries of the sources are copied: patterns with rsync's meaning, sizes,
//! and lists of names. Pure: nothing is asked of a disk here.

/// What is left out of a copy, and protected from being deleted.
#[derive(Clone, Debug, Default)]
pub struct Filter {}

impl Filter {
    /// Whether a name of the destination must not be removed.
    pub(crate) fn protects(&self, _path_below_dest_root: &[u8], _is_dir: bool) -> bool {
        false
    }
}
