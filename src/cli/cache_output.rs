//! The verb `cache`: what is remembered across runs, printed; forgotten where
//! asked.

use std::mem;
use std::path::Path;

use haul::cache::{self, Contents, Pruned};
use haul::{Error, Report};
use serde_json::json;

use super::args::CacheVerb;
use super::output::{Output, path_value};
use super::text::{counted, size};

/// Does it and returns the exit code.
pub(super) fn run(verb: CacheVerb, file: Option<&Path>, out: &mut Output) -> Result<u8, Error> {
    let Some(file) = file else {
        let why = "there is no place for a cache: neither XDG_CACHE_HOME nor HOME is a path";
        return Err(Error::Refused(why.into()));
    };
    match verb {
        CacheVerb::Show => {
            let contents = cache::show(file)?;
            shown(file, &contents, out);
            Ok(0)
        }
        CacheVerb::Prune => Ok(pruned(file, cache::prune(file)?, out)),
        CacheVerb::Clear => {
            cache::clear(file)?;
            if out.json {
                out.put(&json!({"type": "summary", "path": path_value(file), "exit_code": 0}));
            } else if !out.quiet {
                let line = [&out.quoted(file), &b" remembers nothing"[..]].concat();
                out.say(&line);
            }
            Ok(0)
        }
    }
}

fn shown(file: &Path, contents: &Contents, out: &mut Output) {
    if out.json {
        let filesystems = contents.filesystems.iter();
        let filesystems: Vec<_> = filesystems
            .map(|it| json!({"kind": it.kind, "uuid": it.uuid, "files": it.files}))
            .collect();
        out.put(&json!({
            "type": "summary",
            "path": path_value(file),
            "bytes": contents.bytes,
            "files": contents.files,
            "dirs": contents.dirs,
            "filesystems": filesystems,
            "exit_code": 0,
        }));
        return;
    }
    let what = format!(
        ", {}: digests of {} in {}",
        size(contents.bytes),
        counted(contents.files, "file", "files"),
        counted(contents.dirs, "directory", "directories"),
    );
    let line = [&out.quoted(file), what.as_bytes()].concat();
    out.say(&line);
    for it in &contents.filesystems {
        let files = counted(it.files, "file", "files");
        out.say_plain(&format!("  {} {}: {files}", it.kind, it.uuid));
    }
}

fn pruned(file: &Path, mut pruned: Pruned, out: &mut Output) -> u8 {
    for failure in &pruned.failures {
        out.failure(failure);
    }
    let failed = pruned.failures.len();
    let exit_code = Report {
        failures: mem::take(&mut pruned.failures),
        ..Report::default()
    }
    .exit_code();
    if out.json {
        out.put(&json!({
            "type": "summary",
            "path": path_value(file),
            "removed": pruned.removed,
            "files": pruned.files,
            "failed": failed,
            "exit_code": exit_code,
        }));
    } else if !out.quiet {
        let line = format!(
            "forgot {} that are gone; digests of {} stay",
            counted(pruned.removed, "file", "files"),
            counted(pruned.files, "file", "files"),
        );
        out.say_plain(&line);
    }
    exit_code
}
