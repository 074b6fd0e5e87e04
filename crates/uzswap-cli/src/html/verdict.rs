//! The sentences that the page of a comparison begins with.

use super::section::{Part, Section};
use crate::report::Conclusions;

impl Conclusions {
    /// The verdict, the changes since a baseline and the notes, then `figures`, then the summary.
    /// The summary comes first where there is no verdict.
    pub(super) fn around(self, figures: Vec<Section>, more_notes: &[String]) -> Vec<Section> {
        let Conclusions { verdict, summary, mut notes, baseline } = self;
        let (mut first, last) =
            if verdict.is_empty() { (summary, Vec::new()) } else { (verdict, summary) };
        if first.is_empty() {
            first.push("There is nothing to compare.".to_owned());
        }
        notes.extend_from_slice(more_notes);
        let mut sections = vec![list("Verdict", first)];
        sections.extend(baseline.map(|baseline| baseline.section()));
        sections.extend((!notes.is_empty()).then(|| list("Notes", notes)));
        sections.extend(figures);
        sections.extend((!last.is_empty()).then(|| list("In words", last)));
        sections
    }
}

fn list(heading: &'static str, sentences: Vec<String>) -> Section {
    Section { heading, parts: vec![Part::List(sentences)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_comes_before_a_summary() {
        let text = |verdict: Conclusions| verdict.around(Vec::new(), &[])[0].html(&mut 0);
        let words = |words: &str| vec![words.to_owned()];
        let both =
            Conclusions { verdict: words("a"), summary: words("b"), ..Conclusions::default() };
        assert!(text(both).contains("<li>a</li></ul>"));
        let summary = Conclusions { summary: words("b"), ..Conclusions::default() };
        assert!(text(summary).contains("<li>b</li></ul>"));
        assert!(text(Conclusions::default()).contains("nothing to compare"));
    }

    #[test]
    fn changes_show_then_and_now() {
        let (verdict, none) = (["a"], [""; 0]);
        let document = serde_json::json!({ "verdict": verdict, "summary": none, "notes": none,
            "baseline": {
            "path": "old.json", "created_at": "2026-01-01T00:00:00Z", "version": "0.1.0",
            "notes": ["another machine"], "broken_bounds": ["pool>2%"],
            "changes": [{ "label": "zbud lz4", "figure": "pool", "old": 4096.0, "new": 8192.0,
                "percent": 100.0, "low_percent": null, "high_percent": null }] } });
        let verdict: Conclusions = serde_json::from_value(document).unwrap();
        let text = verdict.around(Vec::new(), &[])[1].html(&mut 0);
        for words in ["old.json", "another machine", "pool&gt;2%", "<data value=\"8192\">8,192<"] {
            assert!(text.contains(words), "{words} is not in {text}");
        }
    }
}
