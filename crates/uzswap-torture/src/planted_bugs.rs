//! Bugs planted on purpose, to see that the torture finds them. They are in the doubles, where a
//! faulty part makes the store behave as with a bug of its own.

use uzswap::named_enum::named;

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlantedBug {
    /// The index removes an entry by its key alone.
    KeyOnlyErase,
    /// A replaced entry stays in the index.
    StaleEntry,
    /// The index does not report a replaced entry, so it is never freed.
    LostEntry,
    /// A refused or removed page stays where it was.
    ForgottenRemoval,
    /// The pool takes host pages beyond its limit.
    Overshoot,
    /// The pool does not free an object.
    LeakedObject,
    /// The backing takes a write for done before it is, and then it fails.
    EarlySuccess,
    /// The backing reads the block beside.
    WrongBlock,
    /// A checksum is there and not looked at.
    UncheckedObject,
    /// The compressor gives another page back.
    WrongPage,
}

named!(
    PlantedBug, "planted bug",
    KeyOnlyErase => "key-only-erase", StaleEntry => "stale-entry", LostEntry => "lost-entry",
    ForgottenRemoval => "forgotten-removal", Overshoot => "overshoot",
    LeakedObject => "leaked-object", EarlySuccess => "early-success",
    WrongBlock => "wrong-block", UncheckedObject => "unchecked-object",
    WrongPage => "wrong-page",
);
