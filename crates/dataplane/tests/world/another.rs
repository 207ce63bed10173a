//! The program as another version may have it: what the maps hold is in another order, with fields that are not
//! here.

use std::collections::BTreeMap;

/// Each structure's lines, and what stands in their place.
const CHANGES: [(&str, &str); 10] = [
    (
        "struct service_state {\n\t__u32 service;\n\tstruct state_key key;\n};",
        "struct service_state {\n\tstruct state_key key;\n\t__u32 service;\n};",
    ),
    (
        "struct unreported {\n\t__u16 backend;\n\t__u8 kind;\n\t__u8 reserved;\n};",
        "struct unreported {\n\t__u8 kind;\n\t__u8 reserved;\n\t__u16 backend;\n};",
    ),
    // An address's halves.
    ("struct vip {\n\t__u64 high;\n\t__u64 low;\n", "struct vip {\n\t__u64 low;\n\t__u64 high;\n"),
    (
        "struct kind {\n\t__u64 high;\n\t__u64 low;\n",
        "struct kind {\n\t__u64 low;\n\t__u64 high;\n",
    ),
    ("struct control {\n", "struct control {\n\t__u64 novelty;\n"),
    ("struct cap {\n\t__u64 full;", "struct cap {\n\t__u64 novelty;\n\t__u64 full;"),
    (
        "struct lane {\n\t__u64 packets;\n\t__u64 bytes;\n",
        "struct lane {\n\t__u64 bytes;\n\t__u64 packets;\n",
    ),
    (
        "\t__u8 mac[6];\n\t__u8 source_mac[6];\n\t__u32 ifindex;\n\t__u32 flags;",
        "\t__u8 source_mac[6];\n\t__u8 mac[6];\n\t__u32 flags;\n\t__u32 ifindex;",
    ),
    (
        "struct tracked {\n\t__u16 incarnation;",
        "struct tracked {\n\t__u16 novelty;\n\t__u16 incarnation;",
    ),
    // With the one above: a structure of eight bytes more, without padding.
    (
        "\t__u16 number; /* of Cheetah's server, plus one; TRACKED_OPEN",
        "\t__u16 novelties[3];\n\t__u16 number; /* of Cheetah's server, plus one; TRACKED_OPEN",
    ),
];

/// Changes the sources of the program by their names.
pub fn change(sources: &mut BTreeMap<String, String>) {
    let abi = sources.get_mut("abi.h").expect("the structures are there");
    for (before, after) in CHANGES {
        assert_eq!(abi.matches(before).count(), 1, "{before}");
        *abi = abi.replace(before, after);
    }
}
