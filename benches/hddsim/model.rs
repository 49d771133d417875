//! The timing of a spinning disk, as a value.
//!
//! In go requests and the seconds at which they arrived; out comes which one
//! the disk serves next and when it is done. The one idea: the platter's angle
//! is the time modulo one turn, so what an access costs follows from where the
//! head is and when it sets off. Nothing here sleeps, reads a clock or moves
//! data; times are seconds since an epoch that the caller chooses.
//!
//! Positions are bytes as `f64` (exact to 2^53) because the look-ahead moves
//! the head between requests.

use std::collections::BTreeMap;

/// Dirty data is destaged in pieces of at most this, so that a read need not wait for 64 MiB.
const DESTAGE_BYTES: u64 = 1 << 20;
/// Below this share of a turn a wait is rounding, not rotation.
const ANGLE_EPSILON: f64 = 1e-6;

/// What kind of disk it is. Every field can be set by its name.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    /// One turn of the platter: 60,000 / 7,200.
    turn_ms: f64,
    /// Seek over a third of the stroke.
    seek_third_ms: f64,
    /// Seek over the whole stroke.
    seek_full_ms: f64,
    /// Bytes that a full stroke covers.
    span_bytes: f64,
    /// Off the platter.
    rate_mb_s: f64,
    /// Out of the drive's own memory.
    bus_mb_s: f64,
    /// How far the drive reads ahead while it has nothing else to do.
    lookahead_kib: f64,
    /// The volatile write cache.
    cache_mib: f64,
    /// How many requests the drive looks at when it chooses (NCQ).
    depth: f64,
    /// A request that has waited for n ms is served as if it were patience * n ms nearer:
    /// near ones win, none starves.
    patience: f64,
    /// Quiet time before the drive begins to empty its write cache unasked.
    idle_ms: f64,
}

impl Params {
    /// A 7,200 rpm disk of which `size_bytes`, one third of the stroke, are in use.
    pub(crate) fn desktop(size_bytes: f64) -> Self {
        Params {
            turn_ms: 60_000.0 / 7_200.0,
            seek_third_ms: 8.5,
            seek_full_ms: 14.0,
            span_bytes: 3.0 * size_bytes,
            rate_mb_s: 180.0,
            bus_mb_s: 550.0,
            lookahead_kib: 2048.0,
            cache_mib: 64.0,
            depth: 32.0,
            patience: 0.045,
            idle_ms: 10.0,
        }
    }

    /// Names and values, in the order in which they are printed.
    pub(crate) fn fields(&mut self) -> [(&'static str, &mut f64); 11] {
        [
            ("turn_ms", &mut self.turn_ms),
            ("seek_third_ms", &mut self.seek_third_ms),
            ("seek_full_ms", &mut self.seek_full_ms),
            ("span_bytes", &mut self.span_bytes),
            ("rate_mb_s", &mut self.rate_mb_s),
            ("bus_mb_s", &mut self.bus_mb_s),
            ("lookahead_kib", &mut self.lookahead_kib),
            ("cache_mib", &mut self.cache_mib),
            ("depth", &mut self.depth),
            ("patience", &mut self.patience),
            ("idle_ms", &mut self.idle_ms),
        ]
    }

    fn turn(&self) -> f64 {
        self.turn_ms / 1e3
    }

    fn rate(&self) -> f64 {
        self.rate_mb_s * 1e6
    }

    fn track_bytes(&self) -> f64 {
        self.rate() * self.turn()
    }

    fn lookahead_bytes(&self) -> f64 {
        self.lookahead_kib * 1024.0
    }

    fn on_bus(&self, len: u64) -> f64 {
        len as f64 / (self.bus_mb_s * 1e6)
    }

    /// a + b * sqrt(distance / span), through the two points given; nothing within a track.
    fn seek(&self, distance: f64) -> f64 {
        if distance < self.track_bytes() {
            return 0.0;
        }
        let third = (1.0_f64 / 3.0).sqrt();
        let b = (self.seek_full_ms - self.seek_third_ms) / (1.0 - third);
        let a = self.seek_full_ms - b;
        (a + b * (distance / self.span_bytes).min(1.0).sqrt()) / 1e3
    }

    /// Seconds from `at` until `position` passes under the head.
    fn rotation(&self, at: f64, position: f64) -> f64 {
        let turns = (position / self.track_bytes() - at / self.turn()).rem_euclid(1.0);
        if turns > 1.0 - ANGLE_EPSILON {
            return 0.0;
        }
        turns * self.turn()
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Bytes from the disk.
    Read,
    /// Bytes to the disk, which may stay in its cache.
    Write,
    /// Everything that was written before must be on the platter.
    Flush,
}

/// A request as the scheduler sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Seconds.
    pub(crate) arrived: f64,
}

impl Request {
    fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// What the disk does next, and when that is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// The request at this index is answered.
    Serve { index: usize, done: f64 },
    /// Part of the write cache goes to the platter; the requests still wait.
    Destage { done: f64 },
}

/// What has happened since the last reset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: u64,
    pub(crate) read_bytes: u64,
    pub(crate) writes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) flushes: u64,
    /// Reads that needed nothing from the platter.
    pub(crate) hits: u64,
    pub(crate) destaged_bytes: u64,
    /// Head movements beyond the track it is on.
    pub(crate) seeks: u64,
    /// Seconds spent on requests and on destaging: seeks, rotation, transfer (of data taken from
    /// the look-ahead as well, but not of what was read ahead in vain).
    pub(crate) busy_s: f64,
    /// Distance of the head in full strokes.
    pub(crate) strokes: f64,
    /// Sum of the requests waiting at each read served; divided by reads, the queue's depth.
    pub(crate) queued: u64,
}

/// The disk: where its head is, what it holds in memory, what it has done.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) params: Params,
    pub(crate) counters: Counters,
    /// When the work handed out so far is over.
    free_at: f64,
    /// The head stood at `head` at `head_at` and has been reading ahead since, up to `limit`.
    head: f64,
    head_at: f64,
    limit: f64,
    /// The look-ahead buffer holds what lies between this and the head.
    buffer_start: f64,
    /// Written but not on the platter: start → end, disjoint, not touching. (Who wants to lose
    /// them in a power cut has to keep the bytes that lie underneath.)
    dirty: BTreeMap<u64, u64>,
    dirty_bytes: u64,
}

impl Disk {
    /// A disk at rest on its outermost track.
    pub(crate) fn new(params: Params) -> Self {
        Disk {
            params,
            counters: Counters::default(),
            free_at: 0.0,
            head: 0.0,
            head_at: 0.0,
            limit: 0.0,
            buffer_start: 0.0,
            dirty: BTreeMap::new(),
            dirty_bytes: 0,
        }
    }

    /// Bytes in the write cache.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Seconds of quiet before `destage` may be called unasked.
    pub(crate) fn idle_s(&self) -> f64 {
        self.params.idle_ms / 1e3
    }

    /// Zero the counters and forget the look-ahead buffer.
    pub(crate) fn reset(&mut self, now: f64) {
        self.counters = Counters::default();
        self.park(now.max(self.free_at), self.position(now));
    }

    /// Forget what is in the write cache, as if it had been destaged.
    pub(crate) fn settle(&mut self) {
        self.dirty.clear();
        self.dirty_bytes = 0;
    }

    /// Choose among the waiting requests the one reached first, serve it, and say when it is
    /// done. A flush is a barrier: those behind it wait. `None` when nothing waits.
    pub(crate) fn next<'a>(
        &mut self,
        waiting: impl ExactSizeIterator<Item = &'a Request>,
    ) -> Option<Step> {
        let queued = waiting.len() as u64;
        let mut best: Option<(f64, usize, Request)> = None;
        for (index, request) in waiting.enumerate() {
            if request.op == Op::Flush {
                if index == 0 {
                    best = Some((0.0, index, *request));
                }
                break;
            }
            if index as f64 >= self.params.depth {
                break;
            }
            let start = self.free_at.max(request.arrived);
            let cost = self.reach(start, request) - self.params.patience * (start - request.arrived)
                // One that has only just arrived is not served before the disk is free.
                + (start - self.free_at);
            if best.is_none_or(|(least, ..)| cost < least) {
                best = Some((cost, index, *request));
            }
        }
        let (_, index, request) = best?;
        let start = self.free_at.max(request.arrived);
        let done = match request.op {
            Op::Read => {
                self.counters.queued += queued;
                self.read(start, &request)
            }
            Op::Write if self.has_room(request.len) => self.write(start, &request),
            Op::Flush if self.dirty.is_empty() => {
                self.counters.flushes += 1;
                start
            }
            Op::Write | Op::Flush => {
                let done = self.destage(start)?;
                return Some(Step::Destage { done });
            }
        };
        self.free_at = done;
        Some(Step::Serve { index, done })
    }

    /// Write the next piece of the cache to the platter, in elevator order: upwards from the
    /// head, then from the lowest again. `None` when the cache is empty.
    pub(crate) fn destage(&mut self, now: f64) -> Option<f64> {
        let start = self.free_at.max(now);
        let (from, to) = self.next_dirty(start)?;
        let offset = from as f64;
        let arrive = self.travel(start, offset);
        let done = arrive + (to - from) as f64 / self.params.rate();
        self.remove_dirty(from, to);
        self.park(done, to as f64);
        self.counters.destaged_bytes += to - from;
        self.counters.busy_s += done - start;
        self.free_at = done;
        Some(done)
    }

    /// Where the head is: the look-ahead carries it on until its limit.
    fn position(&self, now: f64) -> f64 {
        let run = (now - self.head_at).max(0.0) * self.params.rate();
        (self.head + run).min(self.limit.max(self.head))
    }

    fn is_buffered(&self, now: f64, offset: u64) -> bool {
        (self.buffer_start..=self.position(now)).contains(&(offset as f64))
    }

    fn is_dirty(&self, request: &Request) -> bool {
        let below = self.dirty.range(..=request.offset).next_back();
        below.is_some_and(|(_, end)| *end >= request.end())
    }

    fn has_room(&self, len: u64) -> bool {
        self.dirty.is_empty()
            || (self.dirty_bytes + len) as f64 <= self.params.cache_mib * 1_048_576.0
    }

    /// Seconds from `start` until the first byte of the request can move.
    fn reach(&self, start: f64, request: &Request) -> f64 {
        match request.op {
            Op::Read if self.is_dirty(request) => 0.0,
            Op::Read if self.is_buffered(start, request.offset) => 0.0,
            Op::Read => self.access(start, request.offset as f64),
            Op::Write if self.has_room(request.len) => 0.0,
            Op::Write | Op::Flush => self
                .next_dirty(start)
                .map_or(0.0, |(from, _)| self.access(start, from as f64)),
        }
    }

    /// Seek and rotation from where the head is.
    fn access(&self, start: f64, target: f64) -> f64 {
        let seek = self.params.seek((target - self.position(start)).abs());
        seek + self.params.rotation(start + seek, target)
    }

    /// Move the head, count the way, and say when `target` is under it.
    fn travel(&mut self, start: f64, target: f64) -> f64 {
        let distance = (target - self.position(start)).abs();
        let arrive = start + self.access(start, target);
        self.counters.seeks += u64::from(distance >= self.params.track_bytes());
        self.counters.strokes += distance / self.params.span_bytes;
        arrive
    }

    fn read(&mut self, start: f64, request: &Request) -> f64 {
        let (offset, end) = (request.offset as f64, request.end() as f64);
        let bus_done = start + self.params.on_bus(request.len);
        let position = self.position(start);
        self.counters.reads += 1;
        self.counters.read_bytes += request.len;
        let done = if self.is_dirty(request) {
            self.counters.hits += 1;
            bus_done
        } else if self.is_buffered(start, request.offset) {
            self.counters.hits += u64::from(end <= position);
            self.counters.strokes += (position - self.head) / self.params.span_bytes;
            // A head that has stopped at its limit waits for the platter to come round.
            let stopped = position >= self.limit;
            self.head_at = match stopped {
                true => start + self.params.rotation(start, position),
                false => start,
            };
            self.head = position;
            if end > position {
                self.head_at += (end - position) / self.params.rate();
                self.head = end;
                bus_done.max(self.head_at)
            } else {
                bus_done
            }
        } else {
            self.counters.strokes += (position - self.head) / self.params.span_bytes;
            let arrive = self.travel(start, offset);
            self.head_at = arrive + request.len as f64 / self.params.rate();
            self.head = end;
            // What passes under the head on its way along the track is read as well.
            let gap = offset - position;
            if !(0.0..self.params.track_bytes()).contains(&gap) {
                self.buffer_start = offset;
            }
            self.head_at
        };
        if !self.is_dirty(request) {
            self.limit = end + self.params.lookahead_bytes();
            let behind = end - self.params.lookahead_bytes();
            self.buffer_start = self.buffer_start.max(behind);
        }
        // Data from the look-ahead took the head's time too, only earlier.
        self.counters.busy_s += (done - start).max(request.len as f64 / self.params.rate());
        done
    }

    fn write(&mut self, start: f64, request: &Request) -> f64 {
        self.counters.writes += 1;
        self.counters.write_bytes += request.len;
        self.insert_dirty(request.offset, request.end());
        start + self.params.on_bus(request.len)
    }

    /// The head comes to rest, without look-ahead.
    fn park(&mut self, at: f64, position: f64) {
        self.head = position;
        self.head_at = at;
        self.limit = position;
        self.buffer_start = position;
    }

    fn next_dirty(&self, now: f64) -> Option<(u64, u64)> {
        let position = self.position(now);
        let above = self
            .dirty
            .iter()
            .find(|(from, _)| **from as f64 >= position);
        let (from, to) = above.or_else(|| self.dirty.first_key_value())?;
        Some((*from, (*to).min(from + DESTAGE_BYTES)))
    }

    fn insert_dirty(&mut self, mut from: u64, mut to: u64) {
        while let Some((&start, &end)) = self.dirty.range(..=to).next_back()
            && end >= from
        {
            self.dirty.remove(&start);
            self.dirty_bytes -= end - start;
            from = from.min(start);
            to = to.max(end);
        }
        self.dirty.insert(from, to);
        self.dirty_bytes += to - from;
    }

    /// Take a piece off the front of a dirty range.
    fn remove_dirty(&mut self, from: u64, to: u64) {
        if let Some(end) = self.dirty.remove(&from) {
            self.dirty_bytes -= to - from;
            if end > to {
                self.dirty.insert(to, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;
    const BLOCK: u64 = 4096;
    const MS: f64 = 1e-3;

    fn disk() -> Disk {
        Disk::new(Params::desktop(8e9))
    }

    fn request(op: Op, offset: u64, len: u64, arrived: f64) -> Request {
        Request {
            op,
            offset,
            len,
            arrived,
        }
    }

    /// Serve one request on a disk that has nothing else to do.
    fn serve(disk: &mut Disk, op: Op, offset: u64, len: u64, arrived: f64) -> f64 {
        match disk.next([request(op, offset, len, arrived)].iter()) {
            Some(Step::Serve { done, .. }) => done,
            other => panic!("not served: {other:?}"),
        }
    }

    /// A fixed sequence of block offsets on the first 8 GB.
    fn offsets() -> impl Iterator<Item = u64> {
        let mut state = 7_u64;
        std::iter::from_fn(move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            Some((state >> 20) % (8 * GB / BLOCK) * BLOCK)
        })
    }

    /// Random reads per second when `depth` of them are always waiting.
    fn random_reads_per_s(depth: usize) -> f64 {
        let (mut disk, mut offsets) = (disk(), offsets());
        let mut waiting: Vec<Request> = offsets
            .by_ref()
            .take(depth)
            .map(|offset| request(Op::Read, offset, BLOCK, 0.0))
            .collect();
        let mut now = 0.0;
        for offset in offsets.take(4000) {
            let Some(Step::Serve { index, done }) = disk.next(waiting.iter()) else {
                panic!("nothing served");
            };
            waiting.remove(index);
            waiting.push(request(Op::Read, offset, BLOCK, done));
            now = done;
        }
        4000.0 / now
    }

    #[test]
    fn seeks_take_what_the_two_points_say() {
        let params = Params::desktop(8e9);
        assert!((params.seek(8e9) - 8.5 * MS).abs() < 1e-9);
        assert!((params.seek(24e9) - 14.0 * MS).abs() < 1e-9);
        assert!((0.9 * MS..1.2 * MS).contains(&params.seek(params.track_bytes())));
        assert_eq!(params.seek(params.track_bytes() / 2.0), 0.0);
    }

    #[test]
    fn one_random_read_at_a_time_gives_110_and_thirty_two_200() {
        assert!((104.0..116.0).contains(&random_reads_per_s(1)));
        assert!((190.0..225.0).contains(&random_reads_per_s(32)));
    }

    #[test]
    fn reads_in_sequence_run_at_the_speed_of_the_platter() {
        let mut disk = disk();
        let (mut now, first) = (0.0, serve(&mut disk, Op::Read, 0, BLOCK, 0.0));
        for block in 1..10_000 {
            // The host thinks for 10 µs after each: the look-ahead covers it.
            now = serve(&mut disk, Op::Read, block * BLOCK, BLOCK, now + 10e-6).max(first);
        }
        let rate = 10_000.0 * BLOCK as f64 / now;
        assert!((175e6..181e6).contains(&rate), "{rate}");
        assert_eq!(disk.counters.seeks, 0);
    }

    #[test]
    fn the_look_ahead_stops_after_two_mib_and_costs_a_rotation_to_resume() {
        let mut disk = disk();
        let done = serve(&mut disk, Op::Read, 0, BLOCK, 0.0);
        let later = done + 1.0;
        let hit = serve(&mut disk, Op::Read, 1 << 20, BLOCK, later);
        assert!(hit - later < 0.02 * MS);
        let miss = serve(&mut disk, Op::Read, 8 << 20, BLOCK, later + 1.0);
        assert!(miss - later - 1.0 > 0.9 * MS);
        assert_eq!(disk.counters.hits, 1);
    }

    #[test]
    fn a_block_just_behind_the_head_costs_almost_a_turn() {
        let mut disk = disk();
        let done = serve(&mut disk, Op::Read, GB, BLOCK, 0.0);
        let again = serve(&mut disk, Op::Read, GB - 10 * BLOCK, BLOCK, done);
        assert!((again - done) > 7.5 * MS, "{}", again - done);
    }

    #[test]
    fn what_the_head_passes_on_its_way_along_the_track_is_in_the_buffer() {
        let mut disk = disk();
        let first = serve(&mut disk, Op::Read, GB, BLOCK, 0.0);
        let second = serve(&mut disk, Op::Read, GB + 10 * BLOCK, BLOCK, first);
        let between = serve(&mut disk, Op::Read, GB + 5 * BLOCK, BLOCK, second);
        assert!((0.2 * MS..0.3 * MS).contains(&(second - first)));
        assert!(between - second < 0.02 * MS);
    }

    #[test]
    fn the_nearest_is_served_first_but_the_oldest_not_forever_last() {
        let mut disk = disk();
        let start = serve(&mut disk, Op::Read, 0, BLOCK, 0.0);
        let far = request(Op::Read, 7 * GB, BLOCK, start);
        let near = request(Op::Read, 2 * BLOCK, BLOCK, start);
        let step = disk.clone().next([far, near].iter());
        assert!(matches!(step, Some(Step::Serve { index: 1, .. })));
        let mut now = start;
        let starved = (0..1000).all(|n| {
            let near = request(Op::Read, (n + 3) * 100 * BLOCK, BLOCK, now);
            let Some(Step::Serve { index, done }) = disk.next([far, near].iter()) else {
                panic!("nothing served");
            };
            now = done;
            index == 1
        });
        assert!(!starved);
    }

    #[test]
    fn writes_are_answered_from_the_cache_and_a_flush_pays_for_them() {
        let mut disk = disk();
        let mut now = 0.0;
        for offset in offsets().take(100) {
            now = serve(&mut disk, Op::Write, offset, BLOCK, now);
        }
        assert!(now < 1.0 * MS);
        let flush = [request(Op::Flush, 0, 0, now)];
        let mut steps = 0;
        let done = loop {
            match disk.next(flush.iter()) {
                Some(Step::Destage { .. }) => steps += 1,
                Some(Step::Serve { done, .. }) => break done,
                None => panic!("flush forgotten"),
            }
        };
        assert_eq!(
            (steps, disk.dirty_bytes(), disk.counters.flushes),
            (100, 0, 1)
        );
        // In elevator order a hundred writes cost far less than a hundred random ones.
        assert!((0.3..0.8).contains(&done), "{done}");
    }

    #[test]
    fn a_full_cache_makes_writes_wait() {
        let mut disk = disk();
        for piece in 0..64 {
            serve(&mut disk, Op::Write, piece << 20, 1 << 20, 0.0);
        }
        let late = [request(Op::Write, 4 * GB, 1 << 20, 0.0)];
        assert!(matches!(disk.next(late.iter()), Some(Step::Destage { .. })));
        assert!(matches!(disk.next(late.iter()), Some(Step::Serve { .. })));
    }

    #[test]
    fn dirty_ranges_merge_and_are_read_back_from_the_cache() {
        let mut disk = disk();
        for offset in [0, 8192, 4096, 4096] {
            serve(&mut disk, Op::Write, 4 * GB + offset, BLOCK, 0.0);
        }
        assert_eq!((disk.dirty.len(), disk.dirty_bytes()), (1, 3 * BLOCK));
        let start = disk.free_at;
        assert!(serve(&mut disk, Op::Read, 4 * GB, 2 * BLOCK, start) - start < 0.1 * MS);
        assert_eq!(disk.counters.hits, 1);
    }

    #[test]
    fn what_arrives_after_a_flush_waits_for_it() {
        let mut disk = disk();
        serve(&mut disk, Op::Write, GB, BLOCK, 0.0);
        let waiting = [
            request(Op::Flush, 0, 0, 0.0),
            request(Op::Read, 0, BLOCK, 0.0),
        ];
        assert!(matches!(
            disk.next(waiting.iter()),
            Some(Step::Destage { .. })
        ));
        assert!(matches!(
            disk.next(waiting.iter()),
            Some(Step::Serve { index: 0, .. })
        ));
    }
}
