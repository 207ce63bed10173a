//! What stands where in memory, and what leads from one version's structures to another's: fields by their names.
//!
//! The build describes all maps as text (`build/layout.rs`), which is written beside them: so what another version has
//! made says itself what it is made of.
//!
//! ```text
//! VIP_IN_USE=0x1000000                        a number
//! loads: 1*{value@0=64 weight@8=32 ...}       an array in a section of its own: of such elements
//! pinned: {type@0=1*32 key@16={...} value@24=32 ...}   a map: its kind, its keys and its values
//! ```
//!
//! A structure has no padding, so it ends where its last field does.

use std::collections::BTreeMap;
use std::fmt;

/// What stands somewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::kernel) enum Shape {
    /// A number of so many bytes, up to eight.
    Int(usize),
    /// The same thing several times.
    Array {
        /// What.
        of: Box<Shape>,
        /// How often.
        count: usize,
    },
    /// Fields in their order.
    Struct(Vec<Field>),
}

/// A field of a structure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::kernel) struct Field {
    /// Its name.
    pub name: String,
    /// Bytes before it.
    pub at: usize,
    /// What it is.
    pub shape: Shape,
}

/// Structures and arrays are in others no deeper than this.
const MOST_DEPTH: usize = 16;

impl Shape {
    /// How many bytes it takes.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Int(bytes) => *bytes,
            Self::Array { of, count } => of.bytes().saturating_mul(*count),
            Self::Struct(fields) => {
                let end = |field: &Field| field.at.saturating_add(field.shape.bytes());
                fields.iter().map(end).max().unwrap_or(0)
            }
        }
    }

    /// A field of a structure.
    pub fn field(&self, name: &str) -> Option<&Shape> {
        let Self::Struct(fields) = self else { return None };
        fields.iter().find(|field| field.name == name).map(|field| &field.shape)
    }

    /// Reads one, and returns what is behind it.
    fn parse(text: &str, depth: usize) -> Option<(Self, &str)> {
        let depth = depth.checked_sub(1)?;
        if let Some(mut rest) = text.strip_prefix('{') {
            let mut fields = Vec::new();
            loop {
                if let Some(rest) = rest.strip_prefix('}') {
                    return Some((Self::Struct(fields), rest));
                }
                let (name, behind) = rest.split_once('@')?;
                let (at, behind) = behind.split_once('=')?;
                let (shape, behind) = Self::parse(behind, depth)?;
                fields.push(Field { name: name.to_owned(), at: at.parse().ok()?, shape });
                rest = behind.strip_prefix(' ')?;
            }
        }
        let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let number: usize = number.parse().ok()?;
        if let Some(rest) = rest.strip_prefix('*') {
            let (of, rest) = Self::parse(rest, depth)?;
            return Some((Self::Array { of: Box::new(of), count: number }, rest));
        }
        let whole = matches!(number, 8 | 16 | 32 | 64);
        whole.then_some((Self::Int(number / 8), rest))
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(bytes) => write!(f, "a number of {bytes} bytes"),
            Self::Array { count, .. } => write!(f, "an array of {count}"),
            Self::Struct(_) => write!(f, "a structure of {} bytes", self.bytes()),
        }
    }
}

/// A whole description.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::kernel) struct Described {
    /// What numbers are, by their names.
    pub numbers: BTreeMap<String, String>,
    /// Maps, and the structure of reports, by their names.
    pub shapes: BTreeMap<String, Shape>,
}

impl Described {
    /// Reads it; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut described = Self::default();
        for line in text.lines() {
            if let Some((name, shape)) = line.split_once(": ") {
                let (shape, "") = Shape::parse(shape, MOST_DEPTH)? else { return None };
                described.shapes.insert(name.to_owned(), shape);
            } else {
                let (name, number) = line.split_once('=')?;
                described.numbers.insert(name.to_owned(), number.to_owned());
            }
        }
        Some(described)
    }

    /// The first number that is something else in another description, or is not there.
    pub fn strange_number(&self, other: &Self) -> Option<&str> {
        let strange =
            |(name, number): &(&String, &String)| other.numbers.get(*name) != Some(*number);
        self.numbers.iter().find(strange).map(|(name, _)| name.as_str())
    }
}

/// Bytes that go somewhere else.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Step {
    from: usize,
    from_bytes: usize,
    to: usize,
    to_bytes: usize,
}

/// A field that is not there any more.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Gone {
    name: String,
    at: usize,
    bytes: usize,
}

/// What makes one structure of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::kernel) struct Conversion {
    /// Both are the same.
    pub same: bool,
    /// Bytes of the old one.
    pub from_bytes: usize,
    /// Bytes of the new one.
    pub to_bytes: usize,
    /// Fields that only the new one has: they are 0.
    pub added: Vec<String>,
    steps: Vec<Step>,
    gone: Vec<Gone>,
}

/// Fields without a meaning.
fn is_spare(name: &str) -> bool {
    name.starts_with("reserved")
}

impl Conversion {
    /// From `old` to `new`: fields of the same name are carried over, numbers also into wider or narrower ones.
    ///
    /// # Errors
    /// The field whose kind is another.
    pub fn between(old: &Shape, new: &Shape) -> Result<Self, String> {
        let mut conversion = Self {
            same: old == new,
            from_bytes: old.bytes(),
            to_bytes: new.bytes(),
            added: Vec::new(),
            steps: Vec::new(),
            gone: Vec::new(),
        };
        conversion.walk(old, new, (0, 0), "")?;
        Ok(conversion)
    }

    fn walk(
        &mut self,
        old: &Shape,
        new: &Shape,
        (from, to): (usize, usize),
        name: &str,
    ) -> Result<(), String> {
        let below = |field: &str| match name {
            "" => field.to_owned(),
            name => format!("{name}.{field}"),
        };
        if old == new {
            let bytes = old.bytes();
            self.steps.push(Step { from, from_bytes: bytes, to, to_bytes: bytes });
            return Ok(());
        }
        match (old, new) {
            (&Shape::Int(from_bytes), &Shape::Int(to_bytes)) => {
                self.steps.push(Step { from, from_bytes, to, to_bytes });
            }
            (Shape::Array { of, count }, Shape::Array { of: new_of, count: new_count }) => {
                for at in 0..*count.min(new_count) {
                    let places = (from + at * of.bytes(), to + at * new_of.bytes());
                    self.walk(of, new_of, places, &below(&at.to_string()))?;
                }
                for at in *new_count..*count {
                    let (at, name) = (from + at * of.bytes(), below(&at.to_string()));
                    self.gone.push(Gone { name, at, bytes: of.bytes() });
                }
                self.added.extend((*count..*new_count).map(|at| below(&at.to_string())));
            }
            (Shape::Struct(fields), Shape::Struct(new_fields)) => {
                for field in new_fields {
                    let Some(found) = fields.iter().find(|one| one.name == field.name) else {
                        if !is_spare(&field.name) {
                            self.added.push(below(&field.name));
                        }
                        continue;
                    };
                    // Without a meaning there is nothing to carry over.
                    if !is_spare(&field.name) {
                        let places = (from + found.at, to + field.at);
                        self.walk(&found.shape, &field.shape, places, &below(&field.name))?;
                    }
                }
                for field in fields {
                    if !is_spare(&field.name)
                        && !new_fields.iter().any(|one| one.name == field.name)
                    {
                        let (at, bytes) = (from + field.at, field.shape.bytes());
                        self.gone.push(Gone { name: below(&field.name), at, bytes });
                    }
                }
            }
            (old, new) => {
                let name = if name.is_empty() { "it" } else { name };
                return Err(format!("{name} is {old} there and {new} here"));
            }
        }
        Ok(())
    }

    /// Makes one. What is not carried over is 0.
    ///
    /// # Errors
    /// The field that this version does not know and in which there is something, or that is too narrow here.
    pub fn apply(&self, old: &[u8], new: &mut [u8]) -> Result<(), String> {
        self.fits(old)?;
        new.fill(0);
        for step in &self.steps {
            let from = &old[step.from..step.from + step.from_bytes];
            let to = &mut new[step.to..step.to + step.to_bytes];
            if from.len() == to.len() {
                to.copy_from_slice(from);
            } else {
                write_number(read_number(from), to);
            }
        }
        Ok(())
    }

    /// Whether nothing of it would be lost.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub fn fits(&self, old: &[u8]) -> Result<(), String> {
        let filled =
            |gone: &&Gone| old[gone.at..gone.at + gone.bytes].iter().any(|byte| *byte != 0);
        if let Some(gone) = self.gone.iter().find(filled) {
            return Err(format!("{} is not known here, and is in use", gone.name));
        }
        let narrow = |step: &&Step| step.to_bytes < step.from_bytes;
        for step in self.steps.iter().filter(narrow) {
            let from = &old[step.from..step.from + step.from_bytes];
            let number = read_number(from);
            let mut bytes = [0; 8];
            write_number(number, &mut bytes[..step.to_bytes]);
            if read_number(&bytes[..step.to_bytes]) != number {
                return Err(format!(
                    "a number of {} bytes does not fit into {}",
                    from.len(),
                    step.to_bytes
                ));
            }
        }
        Ok(())
    }

    /// Whether there is anything to look for in what is carried over.
    pub fn may_lose(&self) -> bool {
        !self.gone.is_empty() || self.steps.iter().any(|step| step.to_bytes < step.from_bytes)
    }
}

/// A number of up to eight bytes; none of those in maps that is narrower than eight is ever negative.
fn read_number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    if cfg!(target_endian = "little") {
        word[..bytes.len()].copy_from_slice(bytes);
    } else {
        word[8 - bytes.len()..].copy_from_slice(bytes);
    }
    u64::from_ne_bytes(word)
}

/// As much of a number as there is room for.
fn write_number(number: u64, to: &mut [u8]) {
    let word = number.to_ne_bytes();
    let bytes = to.len();
    if cfg!(target_endian = "little") {
        to.copy_from_slice(&word[..bytes]);
    } else {
        to.copy_from_slice(&word[8 - bytes..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(bytes: usize) -> Shape {
        Shape::Int(bytes)
    }

    fn fields(all: &[(&str, usize, Shape)]) -> Shape {
        let field = |(name, at, shape): &(&str, usize, Shape)| Field {
            name: (*name).into(),
            at: *at,
            shape: shape.clone(),
        };
        Shape::Struct(all.iter().map(field).collect())
    }

    fn apply(old: &Shape, new: &Shape, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let conversion = Conversion::between(old, new)?;
        let mut made = vec![0xee; new.bytes()];
        conversion.apply(bytes, &mut made).map(|()| made)
    }

    #[test]
    fn fields_are_carried_over_by_their_names() {
        let old = fields(&[("a", 0, int(4)), ("b", 4, int(2)), ("reserved", 6, int(2))]);
        let new = fields(&[
            ("b", 0, int(2)),
            ("c", 2, int(2)),
            ("a", 4, int(4)),
            ("reserved", 8, int(4)),
        ]);
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(apply(&old, &new, &bytes).unwrap(), [5, 6, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0]);
        let conversion = Conversion::between(&old, &new).unwrap();
        assert_eq!((conversion.same, conversion.may_lose()), (false, false));
        assert_eq!(conversion.added, ["c"]);
        // And back, as long as the new field says nothing.
        assert_eq!(
            apply(&new, &old, &[5, 6, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0]).unwrap(),
            [1, 2, 3, 4, 5, 6, 0, 0]
        );
        let refused = apply(&new, &old, &[5, 6, 0, 9, 1, 2, 3, 4, 0, 0, 0, 0]).unwrap_err();
        assert!(refused.contains("c is not known here"), "{refused}");
        assert!(Conversion::between(&new, &old).unwrap().may_lose());
    }

    #[test]
    fn the_same_structure_is_copied_as_it_is() {
        let shape = fields(&[("a", 0, int(4)), ("reserved", 4, int(4))]);
        assert!(Conversion::between(&shape, &shape).unwrap().same);
        assert_eq!(apply(&shape, &shape, &[1; 8]).unwrap(), [1; 8]);
    }

    #[test]
    fn numbers_become_wider_and_narrower_if_they_fit() {
        let wide = apply(&int(2), &int(4), &0x8001u16.to_ne_bytes()).unwrap();
        assert_eq!(wide, 0x8001u32.to_ne_bytes());
        let narrow = apply(&int(8), &int(2), &77u64.to_ne_bytes()).unwrap();
        assert_eq!(narrow, 77u16.to_ne_bytes());
        let refused = apply(&int(8), &int(2), &0x1_0000u64.to_ne_bytes()).unwrap_err();
        assert!(refused.contains("does not fit"), "{refused}");
    }

    #[test]
    fn arrays_grow_and_shrink_if_nothing_is_in_their_ends() {
        let array = |count| Shape::Array { of: Box::new(int(2)), count };
        assert_eq!(apply(&array(2), &array(3), &[1, 1, 2, 2]).unwrap(), [1, 1, 2, 2, 0, 0]);
        assert_eq!(apply(&array(3), &array(2), &[1, 1, 2, 2, 0, 0]).unwrap(), [1, 1, 2, 2]);
        assert!(apply(&array(3), &array(2), &[1, 1, 2, 2, 0, 3]).is_err());
        let inner = |order: [&str; 2]| fields(&[(order[0], 0, int(2)), (order[1], 2, int(2))]);
        let several = |order| Shape::Array { of: Box::new(inner(order)), count: 2 };
        let turned = apply(&several(["a", "b"]), &several(["b", "a"]), &[1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(turned.unwrap(), [2, 2, 1, 1, 4, 4, 3, 3]);
    }

    #[test]
    fn what_is_of_another_kind_is_refused_by_its_name() {
        let array = Shape::Array { of: Box::new(int(1)), count: 8 };
        let old = fields(&[("outer", 0, fields(&[("a", 0, array)]))]);
        let new = fields(&[("outer", 0, fields(&[("a", 0, int(8))]))]);
        let refused = Conversion::between(&old, &new).unwrap_err();
        assert!(refused.starts_with("outer.a is an array of 8 there"), "{refused}");
    }

    #[test]
    fn descriptions_are_read() {
        let text = "LAYOUT_REVISION=0x2\nvips: 1*{high@0=64 table@8=32 port@12=16 bits@14=2*8 }\n\
                    turns: 1*64\nloads: {type@0=6*32 value@24={value@0=64 } }\n";
        let described = Described::parse(text).expect("it is one");
        assert_eq!(described.numbers["LAYOUT_REVISION"], "0x2");
        let bits = Shape::Array { of: Box::new(int(1)), count: 2 };
        let vip = fields(&[
            ("high", 0, int(8)),
            ("table", 8, int(4)),
            ("port", 12, int(2)),
            ("bits", 14, bits),
        ]);
        assert_eq!(vip.bytes(), 16);
        assert_eq!(described.shapes["vips"], Shape::Array { of: Box::new(vip), count: 1 });
        assert_eq!(described.shapes["turns"], Shape::Array { of: Box::new(int(8)), count: 1 });
        let value = described.shapes["loads"].field("value").expect("it has values");
        assert_eq!(value, &fields(&[("value", 0, int(8))]));
        assert_eq!(described.shapes["loads"].field("key"), None);
        // Whatever is cut off, or in the way, nothing panics.
        for end in 0..text.len() {
            drop(Described::parse(&text[..end]));
        }
        for bad in
            ["vips: 7", "vips: {a@0=8", "vips: 1*8x", "vips", "a: {a@x=8 }", &"1*".repeat(99)]
        {
            assert_eq!(Described::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_number_that_is_another_or_is_not_known_is_told() {
        let described = |text| Described::parse(text).expect("it is one");
        let old = described("A=0x1\nB=0x2\n");
        assert_eq!(old.strange_number(&described("A=0x1\nB=0x2\nC=0x3\n")), None);
        assert_eq!(old.strange_number(&described("A=0x1\nB=0x3\n")), Some("B"));
        assert_eq!(old.strange_number(&described("B=0x2\n")), Some("A"));
    }

    /// What the build describes of this version is read, each map with what it holds.
    #[test]
    fn the_own_description_is_whole() {
        let own = Described::parse(crate::kernel::stamp::DESCRIBED).expect("it is one");
        assert!(own.numbers.contains_key("LAYOUT_REVISION"));
        assert_eq!(own.shapes["event"].bytes(), size_of::<crate::abi::types::event>());
        let element = |name: &str| match &own.shapes[name] {
            Shape::Array { of, .. } => of.bytes(),
            other => panic!("{name} is {other}"),
        };
        use crate::abi::types;
        assert_eq!(element("vips"), size_of::<types::vip>());
        assert_eq!(element("control"), size_of::<types::control>());
        assert_eq!(element("caps"), size_of::<types::cap>());
        let connections = &own.shapes["connections"];
        let sizes = ["key", "value"].map(|name| connections.field(name).expect("it has").bytes());
        assert_eq!(sizes, [size_of::<types::flow_key>(), size_of::<types::tracked>()]);
    }
}
