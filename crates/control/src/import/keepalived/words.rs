//! Words, lines and blocks of keepalived.conf.

use super::super::ImportError;

/// Blocks within blocks; keepalived has four.
const DEEPEST: usize = 16;

/// A line, with the block that it opens.
#[derive(Debug, Default)]
pub(super) struct Item {
    pub line: usize,
    pub words: Vec<String>,
    pub items: Vec<Item>,
}

impl Item {
    /// The word at a place, or none.
    pub fn word(&self, at: usize) -> &str {
        self.words.get(at).map(String::as_str).unwrap_or_default()
    }

    pub fn is(&self, name: &str) -> bool {
        self.word(0) == name
    }

    /// The words after the first.
    pub fn values(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }

    /// The words after so many values; none if there are no more.
    pub fn beyond(&self, values: usize) -> Option<String> {
        let more = self.words.get(values + 1..).unwrap_or_default();
        (!more.is_empty()).then(|| more.join(" "))
    }

    /// The word after another.
    pub fn after(&self, name: &str) -> Option<&str> {
        let at = self.words.iter().position(|word| word == name)?;
        self.words.get(at + 1).map(String::as_str)
    }

    /// The items of a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Item> {
        self.items.iter().filter(move |item| item.is(name))
    }
}

/// The words of a command, as a shell takes them apart; none if a quotation mark is not closed. What else a shell makes
/// of letters, keepalived does not either: it runs no shell.
pub(super) fn command(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next()? {
                        '\'' => break,
                        letter => word.push(letter),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next()? {
                        '"' => break,
                        '\\' => match letters.next()? {
                            letter @ ('"' | '\\' | '$' | '`') => word.push(letter),
                            letter => word.extend(['\\', letter]),
                        },
                        letter => word.push(letter),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(letters.next()?),
            letter if letter.is_whitespace() => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Some(words)
}

/// A word as [`command`] reads it as one.
pub(super) fn as_one(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// A word, a brace, or the end of a line.
enum Token {
    Word(String),
    Open,
    Close,
    End,
}

/// The items of a text.
pub(super) fn read(text: &str) -> Result<Vec<Item>, ImportError> {
    // The innermost block is last; the first is the file.
    let mut open = vec![Item::default()];
    let mut now = Item::default();
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        for token in tokens(line) {
            match token {
                Token::Word(word) => {
                    if now.words.is_empty() {
                        now.line = number;
                    }
                    now.words.push(word);
                }
                Token::Open => {
                    if open.len() > DEEPEST {
                        let wrong = format!("more than {DEEPEST} blocks within each other");
                        return Err(ImportError::Text { line: number, wrong });
                    }
                    let own = std::mem::take(&mut now);
                    // The brace may stand on the line after.
                    let before = open.last_mut().and_then(|block| block.items.pop());
                    let item = if own.words.is_empty() {
                        before.unwrap_or(Item { line: number, ..own })
                    } else {
                        if let (Some(before), Some(block)) = (before, open.last_mut()) {
                            block.items.push(before);
                        }
                        own
                    };
                    open.push(item);
                }
                Token::Close => {
                    end(&mut open, &mut now);
                    let Some(item) = open.pop().filter(|_| !open.is_empty()) else {
                        let wrong = "a } that closes nothing".into();
                        return Err(ImportError::Text { line: number, wrong });
                    };
                    if let Some(block) = open.last_mut() {
                        block.items.push(item);
                    }
                }
                Token::End => end(&mut open, &mut now),
            }
        }
    }
    end(&mut open, &mut now);
    match open.pop() {
        Some(file) if open.is_empty() => Ok(file.items),
        Some(block) => {
            let wrong = format!("the block of {:?} is not closed", block.word(0));
            Err(ImportError::Text { line: block.line.max(1), wrong })
        }
        None => Ok(Vec::new()),
    }
}

/// An item without a block ends.
fn end(open: &mut [Item], now: &mut Item) {
    if now.words.is_empty() {
        return;
    }
    if let Some(block) = open.last_mut() {
        block.items.push(std::mem::take(now));
    }
}

fn tokens(line: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '!' | '#' => break,
            '"' => {
                let word = word.get_or_insert_default();
                while let Some(letter) = letters.next() {
                    match letter {
                        '"' => break,
                        '\\' => word.extend(letters.next()),
                        letter => word.push(letter),
                    }
                }
            }
            '{' | '}' => {
                tokens.extend(word.take().map(Token::Word));
                tokens.push(if letter == '{' { Token::Open } else { Token::Close });
            }
            letter if letter.is_whitespace() => tokens.extend(word.take().map(Token::Word)),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    tokens.extend(word.take().map(Token::Word));
    tokens.push(Token::End);
    tokens
}
