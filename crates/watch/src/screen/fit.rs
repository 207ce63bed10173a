//! What fits into a terminal: addresses and their ports whole before all else, and warnings in several lines.

use weir_control::engine::{BackendStatus, ServiceStatus};

/// Columns of the table: name, address, state, weight, known, packets, bits, new flows, check.
pub(super) const COLUMNS: usize = 9;
pub(super) const ADDRESS: usize = 1;
/// The last of them, which takes what is left.
pub(super) const CHECK: usize = 8;
/// Those that may be left out, the first one first.
const LESS: [usize; 6] = [CHECK, 7, 3, 6, 5, 4];
/// Letters of an address that are always there: all of one of IPv4.
const FEW: usize = 15;

/// Where packets for a service go, or for a backend.
pub(super) struct End {
    before: String,
    addresses: Vec<String>,
    after: String,
}

impl End {
    pub fn of_service(service: &ServiceStatus) -> Self {
        let mut addresses: Vec<String> = service.vips.iter().map(ToString::to_string).collect();
        if addresses.is_empty() {
            addresses.push(service.vip.to_string());
        }
        let (before, after) =
            (format!("{} ", service.protocol), format!(" {}", service.port_text()));
        Self { before, addresses, after }
    }

    pub fn of_backend(backend: &BackendStatus) -> Self {
        let (before, after) = match backend.port {
            None => ("", String::new()),
            Some(port) if backend.address.is_ipv6() => ("[", format!("]:{port}")),
            Some(port) => ("", format!(":{port}")),
        };
        Self { before: before.into(), addresses: vec![backend.address.to_string()], after }
    }

    fn whole(&self) -> String {
        format!("{}{}{}", self.before, self.addresses.join(", "), self.after)
    }

    /// The first address, and what stands around it where the others are only counted.
    fn first(&self) -> (&str, String) {
        let first = self.addresses.first().map_or("", |first| first);
        let after = match self.addresses.len() {
            0 | 1 => self.after.clone(),
            several => format!(" +{}{}", several - 1, self.after),
        };
        (first, after)
    }

    fn least(&self) -> usize {
        let (first, after) = self.first();
        letters(&self.before) + letters(first).min(FEW) + letters(&after)
    }

    /// All of it, or with a shorter address: its end tells it apart as much as its beginning.
    pub fn within(&self, width: usize) -> String {
        let whole = self.whole();
        if letters(&whole) <= width {
            return whole;
        }
        let (first, after) = self.first();
        let (all, around) = (letters(first), letters(&self.before) + letters(&after));
        let room = width.saturating_sub(around);
        if all <= room {
            return format!("{}{first}{after}", self.before);
        }
        let kept = room.saturating_sub(1);
        let (head, tail) = (kept.div_ceil(2), kept / 2);
        let begin: String = first.chars().take(head).collect();
        let end: String = first.chars().skip(all - tail).collect();
        format!("{}{begin}…{end}{after}", self.before)
    }
}

fn letters(text: &str) -> usize {
    text.chars().count()
}

/// The columns that there is room for, by their numbers, each with its width. Numbers have the same always, so that
/// nothing moves while they change.
pub(super) fn columns(width: usize, longest_name: usize, ends: &[End]) -> Vec<(usize, usize)> {
    let widest = ends.iter().map(|end| letters(&end.whole())).max().unwrap_or(0);
    let least = ends.iter().map(End::least).max().unwrap_or(0);
    let mut widths: [usize; COLUMNS] = [longest_name.clamp(8, 16), least, 11, 6, 9, 9, 8, 8, 10];
    let mut shown: Vec<usize> = (0..COLUMNS).collect();
    // One blank between two of them.
    let used =
        |shown: &[usize]| shown.iter().map(|at| widths[*at] + 1).sum::<usize>().saturating_sub(1);
    for less in LESS {
        if used(&shown) <= width {
            break;
        }
        shown.retain(|at| *at != less);
    }
    let left = width.saturating_sub(used(&shown));
    widths[ADDRESS] = widest.min(least + left);
    shown.into_iter().map(|at| (at, widths[at])).collect()
}

/// A text in lines, broken between words where that is possible.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let (width, mut lines) = (width.max(1), Vec::new());
    let (mut line, mut used) = (String::new(), 0);
    for word in text.split_whitespace() {
        if used > 0 && used + 1 + letters(word) > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        for letter in word.chars() {
            if used == width {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            line.push(letter);
            used += 1;
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_nothing_is_lost() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrapped("ab", 0), ["a", "b"]);
        assert_eq!(wrapped("", 5), [""]);
    }

    #[test]
    fn what_is_too_long_is_shortened_in_the_middle_of_its_address() {
        let end = |addresses: &[&str], before: &str, after: &str| End {
            before: before.into(),
            addresses: addresses.iter().map(|one| (*one).to_owned()).collect(),
            after: after.into(),
        };
        let v6 = end(&["2001:db8:1:2:3:4:5:6"], "[", "]:8080");
        assert_eq!(v6.within(27), "[2001:db8:1:2:3:4:5:6]:8080");
        assert_eq!(v6.within(22), "[2001:db…3:4:5:6]:8080");
        assert_eq!(v6.least(), 22);
        // However little there is, the port stays.
        assert_eq!(v6.within(3), "[…]:8080");
        let several = end(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], "tcp ", " 80-90");
        assert_eq!(several.within(40), "tcp 10.0.0.1, 10.0.0.2, 10.0.0.3 80-90");
        assert_eq!(several.within(30), "tcp 10.0.0.1 +2 80-90");
        let at = |width: usize| -> Vec<usize> {
            columns(width, 30, &[end(&["255.255.255.255"], "", ":65535")])
                .into_iter()
                .map(|(at, _)| at)
                .collect()
        };
        assert_eq!(at(80), [0, 1, 2, 4, 5, 6]);
        assert_eq!(at(100), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(at(120).len(), COLUMNS);
        assert_eq!(at(20), [0, 1, 2]);
    }
}
