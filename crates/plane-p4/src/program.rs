//! The program's text.

/// Its files, by their paths in `p4/`. The first one is compiled, and includes the others.
pub const FILES: &[(&str, &str)] = &[
    ("weir.p4", include_str!("../../../p4/weir.p4")),
    ("forward.p4", include_str!("../../../p4/forward.p4")),
    ("hash.p4", include_str!("../../../p4/hash.p4")),
    ("headers.p4", include_str!("../../../p4/headers.p4")),
    ("memory.p4", include_str!("../../../p4/memory.p4")),
    ("parser.p4", include_str!("../../../p4/parser.p4")),
    ("service.p4", include_str!("../../../p4/service.p4")),
    ("settle.p4", include_str!("../../../p4/settle.p4")),
    ("sizes.p4", include_str!("../../../p4/sizes.p4")),
    ("methods/cheetah.p4", include_str!("../../../p4/methods/cheetah.p4")),
    ("methods/cheetah_stateful.p4", include_str!("../../../p4/methods/cheetah_stateful.p4")),
    ("methods/concury.p4", include_str!("../../../p4/methods/concury.p4")),
    ("methods/residue.p4", include_str!("../../../p4/methods/residue.p4")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn no_file_is_missing() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../p4");
        let mut there = BTreeSet::new();
        for folder in ["", "methods/"] {
            for entry in std::fs::read_dir(root.join(folder)).expect("it is there") {
                let name = entry.expect("it is there").file_name().into_string().expect("a name");
                if name.ends_with(".p4") {
                    there.insert(format!("{folder}{name}"));
                }
            }
        }
        let known: BTreeSet<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(known, there);
        assert_eq!(FILES[0].0, "weir.p4");
    }
}
