//! Kernel calls that std lacks, and what the kernel tells about disks and
//! memory. The only place where `unsafe` is allowed. Nothing here decides
//! anything, prints anything or puts paths into errors.
#![allow(unsafe_code)]

pub(crate) mod advise;
pub(crate) mod beneath;
pub(crate) mod disk;
pub(crate) mod fiemap;
pub(crate) mod fsid;
pub(crate) mod memory;
pub(crate) mod metadata;
pub(crate) mod mounts;
pub(crate) mod special;
pub(crate) mod times;
pub(crate) mod transfer;
pub(crate) mod xattrs;
pub(crate) mod xfs;
