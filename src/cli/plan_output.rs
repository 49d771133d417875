//! A plan, printed: how much there is, how each disk would be read, and with
//! `-v` every entry in the order of reading.

use std::mem;

use haul::Report;
use haul::plan::summary::{DiskSummary, Summary};
use haul::plan::{Action, Entry, Kind, Plan, Read, WHOLE};
use serde_json::{Value, json};

use super::output::{Output, path_value};
use super::text::{count, counted, size};

/// Prints and returns the exit code: that of a report with the same failures.
pub(super) fn print(mut plan: Plan, interrupted: bool, out: &mut Output) -> u8 {
    let summary = plan.summary();
    if out.verbose {
        list(&plan, out);
    }
    for failure in &plan.failures {
        out.failure(failure);
    }
    for note in &plan.notes {
        out.note(note);
    }
    let exit_code = Report {
        failures: mem::take(&mut plan.failures),
        interrupted,
        ..Report::default()
    }
    .exit_code();
    if out.json {
        out.put(&object(&summary, interrupted, exit_code));
    } else if !out.quiet {
        for line in lines(&summary) {
            out.say_plain(&line);
        }
        if interrupted {
            out.say_plain("interrupted; the plan is not complete");
        }
    }
    exit_code
}

fn lines(summary: &Summary) -> Vec<String> {
    let mut lines = vec![
        format!(
            "found {} = {} + {} + {} + {} + {}",
            counted(summary.entries, "entry", "entries"),
            counted(summary.files, "file", "files"),
            counted(summary.dirs, "directory", "directories"),
            counted(summary.symlinks, "symlink", "symlinks"),
            counted(summary.hard_links, "hard link", "hard links"),
            counted(summary.specials, "special file", "special files"),
        ),
        format!(
            "content {}, {} on disk; unchanged at the destination: {}",
            size(summary.bytes),
            size(summary.allocated),
            counted(summary.unchanged, "entry", "entries"),
        ),
        format!(
            "to copy {}, {}: {} of small ones, {}",
            counted(summary.to_copy_files, "file", "files"),
            size(summary.bytes_to_copy),
            counted(summary.bundles, "bundle", "bundles"),
            counted(summary.large_files, "large file", "large files"),
        ),
    ];
    for disk in &summary.disks {
        let (name, why) = (&disk.choice.disk, &disk.choice.why);
        let reads = counted(disk.reads, "read", "reads");
        let bytes = size(disk.bytes);
        let order = match disk.choice.order {
            "none" => "as listed".to_string(),
            order => format!("in {order} order"),
        };
        lines.push(format!("{name} read {order}: {why}; {reads}, {bytes}"));
        lines.extend(travel_line(disk));
    }
    if summary.to_delete > 0 {
        lines.push(format!(
            "to delete at the destination: {}",
            counted(summary.to_delete, "entry", "entries")
        ));
    }
    lines.push(format!(
        "could not be looked at: {}",
        counted(summary.failures, "entry", "entries")
    ));
    lines
}

/// How far the head would travel; nothing where places are not known.
fn travel_line(disk: &DiskSummary) -> Option<String> {
    if disk.travel_listed == 0 && disk.travel == 0 {
        return None;
    }
    let mut line = format!(
        "  the head would travel {} in the order of the directories, {} in ours",
        size(disk.travel_listed),
        size(disk.travel),
    );
    let tenths = (u128::from(disk.travel_listed) * 10).checked_div(u128::from(disk.travel));
    if let Some(tenths) = tenths {
        line.push_str(&format!(" ({}.{} to 1)", tenths / 10, tenths % 10));
    }
    Some(line)
}

fn object(summary: &Summary, interrupted: bool, exit_code: u8) -> Value {
    let disks: Vec<Value> = summary
        .disks
        .iter()
        .map(|disk| {
            json!({
                "disk": disk.choice.disk,
                "order": disk.choice.order,
                "why": disk.choice.why,
                "reads": disk.reads,
                "bytes": disk.bytes,
                "travel_listed_bytes": disk.travel_listed,
                "travel_bytes": disk.travel,
            })
        })
        .collect();
    json!({
        "type": "plan",
        "entries": summary.entries,
        "files": summary.files,
        "dirs": summary.dirs,
        "symlinks": summary.symlinks,
        "hard_links": summary.hard_links,
        "specials": summary.specials,
        "unchanged": summary.unchanged,
        "skipped": summary.skipped,
        "to_copy_files": summary.to_copy_files,
        "bytes": summary.bytes,
        "allocated": summary.allocated,
        "bytes_to_copy": summary.bytes_to_copy,
        "bundles": summary.bundles,
        "large_files": summary.large_files,
        "to_delete": summary.to_delete,
        "disks": disks,
        "failures": summary.failures,
        "interrupted": interrupted,
        "exit_code": exit_code,
    })
}

/// Directories, then the reads of each disk in their order, then what is not
/// read.
fn list(plan: &Plan, out: &mut Output) {
    let listing = &plan.listing;
    for dir in listing.dirs.iter().filter(|dir| dir.is_entry()) {
        let path = dir.path_of(b"");
        if out.json {
            out.put(&json!({"type": "entry", "kind": "dir", "path": path_value(&path)}));
        } else {
            let line = [b"directory ", &out.quoted(&path)[..]].concat();
            out.say(&line);
        }
    }
    let mut is_read = vec![false; listing.entries.len()];
    for read in plan.sweeps.iter().flat_map(|sweep| &sweep.reads) {
        is_read[read.entry as usize] = true;
        list_read(plan, read, out);
    }
    for (entry, _) in listing
        .entries
        .iter()
        .zip(is_read)
        .filter(|(_, read)| !read)
    {
        list_entry(plan, entry, out);
    }
    for path in &plan.deletions {
        if out.json {
            out.put(&json!({"type": "entry", "action": "delete", "path": path_value(path)}));
        } else {
            let line = [b"delete ", &out.quoted(path)[..]].concat();
            out.say(&line);
        }
    }
}

fn list_read(plan: &Plan, read: &Read, out: &mut Output) {
    let entry = &plan.listing.entries[read.entry as usize];
    let path = plan.listing.path(entry);
    let part = match plan.extents.get(&read.entry) {
        Some(extents) if read.part != WHOLE => extents.get(read.part as usize),
        _ => None,
    };
    let (offset, bytes, physical) = match part {
        Some(extent) => (extent.logical, extent.len, extent.physical),
        None => (0, entry.size, entry.physical),
    };
    if out.json {
        out.put(&json!({
            "type": "entry",
            "kind": kind_name(entry.kind),
            "action": "copy",
            "path": path_value(&path),
            "offset": offset,
            "bytes": bytes,
            "physical": (physical != u64::MAX).then_some(physical),
        }));
        return;
    }
    let mut line = [b"copy file ", &out.quoted(&path)[..]].concat();
    let what = match part {
        None => format!(", {}", size(bytes)),
        Some(_) => format!(", {} from byte {}", size(bytes), count(offset)),
    };
    line.extend_from_slice(what.as_bytes());
    out.say(&line);
}

fn list_entry(plan: &Plan, entry: &Entry, out: &mut Output) {
    let path = plan.listing.path(entry);
    let action = match entry.action {
        Action::Copy => "copy",
        Action::Keep | Action::Same => "keep",
        Action::Skip => "skip",
        Action::Refer => "link-dest",
        Action::Link => "link",
        Action::Fail => "fail",
    };
    let kind = kind_name(entry.kind);
    if out.json {
        let path = path_value(&path);
        out.put(&json!({"type": "entry", "kind": kind, "action": action, "path": path}));
    } else {
        let line = [format!("{action} {kind} ").as_bytes(), &out.quoted(&path)].concat();
        out.say(&line);
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Dir => "dir",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
        Kind::CharDevice => "char-device",
        Kind::BlockDevice => "block-device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haul::DiskChoice;

    fn summary() -> Summary {
        Summary {
            entries: 12_347,
            files: 12_000,
            dirs: 300,
            symlinks: 40,
            specials: 1,
            hard_links: 6,
            unchanged: 0,
            skipped: 0,
            to_copy_files: 12_000,
            bytes: 110_900_000,
            allocated: 130_000_000,
            bytes_to_copy: 110_900_000,
            bundles: 27,
            large_files: 1,
            disks: vec![DiskSummary {
                choice: DiskChoice {
                    disk: "loop3".into(),
                    order: "physical",
                    why: "rotational".into(),
                },
                reads: 12_000,
                bytes: 110_900_000,
                travel_listed: 71_300_000_000,
                travel: 1_900_000_000,
            }],
            to_delete: 0,
            failures: 0,
        }
    }

    #[test]
    fn a_plan_in_words_adds_up_and_compares_the_travel() {
        assert_eq!(
            lines(&summary()),
            [
                "found 12,347 entries = 12,000 files + 300 directories + 40 symlinks \
                 + 6 hard links + 1 special file",
                "content 110.9 MB, 130.0 MB on disk; unchanged at the destination: 0 entries",
                "to copy 12,000 files, 110.9 MB: 27 bundles of small ones, 1 large file",
                "loop3 read in physical order: rotational; 12,000 reads, 110.9 MB",
                "  the head would travel 71.3 GB in the order of the directories, \
                 1.9 GB in ours (37.5 to 1)",
                "could not be looked at: 0 entries",
            ]
        );
    }

    #[test]
    fn no_travel_is_claimed_where_places_are_unknown() {
        let mut disk = summary().disks.remove(0);
        disk.travel = 0;
        assert!(!travel_line(&disk).unwrap().contains("to 1"));
        disk.travel_listed = 0;
        assert_eq!(travel_line(&disk), None);
    }

    #[test]
    fn the_object_says_the_same() {
        let value = object(&summary(), false, 0);
        assert_eq!(value["type"], "plan");
        assert_eq!(value["disks"][0]["travel_bytes"], 1_900_000_000_u64);
        assert_eq!(value["exit_code"], 0);
    }
}
