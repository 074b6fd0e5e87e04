//! Whether faults come from one source or from several in turn: threads of a space, or spaces.

/// Faults that are counted before their sources are reported.
const FAULTS: u32 = 32;

/// Sources are several if one fault in so many, or more, has another source than the one before.
const SEVERAL_PART: u32 = 4;

/// The source is one if at most one fault in so many has another source than the one before.
const ONE_PART: u32 = 16;

/// Where the last faults came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sources {
    One,
    Several,
}

/// The sources of the last faults, by number.
#[derive(Debug, Default)]
pub(crate) struct SourceMix {
    last: u32,
    faults: u32,
    /// Of those, faults of another source than the one before.
    changes: u32,
}

impl SourceMix {
    /// Counts a fault; after [`FAULTS`] of them their sources, unless they are between the two.
    pub(crate) fn see(&mut self, source: u32) -> Option<Sources> {
        self.changes += u32::from(source != self.last);
        (self.last, self.faults) = (source, self.faults + 1);
        if self.faults < FAULTS {
            return None;
        }
        let changes = std::mem::take(&mut self.changes);
        self.faults = 0;
        match changes {
            changes if changes * SEVERAL_PART >= FAULTS => Some(Sources::Several),
            changes if changes * ONE_PART <= FAULTS => Some(Sources::One),
            _ => None,
        }
    }

    /// The source of the last fault.
    pub(crate) fn last(&self) -> u32 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_said_once_enough_faults_were_seen() {
        let mut mix = SourceMix::default();
        let mut see = |sources: &[u32]| {
            let faults = sources.iter().cycle().take(FAULTS as usize);
            let mut said: Vec<Option<Sources>> = faults.map(|&source| mix.see(source)).collect();
            let last = said.pop().unwrap();
            assert_eq!(said, [None; FAULTS as usize - 1]);
            last
        };
        assert_eq!(see(&[1]), Some(Sources::One));
        assert_eq!(see(&[1, 2]), Some(Sources::Several));
        assert_eq!(see(&[1, 1, 1, 2]), Some(Sources::Several));
        // Each fourth time, to another one.
        assert_eq!(see(&[1, 1, 1, 1, 2, 2, 2, 2]), Some(Sources::Several));
        // More seldom, but not by much: it stays as it was.
        assert_eq!(see(&[2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1]), None);
        // One other fault.
        let mut sources = [2; FAULTS as usize];
        sources[20] = 3;
        see(&[2]);
        assert_eq!(see(&sources), Some(Sources::One));
    }

    #[test]
    fn eight_changes_in_32_faults_are_several_sources_and_two_are_one() {
        let (one, several) = (Some(Sources::One), Some(Sources::Several));
        for (changes, expected) in
            [(0, one), (2, one), (3, None), (7, None), (8, several), (32, several)]
        {
            let mut mix = SourceMix::default();
            let mut see = |fault: u32| mix.see(fault.min(changes));
            assert!((1..32).all(|fault| see(fault).is_none()), "{changes}");
            assert_eq!(see(32), expected, "{changes}");
        }
    }
}
