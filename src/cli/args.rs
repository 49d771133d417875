//! What the command line means: a checked [`Request`] from what was [`typed`].
//! Nothing is opened here.

mod filters;
mod size;
mod typed;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use haul::{Backup, Dedup, DedupIgnore, Options, Order, Reflink, Verify};

pub(super) use filters::{RuleArg, Selection};
use typed::{DedupMay, HowDedup, HowVerify, Typed, WhenReflink, WhichOrder};

/// A command line that makes sense.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) options: Options,
    pub(super) selection: Selection,
    pub(super) show: Show,
}

/// What to do.
#[derive(Debug)]
pub(super) enum Verb {
    Copy {
        sources: Vec<PathBuf>,
        dest: PathBuf,
    },
    Plan {
        sources: Vec<PathBuf>,
        dest: Option<PathBuf>,
    },
    Verify {
        src: PathBuf,
        dst: PathBuf,
    },
    Dedup {
        path: PathBuf,
        dry_run: bool,
    },
    Cache(CacheVerb),
}

/// What to do with the digests that are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheVerb {
    Show,
    Prune,
    Clear,
}

/// What to say meanwhile and at the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Show {
    pub(super) json: bool,
    pub(super) quiet: bool,
    pub(super) verbose: bool,
    pub(super) progress: bool,
}

/// Parses and checks. The error is clap's, also for `--help` and `--version`.
pub(super) fn parse(argv: impl IntoIterator<Item = OsString>) -> Result<Request, clap::Error> {
    let argv: Vec<OsString> = argv.into_iter().collect();
    let matches = Typed::command().try_get_matches_from(&argv)?;
    let typed = Typed::from_arg_matches(&matches)?;
    let rules = filters::in_order(&matches);
    match typed.verb {
        None => copy(typed.copy, rules, argv.iter().any(|arg| arg == "--")),
        Some(typed::Verb::Plan(plan)) => Ok(Request {
            options: Options {
                one_file_system: plan.choosing.one_file_system,
                checksum: plan.choosing.checksum,
                filter: filters::sizes(&plan.filtering),
                ..plan.second.options(plan.reading.options())
            },
            selection: Selection::new(rules, &plan.filtering, plan.habit.recursive),
            show: plan.talking.show(),
            verb: Verb::Plan {
                sources: plan.sources,
                dest: plan.to,
            },
        }),
        Some(typed::Verb::Verify(compare)) => Ok(Request {
            options: Options {
                one_file_system: compare.one_file_system,
                filter: filters::sizes(&compare.filtering),
                cached: compare.cached,
                ..compare.reading.options()
            },
            selection: Selection::new(rules, &compare.filtering, compare.recursive),
            show: compare.talking.show(),
            verb: Verb::Verify {
                src: compare.src,
                dst: compare.dst,
            },
        }),
        Some(typed::Verb::Dedup(join)) => Ok(Request {
            options: Options {
                one_file_system: join.one_file_system,
                dedup: how(Some(join.dedup)),
                dedup_ignore: ignore(&join.dedup_ignore),
                cache: (!join.no_cache).then(cache_file).flatten(),
                ..join.reading.options()
            },
            selection: Selection::default(),
            show: join.talking.show(),
            verb: Verb::Dedup {
                path: join.path,
                dry_run: join.dry_run,
            },
        }),
        Some(typed::Verb::Cache(cache)) => Ok(Request {
            options: Options::default(),
            selection: Selection::default(),
            show: cache.talking.show(),
            verb: Verb::Cache(match cache {
                typed::Cache { clear: true, .. } => CacheVerb::Clear,
                typed::Cache { prune: true, .. } => CacheVerb::Prune,
                _ => CacheVerb::Show,
            }),
        }),
    }
}

/// What cannot be the first source without `./`.
const VERBS: [&str; 4] = ["plan", "verify", "dedup", "cache"];

fn copy(typed: typed::Copy, rules: Vec<RuleArg>, escaped: bool) -> Result<Request, clap::Error> {
    let mut sources = typed.paths;
    let dest = sources.pop().unwrap_or_default();
    let Some(first) = sources.first() else {
        let message = "a source and a destination are needed: haul SOURCE... DEST";
        return Err(Typed::command().error(ErrorKind::TooFewValues, message));
    };
    // `haul --json plan a` would copy a directory called "plan" into "a".
    if !escaped && VERBS.iter().any(|verb| first.as_os_str() == *verb) {
        let name = first.display();
        let message = format!(
            "options follow the verb: haul {name} [OPTIONS] ...; a source called {name} is reached as ./{name}"
        );
        return Err(Typed::command().error(ErrorKind::ArgumentConflict, message));
    }
    let selection = Selection::new(rules, &typed.filtering, typed.habit.recursive);
    let options = Options {
        verify: match typed.verify {
            HowVerify::Read => Verify::Read,
            HowVerify::Durable => Verify::Durable,
            HowVerify::None => Verify::None,
        },
        reflink: match typed.reflink {
            WhenReflink::Auto => Reflink::Auto,
            WhenReflink::Always => Reflink::Always,
            WhenReflink::Never => Reflink::Never,
        },
        one_file_system: typed.choosing.one_file_system,
        checksum: typed.choosing.checksum,
        force: typed.force,
        mkpath: typed.mkpath,
        dedup: how(typed.twins.dedup),
        dedup_ignore: ignore(&typed.twins.dedup_ignore),
        filter: filters::sizes(&typed.filtering),
        cache: typed.twins.cache(typed.choosing.checksum),
        ..typed.second.options(typed.reading.options())
    };
    let verb = if typed.dry_run {
        Verb::Plan {
            sources,
            dest: Some(dest),
        }
    } else {
        Verb::Copy { sources, dest }
    };
    Ok(Request {
        verb,
        options,
        selection,
        show: typed.talking.show(),
    })
}

impl typed::Second {
    fn options(self, others: Options) -> Options {
        let backup = self.backup || self.backup_dir.is_some();
        let suffix = self.suffix.unwrap_or_else(|| match self.backup_dir {
            Some(_) => OsString::new(),
            None => "~".into(),
        });
        Options {
            update: self.update,
            ignore_existing: self.ignore_existing,
            existing: self.existing,
            modify_window: self.modify_window,
            delete: self.delete,
            ignore_errors: self.ignore_errors,
            max_delete: self.max_delete,
            backup: backup.then_some(Backup {
                dir: self.backup_dir,
                suffix,
            }),
            link_dest: self.link_dest,
            delta: self.delta,
            inplace: self.inplace,
            checkpoint: self.checkpoint,
            ..others
        }
    }
}

fn how(dedup: Option<HowDedup>) -> Dedup {
    match dedup {
        None => Dedup::None,
        Some(HowDedup::Link) => Dedup::Link,
        Some(HowDedup::Reflink) => Dedup::Reflink,
    }
}

fn ignore(listed: &[DedupMay]) -> DedupIgnore {
    let has = |what| listed.contains(&what);
    DedupIgnore {
        time: has(DedupMay::Time),
        mode: has(DedupMay::Mode),
        owner: has(DedupMay::Owner),
        xattr: has(DedupMay::Xattr),
    }
}

impl typed::Twins {
    /// The file that remembers digests, where they help or are asked for.
    fn cache(&self, checksum: bool) -> Option<PathBuf> {
        let wanted = self.cache || self.dedup.is_some() || checksum;
        (wanted && !self.no_cache).then(cache_file).flatten()
    }
}

/// `$XDG_CACHE_HOME/haul/digests.sqlite`, in ~/.cache where that is not set
/// (XDG Base Directory Specification: a path that is not absolute is ignored).
pub(super) fn cache_file() -> Option<PathBuf> {
    let absolute = |name| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(base?.join("haul/digests.sqlite"))
}

impl typed::Reading {
    fn options(&self) -> Options {
        Options {
            order: match self.order {
                WhichOrder::Auto => Order::Auto,
                WhichOrder::Physical => Order::Physical,
                WhichOrder::Inode => Order::Inode,
                WhichOrder::None => Order::None,
            },
            memory: self.memory,
            threads: self.threads.map(usize::from),
            ..Options::default()
        }
    }
}

impl typed::Talking {
    fn show(&self) -> Show {
        let silent = self.quiet || self.json;
        Show {
            json: self.json,
            quiet: self.quiet,
            verbose: self.verbose,
            progress: io::stderr().is_terminal() && !self.no_progress && (self.progress || !silent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Request {
        parse(argv(line)).unwrap_or_else(|e| panic!("haul {line}: {e}"))
    }

    fn refused(line: &str) -> clap::Error {
        match parse(argv(line)) {
            Ok(request) => panic!("haul {line} was taken for {request:?}"),
            Err(e) => e,
        }
    }

    fn argv(line: &str) -> Vec<OsString> {
        ["haul"]
            .into_iter()
            .chain(line.split_whitespace())
            .map(OsString::from)
            .collect()
    }

    fn copied(line: &str) -> (Vec<PathBuf>, PathBuf) {
        match parsed(line).verb {
            Verb::Copy { sources, dest } => (sources, dest),
            other => panic!("haul {line} was taken for {other:?}"),
        }
    }

    #[test]
    fn the_command_is_well_formed() {
        Typed::command().debug_assert();
    }

    #[test]
    fn the_last_path_is_the_destination_wherever_options_stand() {
        let want = (vec!["a".into(), "b/".into()], "c".into());
        for line in [
            "a b/ c",
            "-x a b/ c",
            "a -x b/ c",
            "a b/ -x c",
            "a b/ c -x",
            "-- a b/ c",
            "a --memory 1G b/ c",
        ] {
            assert_eq!(copied(line), want, "haul {line}");
        }
    }

    #[test]
    fn verbs_are_verbs_only_in_front() {
        assert_eq!(copied("a plan"), (vec!["a".into()], "plan".into()));
        assert_eq!(
            copied("./plan verify"),
            (vec!["./plan".into()], "verify".into())
        );
        assert_eq!(copied("-- plan b"), (vec!["plan".into()], "b".into()));
        assert_eq!(copied("help me"), (vec!["help".into()], "me".into()));
        for line in ["--json plan a", "-v verify a b", "-x plan a b"] {
            assert!(refused(line).to_string().contains("follow the verb"));
        }
    }

    #[test]
    fn plan_takes_sources_and_a_destination_by_name() {
        for line in ["plan a b --to c", "plan --to c a b", "plan a --to=c b"] {
            match parsed(line).verb {
                Verb::Plan { sources, dest } => {
                    assert_eq!(sources, [PathBuf::from("a"), "b".into()]);
                    assert_eq!(dest, Some("c".into()));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(
            parsed("plan a").verb,
            Verb::Plan { dest: None, .. }
        ));
    }

    #[test]
    fn a_dry_run_is_a_plan_with_the_copy_s_options() {
        let request = parsed("-n -x -c a b");
        assert!(matches!(request.verb, Verb::Plan { dest: Some(_), .. }));
        assert!(request.options.one_file_system && request.options.checksum);
    }

    #[test]
    fn verify_the_verb_takes_two_trees() {
        assert!(matches!(parsed("verify a b").verb, Verb::Verify { .. }));
        refused("verify a");
        refused("verify a b c");
    }

    #[test]
    fn cache_shows_prunes_or_clears() {
        for (line, want) in [
            ("cache", CacheVerb::Show),
            ("cache --json", CacheVerb::Show),
            ("cache --prune", CacheVerb::Prune),
            ("cache --clear", CacheVerb::Clear),
        ] {
            assert!(
                matches!(parsed(line).verb, Verb::Cache(verb) if verb == want),
                "haul {line}"
            );
        }
        refused("cache --prune --clear");
        refused("cache a");
        assert!(
            refused("--json cache a")
                .to_string()
                .contains("follow the verb")
        );
    }

    #[test]
    fn verify_the_option_means_durable_when_bare() {
        for (line, want) in [
            ("a b", Verify::Read),
            ("--verify a b", Verify::Durable),
            ("a b --verify", Verify::Durable),
            ("--verify=read a b", Verify::Read),
            ("--verify=durable a b", Verify::Durable),
            ("--verify=none a b", Verify::None),
        ] {
            assert_eq!(parsed(line).options.verify, want, "haul {line}");
        }
        // Without require_equals this would take the source for a mode.
        assert_eq!(copied("--verify none b").0, [PathBuf::from("none")]);
    }

    #[test]
    fn habits_change_nothing() {
        for line in [
            "-a a b",
            "-aHAXS a b",
            "-rv a b",
            "-aHAX -S -a a b",
            "--archive --hard-links --acls --xattrs --sparse --recursive a b",
        ] {
            assert_eq!(copied(line), (vec!["a".into()], "b".into()), "haul {line}");
        }
        parsed("plan -aHAXS a");
    }

    #[test]
    fn choices_arrive() {
        let options = parsed(
            "--reflink=never --order=inode -x -c --force --mkpath --memory=512M --threads=3 a b",
        )
        .options;
        assert_eq!(options.reflink, Reflink::Never);
        assert_eq!(options.order, Order::Inode);
        assert!(options.one_file_system && options.checksum && options.force && options.mkpath);
        assert_eq!(options.memory, Some(512 << 20));
        assert_eq!(options.threads, Some(3));
        assert_eq!(parsed("plan --order=none a").options.order, Order::None);
        assert_eq!(parsed("verify --threads 2 a b").options.threads, Some(2));
    }

    #[test]
    fn the_last_of_quiet_and_verbose_counts() {
        let show = parsed("-q -v a b").show;
        assert!(show.verbose && !show.quiet);
        let show = parsed("-v -q a b").show;
        assert!(show.quiet && !show.verbose);
        assert!(!parsed("--progress --no-progress a b").show.progress);
    }

    #[test]
    fn what_makes_no_sense_is_wrong_usage() {
        for line in [
            "",
            "a",
            "-v",
            "plan",
            "plan --to b",
            "verify",
            "--max-delete=3 a b",
            "--inplace a b",
            "--dedup=copies a b",
            "--dedup-ignore=size --dedup a b",
            "-z a b",
            "--verify=maybe a b",
            "--reflink=sometimes a b",
            "--order=random a b",
            "--memory=lots a b",
            "--memory=0 a b",
            "--threads=0 a b",
            "plan -n a",
            "verify --force a b",
        ] {
            let error = refused(line);
            assert!(error.use_stderr(), "haul {line}");
        }
    }

    #[test]
    fn help_and_version_are_no_errors() {
        for line in [
            "-h",
            "--help",
            "--version",
            "-V",
            "plan --help",
            "verify -h",
        ] {
            assert!(!refused(line).use_stderr(), "haul {line}");
        }
    }

    #[test]
    fn help_names_every_exit_code() {
        let help = refused("--help").to_string();
        for code in ["0", "1", "2", "11", "12", "20", "23", "24"] {
            assert!(
                help.lines()
                    .any(|l| l.split_whitespace().next() == Some(code)),
                "{code} is not in:\n{help}"
            );
        }
    }
}
