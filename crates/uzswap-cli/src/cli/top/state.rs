//! The state of the view on a terminal: keys in, page, order and selection out.

use super::rates::TopRun;

/// A key that was pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// The arrow up.
    Up,
    /// The arrow down.
    Down,
    /// Return, too.
    Enter,
    /// Escape.
    Escape,
    /// A character of ASCII.
    Char(char),
    /// Ctrl-backslash: end at once.
    Quit,
    /// The process was stopped and runs again: other programs have used the terminal.
    Resumed,
}

/// The order of runs. All but the last begin with the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Order {
    /// Faults a second.
    Faults,
    /// Resident memory and pool.
    Memory,
    /// The pool.
    Pool,
    /// The ratio.
    Ratio,
    /// Process numbers, the lowest first.
    #[default]
    Pid,
}

impl Order {
    /// Its name for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Faults => "faults",
            Order::Memory => "memory",
            Order::Pool => "pool",
            Order::Ratio => "ratio",
            Order::Pid => "PID",
        }
    }

    /// The order that a key asks for.
    fn of_key(key: char) -> Option<Order> {
        Some(match key {
            'f' => Order::Faults,
            'm' => Order::Memory,
            'p' => Order::Pool,
            'r' => Order::Ratio,
            'n' => Order::Pid,
            _ => return None,
        })
    }

    /// The highest value is the first run.
    fn value(self, run: &TopRun) -> f64 {
        let TopRun { status, interval, .. } = run;
        match self {
            Order::Faults => interval.faults_per_s,
            Order::Memory => status.resident_bytes.saturating_add(status.pool_bytes) as f64,
            Order::Pool => status.pool_bytes as f64,
            Order::Ratio => status.ratio.unwrap_or(0.0),
            Order::Pid => -f64::from(status.pid),
        }
    }
}

/// The lists of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Page {
    /// All runs.
    #[default]
    Runs,
    /// The processes of the selected run.
    Processes {
        /// The process in the first line.
        first: usize,
    },
}

/// The effect of a key beyond the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// The view goes on.
    GoOn,
    /// `top` ends.
    End,
}

/// The page, the order and the selected run.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    order: Order,
    page: Page,
    selected: Option<u32>,
    /// The place of the selected run in the order.
    place: usize,
}

impl State {
    /// The order of runs.
    pub(super) fn order(&self) -> Order {
        self.order
    }

    /// The list that is shown.
    pub(super) fn page(&self) -> Page {
        self.page
    }

    /// The place of the selected run among the arranged ones; none without a run.
    pub(super) fn selected(&self) -> Option<usize> {
        self.selected.map(|_| self.place)
    }

    /// Sorts the runs of a sample. A selected run that has ended gives way to the one in its place.
    pub(super) fn arrange(&mut self, runs: &mut [TopRun]) {
        runs.sort_by_key(|run| run.status.pid);
        runs.sort_by(|a, b| self.order.value(b).total_cmp(&self.order.value(a)));
        match runs.iter().position(|run| Some(run.status.pid) == self.selected) {
            Some(place) => self.place = place,
            None => {
                self.page = Page::Runs;
                self.select(self.place, runs);
            }
        }
        if let Page::Processes { first } = self.page {
            let last = runs[self.place].status.processes.len().saturating_sub(1);
            self.page = Page::Processes { first: first.min(last) };
        }
    }

    /// Takes a key, and arranges the runs anew.
    pub(super) fn press(&mut self, key: Key, runs: &mut [TopRun]) -> Then {
        match (key, self.page) {
            (Key::Quit, _) | (Key::Char('q'), Page::Runs) => return Then::End,
            (Key::Escape | Key::Char('q'), Page::Processes { .. }) => self.page = Page::Runs,
            (Key::Enter, Page::Runs) if self.selected.is_some() => {
                self.page = Page::Processes { first: 0 };
            }
            (Key::Up | Key::Char('k'), _) => self.step(-1, runs),
            (Key::Down | Key::Char('j'), _) => self.step(1, runs),
            (Key::Char(key), Page::Runs) => {
                self.order = Order::of_key(key).unwrap_or(self.order);
            }
            _ => {}
        }
        self.arrange(runs);
        Then::GoOn
    }

    fn step(&mut self, by: isize, runs: &[TopRun]) {
        match self.page {
            Page::Runs => self.select(self.place.saturating_add_signed(by), runs),
            Page::Processes { first } => {
                self.page = Page::Processes { first: first.saturating_add_signed(by) };
            }
        }
    }

    fn select(&mut self, place: usize, runs: &[TopRun]) {
        self.place = place.min(runs.len().saturating_sub(1));
        self.selected = runs.get(self.place).map(|run| run.status.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::super::rates::sample_run;
    use super::*;

    /// Faults a second, resident MiB, MiB of the pool and the ratio of runs 1, 2, ...
    fn runs(values: &[(f64, u64, u64, Option<f64>)]) -> Vec<TopRun> {
        let run =
            |(pid, &(faults, resident, pool, ratio)): (u32, &(f64, u64, u64, Option<f64>))| {
                let mut run = sample_run(pid, 3);
                run.interval.faults_per_s = faults;
                run.status.resident_bytes = resident << 20;
                run.status.pool_bytes = pool << 20;
                run.status.ratio = ratio;
                run
            };
        (1..).zip(values).map(run).collect()
    }

    fn pids(runs: &[TopRun]) -> Vec<u32> {
        runs.iter().map(|run| run.status.pid).collect()
    }

    fn three() -> (State, Vec<TopRun>) {
        let mut runs =
            runs(&[(5.0, 90, 5, None), (9.0, 10, 9, Some(2.0)), (5.0, 80, 20, Some(3.0))]);
        let mut state = State::default();
        state.arrange(&mut runs);
        (state, runs)
    }

    #[test]
    fn a_key_sorts_the_runs() {
        let (mut state, mut runs) = three();
        assert_eq!((pids(&runs), state.selected()), (vec![1, 2, 3], Some(0)));
        for (key, expected) in [
            ('f', [2, 1, 3]), // the lower number first where both are equal
            ('m', [3, 1, 2]),
            ('p', [3, 2, 1]),
            ('r', [3, 2, 1]),
            ('x', [3, 2, 1]),
            ('n', [1, 2, 3]),
        ] {
            assert_eq!(state.press(Key::Char(key), &mut runs), Then::GoOn);
            assert_eq!(pids(&runs), expected, "{key}");
            // The selection stays with its run.
            assert_eq!(runs[state.selected().unwrap()].status.pid, 1);
        }
    }

    #[test]
    fn the_selection_stays_among_the_runs() {
        let (mut state, mut runs) = three();
        let mut place = |key: Key, runs: &mut Vec<TopRun>| {
            state.press(key, runs);
            state.selected()
        };
        assert_eq!(place(Key::Up, &mut runs), Some(0));
        assert_eq!(place(Key::Down, &mut runs), Some(1));
        assert_eq!(place(Key::Char('j'), &mut runs), Some(2));
        assert_eq!(place(Key::Down, &mut runs), Some(2));
        assert_eq!(place(Key::Char('k'), &mut runs), Some(1));
        // The run ends: the next one has its place. Then all end, and one begins.
        runs.remove(1);
        state.arrange(&mut runs);
        assert_eq!((state.selected(), pids(&runs)), (Some(1), vec![1, 3]));
        state.arrange(&mut []);
        assert_eq!(state.selected(), None);
        assert_eq!(state.press(Key::Enter, &mut []), Then::GoOn);
        assert_eq!(state.press(Key::Down, &mut []), Then::GoOn);
        assert_eq!((state.page(), state.selected()), (Page::Runs, None));
        state.arrange(&mut runs[..1]);
        assert_eq!(state.selected(), Some(0));
    }

    #[test]
    fn enter_shows_processes_until_one_goes_back() {
        for back in [Key::Escape, Key::Char('q')] {
            let (mut state, mut runs) = three();
            assert_eq!(state.press(Key::Escape, &mut runs), Then::GoOn);
            state.press(Key::Down, &mut runs);
            state.press(Key::Enter, &mut runs);
            assert_eq!(state.page(), Page::Processes { first: 0 });
            state.press(Key::Up, &mut runs);
            for _ in 0..5 {
                state.press(Key::Down, &mut runs);
            }
            state.press(Key::Char('f'), &mut runs);
            // The last process stays in view, and the order is for runs.
            assert_eq!(state.page(), Page::Processes { first: 2 });
            assert_eq!(state.order(), Order::Pid);
            assert_eq!(state.press(back, &mut runs), Then::GoOn);
            assert_eq!((state.page(), state.selected()), (Page::Runs, Some(1)));
            assert_eq!(state.press(Key::Char('q'), &mut runs), Then::End);
        }
        let (mut state, mut runs) = three();
        state.press(Key::Enter, &mut runs);
        runs.remove(0);
        state.arrange(&mut runs);
        assert_eq!(state.page(), Page::Runs, "the run has ended");
        state.press(Key::Enter, &mut runs);
        assert_eq!(state.press(Key::Quit, &mut runs), Then::End);
    }
}
