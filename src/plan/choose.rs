//! Which order suits a disk: asked once for each device that a scan meets.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::job::Order;
use crate::report::DiskChoice;
use crate::sys::disk;
use crate::sys::mounts::Mount;

/// A device's disk and the order in which it is read.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// Devices with the same key lie on one disk and share its sweep.
    pub(crate) key: u64,
    pub(crate) order: Order,
    pub(crate) told: DiskChoice,
}

impl Choice {
    /// Whether FIEMAP is worth its call.
    pub(crate) fn wants_places(&self) -> bool {
        self.order == Order::Physical
    }
}

/// The choices made so far.
#[derive(Debug)]
pub(crate) struct Choices {
    asked: Order,
    mounts: Vec<Mount>,
    made: Mutex<HashMap<u64, Choice>>,
}

impl Choices {
    pub(crate) fn new(asked: Order, mounts: Vec<Mount>) -> Choices {
        Choices {
            asked,
            mounts,
            made: Mutex::default(),
        }
    }

    /// The choice for a device (`st_dev`).
    pub(crate) fn of(&self, dev: u64) -> Choice {
        let mut made = self.made.lock().unwrap_or_else(|e| e.into_inner());
        made.entry(dev)
            .or_insert_with(|| choose(self.asked, dev, &self.mounts))
            .clone()
    }

    /// What is known, without a look at it, of a disk that is written to: its
    /// key, if it is one that seeks.
    pub(crate) fn seeking(&self, dev: u64) -> Option<u64> {
        let disk = disk::disk_as_told(dev, &self.mounts);
        disk.seeks.then_some(disk.key)
    }

    /// Every disk once.
    pub(crate) fn told(&self) -> Vec<DiskChoice> {
        let made = self.made.lock().unwrap_or_else(|e| e.into_inner());
        let mut by_key: Vec<_> = made.values().map(|c| (c.key, c.told.clone())).collect();
        by_key.sort_by(|a, b| (a.0, &a.1.disk).cmp(&(b.0, &b.1.disk)));
        by_key.dedup();
        by_key.into_iter().map(|(_, told)| told).collect()
    }
}

fn choose(asked: Order, dev: u64, mounts: &[Mount]) -> Choice {
    let disk = disk::disk_of(dev, mounts);
    let (order, why) = match asked {
        Order::Auto if disk.seeks => (Order::Physical, disk.why),
        Order::Auto => (Order::None, disk.why),
        asked => (asked, "as asked".to_owned()),
    };
    let told = DiskChoice {
        disk: disk.name,
        order: name(order),
        why,
    };
    Choice {
        key: disk.key,
        order,
        told,
    }
}

fn name(order: Order) -> &'static str {
    match order {
        Order::Physical => "physical",
        Order::Inode => "inode",
        Order::Auto | Order::None => "none",
    }
}
