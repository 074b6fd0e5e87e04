//! Tokens: the kind and the number of a descriptor, as epoll keeps them.

use rustix::event::epoll;

/// The kind of a descriptor in an epoll set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Listener,
    Wake,
    /// The end of the run.
    Over,
    /// The connection of a helper that is not ready yet, or that may end.
    Helper(u32),
    Userfaultfd(u32),
    /// Of a helper.
    Channel(u32),
    /// A userfaultfd whose helper has ended.
    Orphan(u32),
}

impl Token {
    pub(super) fn data(self) -> epoll::EventData {
        let number = match self {
            Token::Listener => 0,
            Token::Wake => 1,
            Token::Over => 2,
            Token::Helper(id) => u64::from(id) * 4 + 4,
            Token::Userfaultfd(id) => u64::from(id) * 4 + 5,
            Token::Channel(id) => u64::from(id) * 4 + 6,
            Token::Orphan(id) => u64::from(id) * 4 + 7,
        };
        epoll::EventData::new_u64(number)
    }

    pub(super) fn of(data: epoll::EventData) -> Token {
        match data.u64() {
            0 => Token::Listener,
            1 => Token::Wake,
            2 => Token::Over,
            number => {
                let id = (number / 4).saturating_sub(1) as u32;
                match number % 4 {
                    0 => Token::Helper(id),
                    1 => Token::Userfaultfd(id),
                    2 => Token::Channel(id),
                    _ => Token::Orphan(id),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_from_epoll_as_it_was() {
        let kinds = [Token::Helper, Token::Userfaultfd, Token::Channel, Token::Orphan];
        let numbered = [0, 1, 2, 3, u32::MAX].into_iter().flat_map(|id| kinds.map(|kind| kind(id)));
        let all = numbered.chain([Token::Listener, Token::Wake, Token::Over]);
        let mut seen = std::collections::BTreeSet::new();
        for token in all {
            assert_eq!(Token::of(token.data()), token);
            assert!(seen.insert(token.data().u64()), "{token:?}");
        }
    }
}
