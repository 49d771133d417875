//! Random changes to a tree that was copied before: what a second run meets.

use std::fs;
use std::path::{Path, PathBuf};

use super::random::{Kinds, Random, decorate, grow, name, size};
use super::tree::{Tree, bytes_of};

/// Makes `count` changes and returns them in words, for failure messages.
///
/// Kinds are never changed between directory and other: that is refused by design, and has
/// tests of its own. Removed things stay at the destination, so the caller removes them there.
pub fn edit(tree: &Tree, random: &mut Random, count: usize, kinds: Kinds) -> Vec<String> {
    let mut words = Vec::new();
    for _ in 0..count {
        let (files, all) = listing(tree.root());
        let Some(path) = files.get(random.below(files.len().max(1) as u64) as usize) else {
            break;
        };
        words.push(one(tree, random, path, &all, kinds));
    }
    words
}

fn one(tree: &Tree, random: &mut Random, path: &Path, all: &[PathBuf], kinds: Kinds) -> String {
    let shown = format!("{path:?}");
    match random.below(8) {
        0 => {
            tree.append(path, &bytes_of(random.next(), 100));
            format!("append to {shown}")
        }
        1 => {
            let len = size(random);
            replace(tree, path, &bytes_of(random.next(), len));
            format!("replace {shown} by {len} bytes")
        }
        2 => {
            // Same length, later mtime.
            tree.write_at(path, 0, b"!");
            format!("overwrite the head of {shown}")
        }
        3 => {
            let file = fs::OpenOptions::new()
                .write(true)
                .open(tree.path(path))
                .expect("open");
            let len = file.metadata().expect("stat").len();
            file.set_len(len / 2).expect("truncate");
            format!("halve {shown}")
        }
        4 => {
            decorate(tree, random, path, kinds);
            format!("metadata of {shown}")
        }
        5 => {
            let dirs: Vec<_> = all.iter().filter(|path| tree.path(path).is_dir()).collect();
            let parent = if dirs.is_empty() {
                PathBuf::new()
            } else {
                random.pick(&dirs).to_path_buf()
            };
            let new = parent.join(name(random));
            if !tree.path(&new).exists() && tree.path(&new).symlink_metadata().is_err() {
                tree.hard_link(path, &new);
            }
            format!("link {shown} as {new:?}")
        }
        6 => {
            // A name that had an inode of its own becomes a further name of another.
            let (files, _) = listing(tree.root());
            let other = random.pick(&files).clone();
            if other != path {
                tree.remove(path);
                tree.hard_link(&other, path);
            }
            format!("make {shown} a name of {other:?}")
        }
        _ => {
            grow(tree, random, 5, kinds);
            "new things".into()
        }
    }
}

fn replace(tree: &Tree, path: &Path, bytes: &[u8]) {
    tree.remove(path);
    tree.file(path, bytes);
}

/// Regular files, and everything, below a root and relative to it, sorted.
pub fn listing(root: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut files = Vec::new();
    let mut all = Vec::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        let place = if dir.as_os_str().is_empty() {
            root.to_owned()
        } else {
            root.join(&dir)
        };
        for entry in fs::read_dir(place).expect("list") {
            let entry = entry.expect("entry");
            let path = dir.join(entry.file_name());
            let kind = entry.file_type().expect("type");
            if kind.is_dir() {
                todo.push(path.clone());
            } else if kind.is_file() {
                files.push(path.clone());
            }
            all.push(path);
        }
    }
    files.sort();
    all.sort();
    (files, all)
}
