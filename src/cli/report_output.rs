//! A report in words whose sums add up, and as a JSON object. Pure.

use haul::{Report, Verify};
use serde_json::{Value, json};

use super::text;

/// Entries that an interrupted or full run did not come to.
fn not_reached(report: &Report) -> u64 {
    let ended = report.copied + report.unchanged + report.linked + report.skipped + report.failed;
    report.found.saturating_sub(ended)
}

fn verify_name(verify: Verify) -> &'static str {
    match verify {
        Verify::None => "none",
        Verify::Read => "read",
        Verify::Durable => "durable",
    }
}

/// The last JSON line.
pub(super) fn object(report: &Report) -> Value {
    let disks: Vec<Value> = report
        .disks
        .iter()
        .map(|choice| json!({"disk": choice.disk, "order": choice.order, "why": choice.why}))
        .collect();
    let stages: Vec<Value> = report
        .stages
        .iter()
        .map(|(stage, took)| json!({"stage": stage, "seconds": took.as_secs_f64()}))
        .collect();
    json!({
        "type": "summary",
        "found": report.found,
        "copied": report.copied,
        "unchanged": report.unchanged,
        "linked": report.linked,
        "skipped": report.skipped,
        "failed": report.failed,
        "not_reached": not_reached(report),
        "failures": report.failures.len(),
        "found_files": report.found_files,
        "files": report.copied_files,
        "bytes": report.copied_bytes,
        "read_bytes": report.read_bytes,
        "reflinked": report.reflinked,
        "excluded": report.excluded,
        "deleted": report.deleted,
        "dedup_linked": report.dedup_linked,
        "dedup_reflinked": report.dedup_reflinked,
        "dedup_bytes": report.dedup_bytes,
        "dedup_saved_bytes": report.dedup_saved_bytes,
        "link_dest_files": report.link_dest_files,
        "cache_hits": report.cache_hits,
        "delta_files": report.delta_files,
        "literal_bytes": report.literal_bytes,
        "matched_bytes": report.matched_bytes,
        "resumed_files": report.resumed_files,
        "resumed_bytes": report.resumed_bytes,
        "verify": verify_name(report.verify),
        "verified_files": report.verified_files,
        "verified_bytes": report.verified_bytes,
        "interrupted": report.interrupted,
        "full": report.full,
        "elapsed_seconds": report.elapsed.as_secs_f64(),
        "stages": stages,
        "disks": disks,
        "exit_code": report.exit_code(),
    })
}

/// What a copy did, line by line; the last says how many entries are missing.
pub(super) fn copy_lines(report: &Report) -> Vec<String> {
    let mut sum = format!(
        "found {} = copied {} + unchanged {} + linked {} + failed {}",
        text::count(report.found),
        text::count(report.copied),
        text::count(report.unchanged),
        text::count(report.linked),
        text::count(report.failed),
    );
    if report.skipped > 0 {
        sum.push_str(&format!(" + skipped {}", text::count(report.skipped)));
    }
    if not_reached(report) > 0 {
        sum.push_str(&format!(
            " + not reached {}",
            text::count(not_reached(report))
        ));
    }
    let mut content = format!(
        "copied {}, {} in {}",
        text::counted(report.copied_files, "file", "files"),
        text::size(report.copied_bytes),
        text::time(report.elapsed)
    );
    if let Some(rate) = text::rate(report.copied_bytes, report.elapsed) {
        content.push_str(&format!(" ({rate})"));
    }
    if report.reflinked > 0 {
        let shared = text::counted(report.reflinked, "file shares", "files share");
        content.push_str(&format!("; {shared} the source's extents"));
    }
    let mut lines = vec![sum, content, verified_line(report)];
    lines.extend(further_lines(report));
    lines.extend(report.disks.iter().map(|choice| {
        let (disk, why) = (&choice.disk, &choice.why);
        match choice.order {
            "none" => format!("{disk} read as listed: {why}"),
            order => format!("{disk} read in {order} order: {why}"),
        }
    }));
    lines.push(last_line(report, "not copied exactly"));
    lines
}

/// What only some jobs do: a line each, where there is something to say.
fn further_lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    let files = |n| text::counted(n, "file", "files");
    if report.dedup_linked + report.dedup_reflinked > 0 {
        lines.push(format!(
            "dedup: {} linked, {} sharing extents; {} not written, {} saved at the destination",
            files(report.dedup_linked),
            files(report.dedup_reflinked),
            text::size(report.dedup_bytes),
            text::size(report.dedup_saved_bytes)
        ));
    }
    if report.link_dest_files > 0 {
        let linked = files(report.link_dest_files);
        lines.push(format!("linked {linked} to an earlier copy (--link-dest)"));
    }
    if report.cache_hits > 0 {
        let known = files(report.cache_hits);
        lines.push(format!("the cache knew the digests of {known}"));
    }
    if report.delta_files > 0 {
        lines.push(format!(
            "delta: {}, {} differed and were written, {} matched",
            files(report.delta_files),
            text::size(report.literal_bytes),
            text::size(report.matched_bytes)
        ));
    }
    if report.resumed_files > 0 {
        lines.push(format!(
            "went on in {} after {} of an earlier run, verified",
            files(report.resumed_files),
            text::size(report.resumed_bytes)
        ));
    }
    if report.excluded > 0 {
        let names = text::counted(report.excluded, "name", "names");
        lines.push(format!("filters left out {names}"));
    }
    if report.deleted > 0 {
        let entries = text::counted(report.deleted, "entry", "entries");
        lines.push(format!("deleted {entries} at the destination"));
    }
    lines
}

fn verified_line(report: &Report) -> String {
    let how = match report.verify {
        Verify::None => return "not verified".into(),
        Verify::Read => "read back from the destination (the kernel may answer from its cache)",
        Verify::Durable => "flushed, then read back from the medium",
    };
    let files = text::counted(report.verified_files, "file", "files");
    let size = text::size(report.verified_bytes);
    format!("verified {files}, {size}: {how}")
}

/// What a comparison found; the last line says how many entries differ.
pub(super) fn compare_lines(report: &Report) -> Vec<String> {
    let equal = report.copied + report.unchanged + report.linked;
    let mut sum = format!(
        "found {} = equal {} + different {}",
        text::count(report.found),
        text::count(equal),
        text::count(report.failed)
    );
    if report.skipped > 0 {
        sum.push_str(&format!(" + skipped {}", text::count(report.skipped)));
    }
    if not_reached(report) > 0 {
        sum.push_str(&format!(
            " + not reached {}",
            text::count(not_reached(report))
        ));
    }
    let content = format!(
        "content of {} compared, {} in {}",
        text::counted(report.verified_files, "file", "files"),
        text::size(report.verified_bytes),
        text::time(report.elapsed)
    );
    let mut lines = vec![sum, content];
    if report.excluded > 0 {
        let names = text::counted(report.excluded, "name", "names");
        lines.push(format!("filters left out {names}, on both sides alike"));
    }
    lines.push(last_line(report, "not equal"));
    lines
}

/// What `haul dedup` joined.
pub(super) fn dedup_lines(report: &Report) -> Vec<String> {
    let sum = format!(
        "found {} = left {} + linked {} + failed {}",
        text::count(report.found),
        text::count(report.unchanged),
        text::count(report.linked),
        text::count(report.failed)
    );
    let joined = format!(
        "{} linked, {} sharing extents; {} saved, {} read in {}",
        text::counted(report.dedup_linked, "name", "names"),
        text::counted(report.dedup_reflinked, "file", "files"),
        text::size(report.dedup_saved_bytes),
        text::size(report.read_bytes),
        text::time(report.elapsed)
    );
    vec![sum, joined, last_line(report, "not looked at")]
}

fn last_line(report: &Report, what: &str) -> String {
    let early = if report.interrupted {
        "interrupted; "
    } else if report.full {
        "the destination is full; "
    } else {
        ""
    };
    let missing = report.failed + not_reached(report);
    let found = text::counted(report.found, "entry", "entries");
    format!("{early}{what}: {} of {found}", text::count(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_verifying_is_called_what_it_is() {
        let line = |verify| {
            verified_line(&Report {
                verify,
                verified_files: 1,
                ..Report::default()
            })
        };
        assert_eq!(line(Verify::None), "not verified");
        assert!(line(Verify::Read).contains("the kernel may answer from its cache"));
        assert_eq!(
            line(Verify::Durable),
            "verified 1 file, 0 B: flushed, then read back from the medium"
        );
    }

    #[test]
    fn a_comparison_says_equal_and_different() {
        let report = Report {
            found: 10,
            unchanged: 8,
            failed: 2,
            ..Report::default()
        };
        let lines = compare_lines(&report);
        assert_eq!(lines[0], "found 10 = equal 8 + different 2");
        assert_eq!(lines.last().unwrap(), "not equal: 2 of 10 entries");
    }
}
