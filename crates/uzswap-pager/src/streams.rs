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
    /// Whether a fault is its next; in which direction, where it is.
    fn goes_on(self, page: u64) -> Option<bool> {
        let is_near = |distance: u64| distance > 0 && distance < self.window as u64 + REACH;
        let up = is_near(page.saturating_sub(self.last));
        let down = is_near(self.last.saturating_sub(page));
        match (up, down) {
            (true, _) if self.window == 1 || !self.goes_down => Some(false),
            (_, true) if self.window == 1 || self.goes_down => Some(true),
            _ => None,
        }
    }
}

/// The streams of a process, the last one first.
#[derive(Debug, Default)]
pub(super) struct Streams([Stream; STREAMS]);

impl Streams {
    /// Pages to fill for a fault of `page`, which is the first or the last of them, at most `most`:
    /// one, and twice as many for each fault of its stream.
    pub(super) fn window(&mut self, page: u64, most: usize) -> Range<u64> {
        let mut streams = self.0.iter().map(|stream| stream.goes_on(page)).enumerate();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::count;

    #[test]
    fn windows_double_while_faults_go_on() {
        let mut streams = Streams::default();
        let mut page = 1000;
        let mut windows = Vec::new();
        for _ in 0..6 {
            let window = streams.window(page, 16);
            assert_eq!(window.start, page);
            page = window.end;
            windows.push(count(&window));
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 16]);
        // Some were there already.
        assert_eq!(count(&streams.window(page + 5, 16)), 16);
        // A fault within what was given: the run was shorter.
        assert_eq!(count(&streams.window(page + 12, 16)), 16);
        assert_eq!(count(&streams.window(page + 9, 16)), 1);
    }

    #[test]
    fn streams_go_down_as_well() {
        let mut streams = Streams::default();
        let mut page = 1000;
        let mut windows = Vec::new();
        for _ in 0..6 {
            let window = streams.window(page, 16);
            assert_eq!(window.end, page + 1);
            page = window.start - 1;
            windows.push(count(&window));
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 16]);
        assert_eq!(count(&streams.window(page - 5, 16)), 16);
        // Back up: another one.
        assert_eq!(count(&streams.window(page, 16)), 1);
        // The lowest pages of all.
        let mut streams = Streams::default();
        assert_eq!([1, 0].map(|page| streams.window(page, 16)), [1..2, 0..1]);
    }

    #[test]
    fn the_same_page_again_is_filled_alone() {
        let mut streams = Streams::default();
        for page in [1010, 1011, 1013] {
            streams.window(page, 16);
        }
        assert_eq!(streams.window(1013, 16), 1013..1014);
    }

    #[test]
    fn streams_are_followed_side_by_side() {
        let mut streams = Streams::default();
        let mut heads: Vec<u64> = (0..STREAMS as u64).map(|at| 1 << 20 << at).collect();
        for round in 0..5 {
            for head in &mut heads {
                let window = streams.window(*head, 64);
                assert_eq!(count(&window), 1 << round);
                *head = window.end;
            }
        }
        // One more than can be followed, in turn: none is.
        heads.push(7);
        for _ in 0..3 {
            heads.iter_mut().for_each(|head| *head = streams.window(*head, 64).end);
        }
        assert!(heads.iter().all(|&head| count(&streams.window(head, 64)) == 1));
    }
}
