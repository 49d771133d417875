//! Filters in the order in which they were typed, over all four options.

use std::ffi::OsString;
use std::path::PathBuf;

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

/// All of them, by their place on the command line.
pub(super) fn in_order(matches: &ArgMatches) -> Vec<RuleArg> {
    let matches = match matches.subcommand() {
        Some(("plan", matches)) => matches,
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
