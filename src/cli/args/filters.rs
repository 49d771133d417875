//! Filters in the order in which they were typed, over all four options.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use haul::Filter;

use super::typed::Filtering;

/// One filter option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum RuleArg {
    /// A pattern, and whether it takes or leaves out.
    Pattern(OsString, bool),
    /// A file with such patterns.
    File(PathBuf, bool),
}

/// What is still to be read, of which entries count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct Selection {
    /// Filters, in the order in which they were given.
    pub(in crate::cli) rules: Vec<RuleArg>,
    /// A list of paths; `-` is standard input.
    pub(in crate::cli) files_from: Option<PathBuf>,
    /// What separates entries of lists and of pattern files.
    pub(in crate::cli) from0: bool,
    /// Listed directories stand for all that is in them.
    pub(in crate::cli) recursive: bool,
}

impl Selection {
    pub(super) fn new(rules: Vec<RuleArg>, typed: &Filtering, recursive: bool) -> Selection {
        Selection {
            rules,
            files_from: typed.files_from.clone(),
            from0: typed.from0,
            recursive,
        }
    }

    /// Every file that is to be read.
    pub(in crate::cli) fn files(&self) -> impl Iterator<Item = &Path> {
        let of_rules = self.rules.iter().filter_map(|rule| match rule {
            RuleArg::File(path, _) => Some(&**path),
            RuleArg::Pattern(..) => None,
        });
        of_rules.chain(self.files_from.as_deref())
    }
}

/// All filters, by their place on the command line.
pub(super) fn in_order(matches: &ArgMatches) -> Vec<RuleArg> {
    let matches = match matches.subcommand() {
        Some(("plan" | "verify", matches)) => matches,
        Some(_) => return Vec::new(),
        None => matches,
    };
    let mut rules: Vec<(usize, RuleArg)> = Vec::new();
    for (name, takes) in [("exclude", false), ("include", true)] {
        let values = matches.get_many::<OsString>(name).unwrap_or_default();
        let places = matches.indices_of(name).unwrap_or_default();
        rules.extend(places.zip(values.map(|v| RuleArg::Pattern(v.clone(), takes))));
    }
    for (name, takes) in [("exclude_from", false), ("include_from", true)] {
        let values = matches.get_many::<PathBuf>(name).unwrap_or_default();
        let places = matches.indices_of(name).unwrap_or_default();
        rules.extend(places.zip(values.map(|v| RuleArg::File(v.clone(), takes))));
    }
    rules.sort_by_key(|(place, _)| *place);
    rules.into_iter().map(|(_, rule)| rule).collect()
}

pub(super) fn sizes(typed: &Filtering) -> Filter {
    let mut filter = Filter::default();
    (filter.min_size, filter.max_size) = (typed.min_size, typed.max_size);
    filter
}
