//! Faults that go through memory in order: what they will want next.

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
    /// Pages that were to be filled then.
    window: usize,
}

/// The streams of a process, the last one first.
#[derive(Debug, Default)]
pub(super) struct Streams([Stream; STREAMS]);

impl Streams {
    /// Pages to fill for a fault of `page`, at most `most`: one, and twice as many for each fault
    /// of its stream.
    pub(super) fn window(&mut self, page: u64, most: usize) -> usize {
        let goes_on = |stream: &Stream| {
            let reach = stream.last + stream.window as u64 + REACH;
            stream.last < page && page < reach
        };
        let known = self.0.iter().position(goes_on);
        let window = known.map_or(1, |at| (self.0[at].window * 2).min(most));
        let at = known.unwrap_or(STREAMS - 1);
        self.0[..=at].rotate_right(1);
        self.0[0] = Stream { last: page, window };
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_while_faults_go_on() {
        let mut streams = Streams::default();
        let mut page = 1000;
        let mut windows = Vec::new();
        for _ in 0..6 {
            let window = streams.window(page, 16);
            page += window as u64;
            windows.push(window);
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 16]);
        // Some were there already.
        assert_eq!(streams.window(page + 5, 16), 16);
        // A fault within what was given: the run was shorter.
        assert_eq!(streams.window(page + 12, 16), 16);
        assert_eq!(streams.window(page + 9, 16), 1);
    }

    #[test]
    fn streams_are_followed_side_by_side() {
        let mut streams = Streams::default();
        let mut heads: Vec<u64> = (0..STREAMS as u64).map(|at| 1 << 20 << at).collect();
        for round in 0..5 {
            for head in &mut heads {
                let window = streams.window(*head, 64);
                assert_eq!(window, 1 << round);
                *head += window as u64;
            }
        }
        // One more than can be followed, in turn: none is.
        heads.push(7);
        for _ in 0..3 {
            heads.iter_mut().for_each(|head| *head += streams.window(*head, 64) as u64);
        }
        assert!(heads.iter().all(|&head| streams.window(head, 64) == 1));
    }
}
