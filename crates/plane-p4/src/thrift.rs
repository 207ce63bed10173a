//! As much of Thrift's binary protocol as the switch's server speaks: strict messages, unframed, several services
//! on one connection, told apart by a prefix of the method's name.
//!
//! ```text
//! call    | 80 01 00 01 | length, name | sequence | fields .. | 0 |
//! reply   | 80 01 00 02 | length, name | sequence | fields .. | 0 |
//! field   | type | id, 2 bytes | value |
//! ```

use std::io::{self, Read};

const VERSION: u32 = 0x8001_0000;
const CALL: u32 = 1;
const REPLY: u32 = 2;
/// The server itself could not make anything of the call.
const EXCEPTION: u32 = 3;
/// Bytes of a string, and elements of a list, that are believed.
const MOST: usize = 1 << 26;

/// Types of fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    Bool = 2,
    Byte = 3,
    Double = 4,
    I16 = 6,
    I32 = 8,
    I64 = 10,
    String = 11,
    Struct = 12,
    Map = 13,
    Set = 14,
    List = 15,
}

impl Kind {
    fn of(byte: u8) -> io::Result<Self> {
        use Kind::*;
        let all = [Bool, Byte, Double, I16, I32, I64, String, Struct, Map, Set, List];
        let found = all.into_iter().find(|kind| *kind as u8 == byte);
        found.ok_or_else(|| damaged(format!("a field of type {byte}")))
    }
}

fn damaged(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Calls, one after the other, as they go over the wire.
#[derive(Default, Debug)]
pub struct Calls {
    /// The bytes so far.
    pub bytes: Vec<u8>,
}

impl Calls {
    /// Begins a call; its arguments follow, and [`end`](Self::end).
    pub fn begin(&mut self, service: &str, method: &str, sequence: i32) -> &mut Self {
        self.bytes.extend((VERSION | CALL).to_be_bytes());
        let length = service.len() + 1 + method.len();
        self.bytes.extend((length as u32).to_be_bytes());
        for part in [service, ":", method] {
            self.bytes.extend(part.as_bytes());
        }
        self.bytes.extend(sequence.to_be_bytes());
        self
    }

    /// Ends a call or a structure.
    pub fn end(&mut self) -> &mut Self {
        self.bytes.push(0);
        self
    }

    fn field(&mut self, kind: Kind, id: i16) {
        self.bytes.push(kind as u8);
        self.bytes.extend(id.to_be_bytes());
    }

    /// A yes or no.
    pub fn bool(&mut self, id: i16, value: bool) -> &mut Self {
        self.field(Kind::Bool, id);
        self.bytes.push(value.into());
        self
    }

    /// An argument of 32 bits.
    pub fn i32(&mut self, id: i16, value: i32) -> &mut Self {
        self.field(Kind::I32, id);
        self.bytes.extend(value.to_be_bytes());
        self
    }

    /// An argument of 64 bits.
    pub fn i64(&mut self, id: i16, value: i64) -> &mut Self {
        self.field(Kind::I64, id);
        self.bytes.extend(value.to_be_bytes());
        self
    }

    /// A text, or bytes.
    pub fn string(&mut self, id: i16, value: &[u8]) -> &mut Self {
        self.field(Kind::String, id);
        self.bare_string(value)
    }

    /// The same as an element of a list.
    pub fn bare_string(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend((value.len() as u32).to_be_bytes());
        self.bytes.extend(value);
        self
    }

    /// Begins a structure.
    pub fn structure(&mut self, id: i16) -> &mut Self {
        self.field(Kind::Struct, id);
        self
    }

    /// Begins a list of so many elements.
    pub fn list(&mut self, id: i16, kind: Kind, length: usize) -> &mut Self {
        self.field(Kind::List, id);
        self.bytes.push(kind as u8);
        self.bytes.extend((length as u32).to_be_bytes());
        self
    }
}

/// What a call returns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Returned {
    /// Nothing.
    Nothing,
    /// A number.
    Number(i64),
    /// Numbers.
    Numbers(Vec<i64>),
    /// Ports: their numbers and interfaces.
    Ports(Vec<(u32, String)>),
    /// Something else, which nobody needs.
    Other,
    /// An exception of the method's, by the code that it has.
    Refused(i32),
}

/// Reads replies.
pub struct Replies<R>(pub R);

impl<R: Read> Replies<R> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take::<1>()?[0])
    }

    fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn length(&mut self) -> io::Result<usize> {
        let length = self.u32()? as usize;
        if length > MOST { Err(damaged(format!("{length} bytes or elements"))) } else { Ok(length) }
    }

    fn string(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.length()?];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads over a value. `depth`: structures in structures.
    fn skip(&mut self, kind: Kind, depth: u32) -> io::Result<()> {
        if depth == 0 {
            return Err(damaged("structures without end".to_owned()));
        }
        match kind {
            Kind::Bool | Kind::Byte => self.byte().map(drop),
            Kind::I16 => self.take::<2>().map(drop),
            Kind::I32 => self.take::<4>().map(drop),
            Kind::I64 | Kind::Double => self.take::<8>().map(drop),
            Kind::String => self.string().map(drop),
            Kind::Struct => self.each_field(|replies, kind, _| replies.skip(kind, depth - 1)),
            Kind::List | Kind::Set => {
                let kind = Kind::of(self.byte()?)?;
                (0..self.length()?).try_for_each(|_| self.skip(kind, depth - 1))
            }
            Kind::Map => {
                let kinds = [Kind::of(self.byte()?)?, Kind::of(self.byte()?)?];
                let length = self.length()?;
                (0..length).try_for_each(|_| {
                    kinds.into_iter().try_for_each(|kind| self.skip(kind, depth - 1))
                })
            }
        }
    }

    fn each_field(
        &mut self,
        mut visit: impl FnMut(&mut Self, Kind, i16) -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            let kind = self.byte()?;
            if kind == 0 {
                return Ok(());
            }
            let id = i16::from_be_bytes(self.take()?);
            visit(self, Kind::of(kind)?, id)?;
        }
    }

    fn code(&mut self) -> io::Result<i32> {
        let mut code = 0;
        self.each_field(|replies, kind, id| match (kind, id) {
            (Kind::I32, 1) => replies.u32().map(|found| code = found as i32),
            _ => replies.skip(kind, 8),
        })?;
        Ok(code)
    }

    /// The next reply, to the call with this number.
    ///
    /// # Errors
    /// If the connection ends, or what comes is none.
    pub fn next(&mut self, sequence: i32) -> io::Result<Returned> {
        let head = self.u32()?;
        let name = self.string()?;
        let number = self.u32()? as i32;
        if head == VERSION | EXCEPTION {
            let code = self.code()?;
            let name = String::from_utf8_lossy(&name).into_owned();
            return Err(damaged(format!("an exception of type {code} to {name}")));
        }
        if head != VERSION | REPLY || number != sequence {
            return Err(damaged(format!("a message {head:08x} number {number}")));
        }
        let mut returned = Returned::Nothing;
        self.each_field(|replies, kind, id| {
            returned = match (kind, id) {
                (Kind::Struct, 1..) => Returned::Refused(replies.code()?),
                (Kind::I64, 0) => Returned::Number(i64::from_be_bytes(replies.take()?)),
                (Kind::I32, 0) => Returned::Number((replies.u32()? as i32).into()),
                (Kind::List, 0) => replies.list()?,
                _ => {
                    replies.skip(kind, 8)?;
                    Returned::Other
                }
            };
            Ok(())
        })?;
        Ok(returned)
    }

    /// A number and a text, the first fields of a structure: what the switch calls a port, and its interface.
    fn port(&mut self) -> io::Result<(u32, String)> {
        let (mut number, mut name) = (0, Vec::new());
        self.each_field(|replies, kind, id| match (kind, id) {
            (Kind::I32, 1) => replies.u32().map(|found| number = found),
            (Kind::String, 2) => replies.string().map(|found| name = found),
            _ => replies.skip(kind, 8),
        })?;
        Ok((number, String::from_utf8_lossy(&name).into_owned()))
    }

    fn list(&mut self) -> io::Result<Returned> {
        let kind = Kind::of(self.byte()?)?;
        let length = self.length()?;
        if kind == Kind::Struct {
            let ports = (0..length).map(|_| self.port());
            return ports.collect::<io::Result<_>>().map(Returned::Ports);
        }
        if kind != Kind::I64 {
            (0..length).try_for_each(|_| self.skip(kind, 8))?;
            return Ok(Returned::Other);
        }
        let numbers = (0..length).map(|_| Ok(i64::from_be_bytes(self.take()?)));
        numbers.collect::<io::Result<_>>().map(Returned::Numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(name: &str, sequence: i32, fields: &[u8]) -> Vec<u8> {
        let mut bytes = (VERSION | REPLY).to_be_bytes().to_vec();
        bytes.extend((name.len() as u32).to_be_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(fields);
        bytes.push(0);
        bytes
    }

    #[test]
    fn a_call_is_what_the_protocol_says() {
        let mut calls = Calls::default();
        calls.begin("s", "m", 7).i32(1, -2).string(2, b"ab").i64(3, 5).end();
        let wanted = [
            &[0x80, 1, 0, 1, 0, 0, 0, 3][..],
            b"s:m",
            &[0, 0, 0, 7, 8, 0, 1, 0xff, 0xff, 0xff, 0xfe, 11, 0, 2, 0, 0, 0, 2],
            b"ab",
            &[10, 0, 3, 0, 0, 0, 0, 0, 0, 0, 5, 0],
        ];
        assert_eq!(calls.bytes, wanted.concat());
    }

    #[test]
    fn replies_are_numbers_lists_and_refusals() {
        let list = [&[15, 0, 0, 10, 0, 0, 0, 2][..], &1i64.to_be_bytes(), &(-1i64).to_be_bytes()];
        let ports = [
            &[15, 0, 0, 12, 0, 0, 0, 2, 8, 0, 1, 0, 0, 0, 7, 11, 0, 2, 0, 0, 0, 1][..],
            b"a",
            &[2, 0, 3, 1, 0, 8, 0, 1, 0, 0, 0, 9, 0],
        ];
        let cases: [(&[u8], Returned); 5] = [
            (&ports.concat(), Returned::Ports(vec![(7, "a".into()), (9, String::new())])),
            (&[], Returned::Nothing),
            (&[10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2], Returned::Number(258)),
            (&list.concat(), Returned::Numbers(vec![1, -1])),
            (&[12, 0, 1, 8, 0, 1, 0, 0, 0, 9, 0], Returned::Refused(9)),
        ];
        for (fields, wanted) in cases {
            let bytes = reply("m", 3, fields);
            assert_eq!(Replies(&bytes[..]).next(3).expect("a reply"), wanted);
            assert!(Replies(&bytes[..]).next(4).is_err(), "the reply to another call");
            for end in 0..bytes.len() {
                assert!(Replies(&bytes[..end]).next(3).is_err(), "cut after {end} bytes");
            }
        }
    }

    /// Whatever a server sends: an error, and no more memory than it has sent bytes for.
    #[test]
    fn hostile_replies_are_errors() {
        let endless = [12, 0, 0].repeat(100);
        for fields in [&[11, 0, 0, 0xff, 0xff, 0xff, 0xff][..], &endless, &[99, 0, 0]] {
            assert!(Replies(&reply("m", 1, fields)[..]).next(1).is_err());
        }
    }
}
