//! `--files-from`: the paths to be copied, as a tree of names. Pure.
//!
//! A path is one below the source. A listed directory is made without what is
//! in it, with its names where the path ends in a slash, and with all below it
//! where that is asked for; the directories on the way to a listed path are
//! made for its sake (`implied`).

use std::collections::BTreeMap;

use crate::plan::Kind;

/// What is to be copied of a source, and nothing else.
///
/// ```
/// let mut files = haul::Files::default();
/// files.add(b"/etc/../etc/fstab");
/// files.add_lines(b"# comment\nhome/me/\n", false);
/// assert_eq!(files.paths(), [&b"etc/fstab"[..], b"home/me"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Files {
    root: Node,
    /// Whether a listed directory stands for all that is in it.
    pub recursive: bool,
}

/// A name on the way to listed paths, or the end of one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    is_listed: bool,
    /// Listed with a slash at its end.
    has_names: bool,
    children: BTreeMap<Box<[u8]>, Node>,
}

/// What is copied of one directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'a> {
    node: Option<&'a Node>,
    /// Every name that it has, and not only those that are listed.
    pub(crate) is_every_name: bool,
    /// It is itself to be copied, and not only on the way to something.
    pub(crate) is_listed: bool,
}

impl Files {
    /// Adds a path below the source. A leading slash means nothing, `.` and
    /// `..` are resolved by their names, and never lead out of the source.
    pub fn add(&mut self, path: &[u8]) {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut has_names = false;
        for name in path.split(|&b| b == b'/') {
            has_names = name.is_empty() || name == b"." || name == b"..";
            match name {
                b"" | b"." => {}
                b".." => drop(names.pop()),
                _ => names.push(name),
            }
        }
        let mut node = &mut self.root;
        for name in names {
            node = node.children.entry(name.into()).or_default();
        }
        node.is_listed = true;
        node.has_names |= has_names;
    }

    /// Adds the lines of a list; with `nul`, what lies between NULs. Without,
    /// lines that are empty or begin with `;` or `#` are comments.
    pub fn add_lines(&mut self, text: &[u8], nul: bool) {
        for line in super::lines(text, nul) {
            self.add(line);
        }
    }

    /// The listed paths, sorted, each once.
    pub fn paths(&self) -> Vec<Vec<u8>> {
        let mut paths = Vec::new();
        self.root.listed(b"", &mut |path| paths.push(path));
        paths
    }

    /// What is copied of the directory with this path; empty for the root. What
    /// `takes` leaves out of the listed directories stands for nothing.
    pub(crate) fn scope(&self, path: &[u8], takes: impl Fn(&[u8]) -> bool) -> Scope<'_> {
        let mut node = Some(&self.root);
        let mut at = At::of(node, true);
        let mut end = 0;
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            end += name.len() + usize::from(end > 0);
            node = node.and_then(|node| node.children.get(name));
            let is_whole = at.is_whole || self.recursive && at.is_listed;
            let is_named = is_whole || at.has_names;
            let is_listed = node.is_some_and(|node| node.is_listed);
            let is_taken = (is_listed || is_named) && takes(&path[..end]);
            at = At {
                is_whole: is_whole && is_taken,
                is_listed: is_taken,
                ..At::of(node, is_taken)
            };
        }
        Scope {
            node,
            is_every_name: at.is_whole || at.has_names || self.recursive && at.is_listed,
            is_listed: at.is_listed,
        }
    }
}

/// How far down a path is listed.
struct At {
    /// All that is below.
    is_whole: bool,
    /// It, by itself or by what is above.
    is_listed: bool,
    /// Its names.
    has_names: bool,
}

impl At {
    fn of(node: Option<&Node>, is_taken: bool) -> At {
        let is_listed = is_taken && node.is_some_and(|node| node.is_listed);
        At {
            is_whole: false,
            is_listed,
            has_names: is_listed && node.is_some_and(|node| node.has_names),
        }
    }
}

impl Node {
    /// Every listed path at or below this one.
    fn listed(&self, path: &[u8], each: &mut impl FnMut(Vec<u8>)) {
        // A loop, not a recursion: a path may have thousands of names.
        let mut stack = vec![(self, path.to_vec())];
        while let Some((node, path)) = stack.pop() {
            for (name, child) in node.children.iter().rev() {
                let below = match path.is_empty() {
                    true => name.to_vec(),
                    false => [&path[..], b"/", name].concat(),
                };
                stack.push((child, below));
            }
            if node.is_listed {
                each(path);
            }
        }
    }
}

impl Drop for Node {
    /// Lets go of what is below in a loop, however deep it is.
    fn drop(&mut self) {
        let mut stack: Vec<Node> = std::mem::take(&mut self.children).into_values().collect();
        while let Some(mut node) = stack.pop() {
            stack.extend(std::mem::take(&mut node.children).into_values());
        }
    }
}

impl<'a> Scope<'a> {
    /// Whether it lists any names of its own.
    pub(crate) fn names_some(&self) -> bool {
        self.node.is_some_and(|node| !node.children.is_empty())
    }

    /// The names that may count, where not every one does.
    pub(crate) fn only(&self) -> Option<impl Iterator<Item = &'a [u8]>> {
        let names = self.node.into_iter().flat_map(|node| node.children.keys());
        (!self.is_every_name).then(|| names.map(|name| &name[..]))
    }

    /// Whether a name is on the way to what is listed.
    pub(crate) fn is_way(&self, name: &[u8]) -> bool {
        let child = self.node.and_then(|node| node.children.get(name));
        child.is_some_and(|child| !child.children.is_empty())
    }

    /// Whether a name is listed itself, or taken with all others.
    pub(crate) fn takes(&self, name: &[u8]) -> bool {
        let child = self.node.and_then(|node| node.children.get(name));
        self.is_every_name || child.is_some_and(|child| child.is_listed)
    }

    /// The listed paths, relative to this directory, that cannot be reached: of
    /// names that are not here, and below those that are no directories. `kind`
    /// says what a name is here.
    pub(crate) fn lost(&self, kind: impl Fn(&[u8]) -> Option<Kind>) -> Vec<(Vec<u8>, Lost)> {
        let mut lost = Vec::new();
        for (name, child) in self.node.iter().flat_map(|node| &node.children) {
            let kind = kind(name);
            let why = match kind {
                Some(Kind::Dir) => continue,
                Some(Kind::Symlink) => Lost::BehindLink,
                Some(_) => Lost::NoDirectory,
                None => Lost::Missing,
            };
            child.listed(name, &mut |path| {
                let is_itself = path.len() == name.len();
                let is_found = match kind {
                    None => false,
                    // With a slash what it leads to was meant.
                    Some(Kind::Symlink) => is_itself && !child.has_names,
                    Some(_) => is_itself,
                };
                if !is_found {
                    lost.push((path, why));
                }
            });
        }
        lost
    }
}

/// Why a listed path cannot be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    Missing,
    /// It, or a name on the way to it, is a symlink.
    BehindLink,
    /// A name on the way to it is no directory.
    NoDirectory,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(lines: &str, recursive: bool) -> Files {
        let mut files = Files {
            recursive,
            ..Files::default()
        };
        files.add_lines(lines.as_bytes(), false);
        files
    }

    fn paths(files: &Files) -> Vec<String> {
        let text = |path| String::from_utf8(path).expect("UTF-8");
        files.paths().into_iter().map(text).collect()
    }

    #[test]
    fn paths_stay_in_the_source_and_are_listed_once() {
        let list = "a/b\n/a/b\n./c\n../d\n#e\n;f\n\na/x/../../../g\r\na//b\n";
        assert_eq!(paths(&files(list, false)), ["a/b", "c", "d", "g"]);
        let mut nul = Files::default();
        nul.add_lines(b"#a\0b\nc\0\0", true);
        assert_eq!(paths(&nul), ["#a", "b\nc"]);
    }

    #[test]
    fn a_directory_is_taken_as_far_as_it_is_listed() {
        let list = files("a\nb/\nc/d/e", false);
        assert!(!list.scope(b"a", |_| true).is_every_name && list.scope(b"a", |_| true).is_listed);
        assert!(list.scope(b"b", |_| true).is_every_name);
        assert!(
            list.scope(b"b/x", |_| true).is_listed && !list.scope(b"b/x", |_| true).is_every_name
        );
        assert!(!list.scope(b"c", |_| true).is_listed && list.scope(b"c", |_| true).is_way(b"d"));
        assert!(!list.scope(b"", |_| true).is_listed && list.scope(b"", |_| true).is_way(b"c"));
        let whole = files("a", true);
        assert!(
            whole.scope(b"a/x/y", |_| true).is_every_name
                && whole.scope(b"a/x/y", |_| true).is_listed
        );
        assert!(!whole.scope(b"b", |_| true).is_listed);
    }

    #[test]
    fn what_cannot_be_there_is_lost_once_each() {
        let list = files("f/x/y\nf\nnot\nnot/a\nd/a\ng/", false);
        let kind = |name: &[u8]| match name {
            b"f" => Some(Kind::File),
            b"g" => Some(Kind::Symlink),
            b"d" => Some(Kind::Dir),
            _ => None,
        };
        let lost = list.scope(b"", |_| true).lost(kind);
        let lost: Vec<_> = lost.iter().map(|(path, why)| (&path[..], *why)).collect();
        let expected = [
            (&b"f/x/y"[..], Lost::NoDirectory),
            (b"g", Lost::BehindLink),
            (b"not", Lost::Missing),
            (b"not/a", Lost::Missing),
        ];
        assert_eq!(lost, expected);
    }

    #[test]
    fn a_path_of_many_names_overflows_nothing() {
        let mut deep = Files::default();
        deep.add("d/".repeat(200_000).as_bytes());
        assert_eq!(deep.paths().len(), 1);
    }
}
