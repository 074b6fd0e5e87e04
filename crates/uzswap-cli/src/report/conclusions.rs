//! The words of a comparison, of whatever kind it is.

use serde::{Deserialize, Serialize};

use super::baseline::Changes;
use super::format::{Screen, wrapped};

/// The end of each document of `compare`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Conclusions {
    /// Facts that a reader must know before comparing.
    pub notes: Vec<String>,
    /// Which parts to use, their gain and their cost, and how sure that is: sentences.
    pub verdict: Vec<String>,
    /// The figures in words.
    pub summary: Vec<String>,
    /// The changes since an older document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Changes>,
}

impl Conclusions {
    /// The first lines for a terminal: all but the summary.
    pub(super) fn opening(&self, screen: Screen) -> String {
        let mut text = opening(&self.verdict, &self.notes);
        text.extend(self.baseline.as_ref().map(|changes| changes.to_text(screen)));
        text
    }

    /// The last lines: the summary, or the option that adds it and `more`.
    pub(super) fn closing(&self, more: &str, screen: Screen) -> String {
        if !screen.has_details() {
            return format!("--details adds {more} and a summary.\n");
        }
        let sentences = self.summary.iter().map(|sentence| wrapped("- ", "  ", sentence));
        format!("SUMMARY\n\n{}", sentences.collect::<String>())
    }
}

/// The verdict and the remarks that a reader needs before any figure.
pub(crate) fn opening(verdict: &[String], notes: &[String]) -> String {
    let mut text = String::new();
    for sentence in verdict {
        text += &wrapped("", "", sentence);
    }
    for note in notes {
        text += &wrapped("Note: ", "  ", note);
    }
    text + "\n"
}
