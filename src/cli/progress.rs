//! A line that says how far the job is, redrawn ten times a second from
//! [`Counters`] by a thread of its own and gone before anything else is said.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use haul::Counters;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::text;

const TICK: Duration = Duration::from_millis(100);
/// The bar's length: tenths of a percent.
const FULL: u64 = 1000;
/// What an entry costs beside its content, as bytes: a small file takes about
/// as long as this much of a large one. Only the time left depends on it.
const ENTRY_BYTES: u64 = 64 << 10;

/// Runs `work`; draws meanwhile, if `shown`.
pub(super) fn during<T>(shown: bool, counters: &Counters, work: impl FnOnce() -> T) -> T {
    if !shown {
        return work();
    }
    thread::scope(|scope| {
        let (done_tx, done_rx) = channel::<()>();
        scope.spawn(move || draw(counters, &done_rx));
        let result = work();
        drop(done_tx);
        result
    })
}

fn draw(counters: &Counters, done: &Receiver<()>) {
    let bar = ProgressBar::with_draw_target(Some(FULL), ProgressDrawTarget::stderr());
    let looks = |template| ProgressStyle::with_template(template).expect("a constant");
    bar.set_style(looks("{spinner} {wide_msg}"));
    let started = Instant::now();
    // The time left is reckoned from the first entry that was finished: what
    // the scan took says nothing about the rest.
    let mut first_done: Option<Now> = None;
    let mut has_bar = false;
    while done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
        let now = Now::read(counters, started.elapsed());
        if now.done > 0 && first_done.is_none() {
            first_done = Some(now.clone());
        }
        if now.total_known && !has_bar {
            bar.set_style(looks("{spinner} {bar:10} {wide_msg}"));
            has_bar = true;
        }
        bar.set_position(now.permille());
        bar.set_message(now.line(first_done.as_ref()));
        bar.tick();
    }
    bar.finish_and_clear();
}

/// The counters at one moment.
#[derive(Clone, Debug, Default)]
struct Now {
    stage: &'static str,
    at: Duration,
    found: u64,
    found_bytes: u64,
    total_known: bool,
    done: u64,
    bytes: u64,
}

impl Now {
    fn read(counters: &Counters, at: Duration) -> Now {
        let ended = [
            &counters.copied,
            &counters.unchanged,
            &counters.linked,
            &counters.failed,
        ];
        Now {
            stage: counters.stage(),
            at,
            found: counters.found.load(Relaxed),
            found_bytes: counters.found_bytes.load(Relaxed),
            total_known: counters.scan_done.load(Relaxed),
            done: ended.iter().map(|n| n.load(Relaxed)).sum(),
            bytes: counters.written_bytes.load(Relaxed),
        }
    }

    /// Work done and work in all, in bytes' worth.
    fn work(&self) -> (u128, u128) {
        let worth = |entries: u64, bytes: u64| {
            u128::from(entries) * u128::from(ENTRY_BYTES) + u128::from(bytes)
        };
        let all = worth(self.found, self.found_bytes);
        (worth(self.done, self.bytes).min(all), all)
    }

    fn permille(&self) -> u64 {
        let (done, all) = self.work();
        let part = (done * u128::from(FULL)).checked_div(all).unwrap_or(0);
        u64::try_from(part).unwrap_or(FULL)
    }

    /// Time left at the pace since `first`; none before anything can be said.
    fn left(&self, first: &Now) -> Option<Duration> {
        let (done, all) = self.work();
        let since = done.checked_sub(first.work().0)?;
        let took = self.at.checked_sub(first.at)?;
        if !self.total_known || since == 0 || took < Duration::from_secs(1) {
            return None;
        }
        let millis = (all - done) * took.as_millis() / since;
        Some(Duration::from_millis(u64::try_from(millis).ok()?))
    }

    fn line(&self, first: Option<&Now>) -> String {
        let found = text::count(self.found);
        if self.done == 0 && !self.total_known {
            return format!("{} {found} found", self.stage);
        }
        let so_far = if self.total_known {
            ""
        } else {
            " found so far"
        };
        let mut line = format!(
            "{} {} of {found}{so_far}, {} of {}",
            self.stage,
            text::count(self.done),
            text::size(self.bytes),
            text::size(self.found_bytes.max(self.bytes)),
        );
        let Some(first) = first else { return line };
        let took = self.at.saturating_sub(first.at);
        if let Some(rate) = text::rate(self.bytes.saturating_sub(first.bytes), took) {
            line.push_str(&format!(", {rate}"));
        }
        if let Some(left) = self.left(first) {
            line.push_str(&format!(", {} left", text::time(left)));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(seconds: u64, done: u64, bytes: u64) -> Now {
        Now {
            stage: "copy",
            at: Duration::from_secs(seconds),
            found: 1000,
            found_bytes: 100_000_000,
            total_known: true,
            done,
            bytes,
        }
    }

    #[test]
    fn half_the_work_took_as_long_as_the_other_half_will() {
        let (first, half) = (now(10, 0, 0), now(14, 500, 50_000_000));
        assert_eq!(half.permille(), 500);
        assert_eq!(half.left(&first), Some(Duration::from_secs(4)));
        assert_eq!(
            half.line(Some(&first)),
            "copy 500 of 1,000, 50.0 MB of 100.0 MB, 12.5 MB/s, 4.0 s left"
        );
    }

    #[test]
    fn no_time_left_is_claimed_before_the_total_is_known() {
        let mut later = now(14, 500, 50_000_000);
        later.total_known = false;
        assert_eq!(later.left(&now(10, 0, 0)), None);
        assert!(later.line(None).contains("1,000 found so far"));
        assert_eq!(Now::default().permille(), 0);
        assert_eq!(Now::default().line(None), " 0 found");
    }

    #[test]
    fn a_tree_that_grew_does_not_overflow_the_bar() {
        assert_eq!(now(14, 2000, 900_000_000).permille(), FULL);
    }

    #[test]
    fn work_gives_its_result_with_and_without_a_bar() {
        let counters = Counters::default();
        assert_eq!(during(false, &counters, || 7), 7);
        assert_eq!(during(true, &counters, || 7), 7);
    }
}
