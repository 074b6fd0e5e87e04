//! Faults that go through memory in order, up or down: what they will want next.

use std::ops::Range;

/// Streams of one process that are followed at once.
const STREAMS: usize = 8;

/// Pages after those that a stream was given within which its next fault is: what lies between was
/// there.
const REACH: u64 = 16;

/// Faults one after the other.
#[derive(Debug, Default, Clone, Copy)]
struct Stream {
    /// The page of its last fault.
    last: u64,
    /// Pages that were to be filled then; with one it may go up or down.
    window: usize,
    goes_down: bool,
}

impl Stream {
    /// Whether a fault is its next, past pages that `are_passed`; in which direction, where it is.
    fn goes_on(self, page: u64, are_passed: impl Fn(Range<u64>) -> bool) -> Option<bool> {
        let window = self.window as u64;
        let is_near = |distance: u64| distance > 0 && distance < window + REACH;
        let up = is_near(page.saturating_sub(self.last)) && are_passed(self.last + window..page);
        let down = is_near(self.last.saturating_sub(page))
            && are_passed(page + 1..(self.last + 1).saturating_sub(window));
        match (up, down) {
            (true, _) if self.window == 1 || !self.goes_down => Some(false),
            (_, true) if self.window == 1 || self.goes_down => Some(true),
            _ => None,
        }
    }
}

/// The streams of a process, the last one first.
#[derive(Debug, Default)]
pub(crate) struct Streams([Stream; STREAMS]);

impl Streams {
    /// Pages to fill for a fault of `page`, which is the first or the last of them, at most `most`:
    /// one, and twice as many for each fault of its stream. The faults of a stream may pass a few
    /// pages if those `are_passed`.
    pub(crate) fn window(
        &mut self,
        page: u64,
        most: usize,
        are_passed: impl Fn(Range<u64>) -> bool,
    ) -> Range<u64> {
        let goes_on = |stream: &Stream| stream.goes_on(page, &are_passed);
        let mut streams = self.0.iter().map(goes_on).enumerate();
        let known = streams.find_map(|(at, goes_on)| Some((at, goes_on?)));
        let (at, goes_down, window) = match known {
            Some((at, goes_down)) => (at, goes_down, (self.0[at].window * 2).clamp(1, most)),
            None => (STREAMS - 1, false, 1),
        };
        self.0[..=at].rotate_right(1);
        self.0[0] = Stream { last: page, window, goes_down };
        match goes_down {
            true => (page + 1).saturating_sub(window as u64)..page + 1,
            false => page..page + window as u64,
        }
    }
}

/// Faults one after the other of memory that was never touched, each next to all that the ones
/// before were given.
#[derive(Debug, Default, Clone, Copy)]
struct FreshStream {
    /// The page of its last fault, and what was filled for it.
    last: u64,
    filled: (u64, u64),
    /// Pages that were filled, in all.
    run: u64,
    window: u64,
    /// With one fault it may go up or down.
    goes_down: Option<bool>,
}

impl FreshStream {
    /// Whether a fault is its next; whether it goes down, where it is.
    fn goes_on(&self, page: u64, is_there: impl Fn(u64) -> bool) -> Option<bool> {
        let (start, end) = self.filled;
        if self.run == 0 {
            return None;
        }
        let is_next =
            |mut between: Range<u64>| between.end - between.start < REACH && between.all(&is_there);
        if page >= end && self.goes_down != Some(true) && is_next(end..page) {
            return Some(false);
        }
        let is_down = page < start && self.goes_down != Some(false) && is_next(page + 1..start);
        is_down.then_some(true)
    }
}

/// Pages of a window that doubles at most.
const WINDOW_MAX: u64 = 64;

/// Pages that were filled ahead and have left, after which their windows are thought over.
const SEEN_MIN: usize = 64;

/// A window may take one part in so many of what its stream was given so far, whatever became of
/// others: it fills no more than that needlessly.
const PROVEN_PART: u64 = 8;

/// The streams of a process through memory that was never touched, the last one first. Zeros that
/// nobody touches cost the program memory, and others pages that they use: so there is no window
/// before two pages in a row were touched, and few pages where those of others were not. (What goes
/// through memory in steps of several pages is no stream.)
#[derive(Debug)]
pub(crate) struct FreshStreams {
    streams: [FreshStream; STREAMS],
    /// Pages of a window at most that doubles with each fault.
    most: u64,
    /// Pages that were filled ahead, when they left: touched, and as they were.
    touched: usize,
    untouched: usize,
}

impl Default for FreshStreams {
    fn default() -> FreshStreams {
        FreshStreams { streams: Default::default(), most: WINDOW_MAX, touched: 0, untouched: 0 }
    }
}

impl FreshStreams {
    /// As [`Streams::window`]; `is_there` tells of pages of which that is known.
    pub(crate) fn window(
        &mut self,
        page: u64,
        most: usize,
        is_there: impl Fn(u64) -> bool,
    ) -> Range<u64> {
        let goes_on = self.streams.iter().map(|stream| stream.goes_on(page, &is_there));
        let known = goes_on.enumerate().find_map(|(at, goes_on)| Some((at, goes_on?)));
        let (at, mut stream) = match known {
            Some((at, goes_down)) => {
                let stream = self.streams[at];
                let window = (stream.window * 2).min(self.most).max(stream.run / PROVEN_PART);
                let window = window.clamp(1, most as u64);
                (at, FreshStream { window, goes_down: Some(goes_down), ..stream })
            }
            None => (STREAMS - 1, FreshStream { window: 1, ..FreshStream::default() }),
        };
        stream.last = page;
        self.streams[..=at].rotate_right(1);
        self.streams[0] = stream;
        match stream.goes_down {
            Some(true) => (page + 1).saturating_sub(stream.window)..page + 1,
            _ => page..page + stream.window,
        }
    }

    /// So many pages were filled for the fault of a page for which there was a window last.
    pub(crate) fn filled(&mut self, page: u64, pages: &Range<u64>) {
        let stream = &mut self.streams[0];
        debug_assert_eq!(stream.last, page);
        stream.filled = (pages.start, pages.end);
        stream.run = if pages.is_empty() { 0 } else { stream.run + (pages.end - pages.start) };
    }

    /// Pages that were filled ahead leave: so many were touched, and so many are as they were.
    pub(crate) fn see(&mut self, touched: usize, untouched: usize) {
        self.touched += touched;
        self.untouched += untouched;
        let seen = self.touched + self.untouched;
        if seen < SEEN_MIN {
            return;
        }
        let is_wasteful = self.untouched as u64 * PROVEN_PART > seen as u64;
        self.most = match is_wasteful {
            true => (self.most / 4).max(1),
            false => (self.most * 2).min(WINDOW_MAX),
        };
        (self.touched, self.untouched) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range_set::count;

    #[test]
    fn windows_double_while_faults_go_on() {
        let mut streams = Streams::default();
        let mut page = 1000;
        let mut windows = Vec::new();
        for _ in 0..6 {
            let window = streams.window(page, 16, |_| true);
            assert_eq!(window.start, page);
            page = window.end;
            windows.push(count(&window));
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 16]);
        // Some were there already.
        assert_eq!(count(&streams.window(page + 5, 16, |_| true)), 16);
        // A fault within what was given: the run was shorter.
        assert_eq!(count(&streams.window(page + 12, 16, |_| true)), 16);
        assert_eq!(count(&streams.window(page + 9, 16, |_| true)), 1);
    }

    #[test]
    fn streams_go_down_as_well() {
        let mut streams = Streams::default();
        let mut page = 1000;
        let mut windows = Vec::new();
        for _ in 0..6 {
            let window = streams.window(page, 16, |_| true);
            assert_eq!(window.end, page + 1);
            page = window.start - 1;
            windows.push(count(&window));
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 16]);
        assert_eq!(count(&streams.window(page - 5, 16, |_| true)), 16);
        // Back up: another one.
        assert_eq!(count(&streams.window(page, 16, |_| true)), 1);
        // The lowest pages of all.
        let mut streams = Streams::default();
        assert_eq!([1, 0].map(|page| streams.window(page, 16, |_| true)), [1..2, 0..1]);
    }

    #[test]
    fn a_stream_ends_where_it_leaves_a_page_behind() {
        for down in [false, true] {
            let at = |page: u64| if down { 5000 - page } else { page };
            let next = |streams: &mut Streams, page, left_behind| {
                let are_passed = |pages: Range<u64>| !pages.contains(&at(left_behind));
                count(&streams.window(at(page), 16, are_passed))
            };
            let mut streams = Streams::default();
            // The windows are 1000, and 1001 with 1002.
            assert_eq!([1000, 1001].map(|page| next(&mut streams, page, 0)), [1, 2]);
            let mut again = Streams(streams.0);
            assert_eq!(next(&mut streams, 1005, 1002), 4, "a page of the last window");
            assert_eq!(next(&mut again, 1005, 1003), 1);
            let mut again = Streams(streams.0);
            assert_eq!((next(&mut again, 1012, 1011), next(&mut streams, 1012, 1008)), (1, 8));
        }
    }

    #[test]
    fn the_same_page_again_is_filled_alone() {
        let mut streams = Streams::default();
        for page in [1010, 1011, 1013] {
            streams.window(page, 16, |_| true);
        }
        assert_eq!(streams.window(1013, 16, |_| true), 1013..1014);
    }

    /// A program that touches pages in this order; how many are filled, and for how many faults.
    fn touch(streams: &mut FreshStreams, pages: impl Iterator<Item = u64>) -> (usize, usize) {
        let (mut there, mut faults) = (std::collections::BTreeSet::new(), 0);
        for page in pages {
            if !there.contains(&page) {
                let window = streams.window(page, 64, |page| there.contains(&page));
                assert!(window.contains(&page));
                streams.filled(page, &window);
                there.extend(window);
                faults += 1;
            }
        }
        (there.len(), faults)
    }

    #[test]
    fn dense_memory_is_filled_in_large_windows_up_or_down() {
        for down in [false, true] {
            let mut streams = FreshStreams::default();
            let pages = (5000..15_000).map(|page| if down { 20_000 - page } else { page });
            let (filled, faults) = touch(&mut streams, pages);
            assert!(filled <= 10_000 + 64 && faults <= 6 + 10_000_usize.div_ceil(64), "{faults}");
        }
    }

    #[test]
    fn no_step_of_more_than_a_page_is_a_stream() {
        for step in (2..20).chain([63, 64, 65, 512, 1 << 20]) {
            let (filled, faults) =
                touch(&mut FreshStreams::default(), (1000..2000).map(|at| at * step));
            assert_eq!((filled, faults), (1000, 1000), "step {step}");
        }
    }

    #[test]
    fn what_nobody_touched_makes_windows_smaller_and_long_runs_have_them_still() {
        // Records of two pages, 16 apart.
        let records = |from: u64| (from..from + 1000).flat_map(|at| [at * 16, at * 16 + 1]);
        let mut streams = FreshStreams::default();
        assert_eq!(touch(&mut streams, records(0)).0, 3000);
        for _ in 0..3 {
            streams.see(SEEN_MIN / 2, SEEN_MIN / 2);
        }
        assert_eq!(touch(&mut streams, records(5000)), (2000, 2000));
        // Of a run, an eighth is filled needlessly at most.
        for length in [8, 20, 100, 500, 3000] {
            let (filled, faults) = touch(&mut streams, 1 << 30..(1 << 30) + length);
            assert!(filled as u64 <= length + length / PROVEN_PART, "{filled} of {length}");
            assert!(faults as u64 <= 40 + length / 64, "{faults} of {length}");
        }
        for _ in 0..6 {
            streams
                .see(SEEN_MIN - SEEN_MIN / PROVEN_PART as usize, SEEN_MIN / PROVEN_PART as usize);
        }
        assert_eq!(touch(&mut streams, records(10_000)).0, 3000);
    }

    #[test]
    fn windows_shrink_if_more_than_an_eighth_left_untouched() {
        let mut streams = FreshStreams::default();
        let mut most = |touched, untouched| {
            streams.see(touched, untouched);
            streams.most
        };
        assert_eq!([most(0, 63), most(0, 1)], [64, 16], "few tell little");
        assert_eq!([most(70, 10), most(69, 11), most(0, 64), most(0, 64)], [32, 8, 2, 1]);
        assert_eq!([most(0, 99), most(63, 0), most(1, 0), most(80, 0)], [1, 1, 2, 4]);
        assert_eq!((0..9).map(|_| most(64, 0)).last(), Some(WINDOW_MAX));
    }

    #[test]
    fn a_stream_goes_on_past_what_is_known_to_be_there() {
        let mut streams = FreshStreams::default();
        let mut page = 0;
        for _ in 0..4 {
            let window = streams.window(page, 64, |_| false);
            streams.filled(page, &window);
            page = window.end;
        }
        assert_eq!(count(&streams.window(page + 3, 64, |at| at > page)), 1);
        streams.filled(page + 3, &(page + 3..page + 4));
        let mut again = FreshStreams::default();
        for page in [0, 1] {
            again.window(page, 64, |_| false);
            again.filled(page, &(page..page + 1));
        }
        assert_eq!(count(&again.window(5, 64, |_| true)), 4);
        // One that could not be filled is asked for again, alone.
        again.filled(5, &(5..5));
        assert_eq!(again.window(5, 64, |_| true), 5..6);
    }

    #[test]
    fn streams_are_followed_side_by_side() {
        let mut streams = Streams::default();
        let mut heads: Vec<u64> = (0..STREAMS as u64).map(|at| 1 << 20 << at).collect();
        for round in 0..5 {
            for head in &mut heads {
                let window = streams.window(*head, 64, |_| true);
                assert_eq!(count(&window), 1 << round);
                *head = window.end;
            }
        }
        // One more than can be followed, in turn: none is.
        heads.push(7);
        for _ in 0..3 {
            heads.iter_mut().for_each(|head| *head = streams.window(*head, 64, |_| true).end);
        }
        assert!(heads.iter().all(|&head| count(&streams.window(head, 64, |_| true)) == 1));
    }
}
