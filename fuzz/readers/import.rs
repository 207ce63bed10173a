//! What `weir import` reads of other balancers: whatever stands there becomes a configuration that passes
//! `weir check`, with notes by line of what was read, or is refused with a reason.

use weir_control::config::Config;
use weir_control::import::{Form, ImportError, Imported, Note, import};

fn assert_notes(notes: &[Note], lines: usize) {
    for note in notes {
        assert!((1..=lines + 1).contains(&note.line), "{lines} lines: {note:?}");
        assert!(!note.text.is_empty() && !note.to_string().contains(char::is_control), "{note:?}");
    }
}

fn taken(imported: &Imported, lines: usize) {
    let Imported { text, notes, services, backends } = imported;
    let config = Config::parse(text, "weir.toml").expect("it passes weir check");
    let there: usize = config.services.iter().map(|service| service.backends.len()).sum();
    assert_eq!((config.services.len(), there), (*services, *backends));
    assert_notes(notes, lines);
}

/// Reads one; its first byte says of which form it is.
pub fn read(input: &[u8]) {
    let Some((which, bytes)) = input.split_first() else { return };
    let Ok(text) = str::from_utf8(bytes) else { return };
    let forms = Form::ALL.map(|(_, form)| form);
    let form = match forms.get(usize::from(which % 4)) {
        Some(form) => *form,
        // As it is done where nobody says which.
        None => match Form::guess(text) {
            Some(form) => form,
            None => return,
        },
    };
    let interfaces = if which & 0x80 == 0 { vec![] } else { vec!["lan0".to_owned()] };
    let lines = text.lines().count();
    match import(form, text, &interfaces) {
        Ok(imported) => taken(&imported, lines),
        Err(ImportError::Text { line, wrong }) => {
            assert!(
                (1..=lines + 1).contains(&line) && !wrong.is_empty(),
                "{lines}: {line}: {wrong}"
            );
        }
        Err(ImportError::Nothing { notes }) => assert_notes(&notes, lines),
        Err(ImportError::Refused(why)) => panic!("interfaces are what is good: {why}"),
    }
}
