//! Validation of when backends are in maintenance.

use super::super::maintenance::{MOST_WINDOWS, Window};
use super::super::written;
use super::scope::Scope;
use std::collections::BTreeMap;
use toml::Spanned;

/// The windows of the backends that have any, by their names.
pub(super) fn windows(
    backends: &[Spanned<written::Backend>],
    scope: &mut Scope<'_, '_>,
) -> BTreeMap<String, Vec<Window>> {
    let mut all = BTreeMap::new();
    for backend in backends {
        let (span, backend) = (backend.span(), backend.get_ref());
        let (Some(name), Some(given)) = (&backend.name, &backend.maintenance) else { continue };
        let mut scope = scope.inner(&format!("backend {:?}", name.get_ref()), span);
        if given.get_ref().len() > MOST_WINDOWS {
            let wrong = format!("{} windows; {MOST_WINDOWS} is the most", given.get_ref().len());
            scope.problem(given.span(), "maintenance", wrong, "remove those that are over");
            continue;
        }
        let mut windows = Vec::new();
        for text in given.get_ref() {
            match Window::parse(text.get_ref()) {
                Ok(window) => windows.push(window),
                Err(error) => scope.problem(text.span(), "maintenance", error.wrong, error.right),
            }
        }
        if !windows.is_empty() {
            all.insert(name.get_ref().clone(), windows);
        }
    }
    all
}
