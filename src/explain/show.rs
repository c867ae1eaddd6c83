//! Texts and ids, cut to a line.

/// Characters of a text that are shown.
const SHOWN: usize = 60;
/// Of these, characters before the place that is pointed at.
const BEFORE: usize = 20;

/// The beginning of a text on one line, in quotes, with its length where it is cut.
pub fn beginning(text: &str) -> String {
    around(text, 0)
}

/// A text on one line, in quotes, from shortly before the character at `at` on.
pub fn around(text: &str, at: usize) -> String {
    let from = if at > SHOWN / 2 { at - BEFORE } else { 0 };
    let shown: String = text.chars().skip(from).take(SHOWN).collect();
    let cut = from + shown.chars().count() < text.chars().count();
    let (before, after) = (if from > 0 { "…" } else { "" }, if cut { "…" } else { "" });
    let length = if from > 0 || cut { format!(" ({} bytes)", text.len()) } else { String::new() };
    format!("{before}{shown:?}{after}{length}")
}

/// A session id as JSON writes it: the control character of derived ones is escaped.
pub fn session(id: &str) -> String {
    serde_json::to_string(id).expect("a text is JSON")
}

/// The first character in which two texts differ.
pub fn first_difference(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_around_what_matters() {
        assert_eq!(beginning("a\nb"), r#""a\nb""#);
        let long = "é".repeat(100);
        assert_eq!(beginning(&long), format!("{:?}… (200 bytes)", "é".repeat(60)));
        let other = format!("{}x", "é".repeat(99));
        assert_eq!(first_difference(&long, &other), 99);
        assert_eq!(around(&other, 99), format!("…{:?} (199 bytes)", format!("{}x", "é".repeat(20))));
        assert_eq!(session("\u{1}px:1"), r#""\u0001px:1""#);
    }
}
