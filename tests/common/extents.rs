//! Where a file lies on its disk, as filefrag sees it: an instrument that is not the one under
//! test.

use std::path::Path;
use std::process::Command;

/// One extent, all in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    pub logical: u64,
    pub physical: u64,
    pub len: u64,
    pub flags: String,
}

/// The extents of a file after it was synced, in logical order.
pub fn extents(path: &Path) -> Vec<Extent> {
    let output = Command::new("filefrag")
        .args(["-s", "-v", "-b512"])
        .arg(path)
        .output()
        .expect("filefrag");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(parse).collect()
}

/// `   0:        0..       7:      73728..     73735:      8:     expected: flags`
fn parse(line: &str) -> Option<Extent> {
    let fields: Vec<&str> = line.split(':').map(str::trim).collect();
    if fields.len() < 5 || fields[0].parse::<u32>().is_err() {
        return None;
    }
    let start = |range: &str| range.split("..").next()?.trim().parse::<u64>().ok();
    Some(Extent {
        logical: start(fields[1])? * 512,
        physical: start(fields[2])? * 512,
        len: fields[3].parse::<u64>().ok()? * 512,
        flags: fields.last()?.to_string(),
    })
}

/// The byte of the disk that holds a byte of a file.
pub fn physical(extents: &[Extent], logical: u64) -> Option<u64> {
    extents
        .iter()
        .find(|extent| (extent.logical..extent.logical + extent.len).contains(&logical))
        .map(|extent| extent.physical + (logical - extent.logical))
}
