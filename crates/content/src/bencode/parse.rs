//! The parser: one pass, one token a value, an explicit stack.

use super::value::{Flags, Kind, Token};
use super::{Error, ErrorKind, Limits, Tree};

/// Reads `bytes`, which must hold exactly one value.
pub fn parse<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Tree<'a>, Error> {
    let (tree, end) = parse_prefix(bytes, limits)?;
    if end < bytes.len() {
        return Err(Error { kind: ErrorKind::TrailingData, at: end });
    }
    Ok(tree)
}

/// Reads the value at the front of `bytes`; answers it and where it ended.
pub fn parse_prefix<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(Tree<'a>, usize), Error> {
    let mut parser = Parser { bytes, at: 0, tokens: Vec::new(), stack: Vec::new(), limits };
    parser.run()?;
    let end = parser.at;
    Ok((Tree::new(bytes, parser.tokens), end))
}

struct Parser<'a, 'l> {
    bytes: &'a [u8],
    at: usize,
    tokens: Vec<Token>,
    stack: Vec<Frame>,
    limits: &'l Limits,
}

/// An open container.
struct Frame {
    token: usize,
    is_dict: bool,
    /// In a dictionary: the key read last, and whether its value is due.
    last_key: Option<usize>,
    value_due: bool,
    unsorted: bool,
}

impl Parser<'_, '_> {
    fn run(&mut self) -> Result<(), Error> {
        if self.bytes.len() > self.limits.bytes.min(u32::MAX as usize) {
            // A longer buffer is fine where the value at its front is short: only the part that is looked at counts.
            self.bytes = &self.bytes[..self.limits.bytes.min(u32::MAX as usize)];
            return self.values().map_err(|error| match error.kind {
                ErrorKind::UnexpectedEnd => Error { kind: ErrorKind::TooLarge, ..error },
                _ => error,
            });
        }
        self.values()
    }

    fn values(&mut self) -> Result<(), Error> {
        loop {
            self.value()?;
            if self.stack.is_empty() {
                return Ok(());
            }
        }
    }

    /// One token: a scalar, the start of a container, or the end of one.
    fn value(&mut self) -> Result<(), Error> {
        let first = self.peek()?;
        let key_due = self.stack.last().is_some_and(|frame| frame.is_dict && !frame.value_due);
        if first == b'e' && !self.stack.is_empty() {
            return self.close();
        }
        if key_due && !first.is_ascii_digit() {
            return Err(self.error(ErrorKind::ExpectedKey));
        }
        if self.tokens.len() >= self.limits.tokens {
            return Err(self.error(ErrorKind::TooManyValues));
        }
        let index = self.tokens.len();
        match first {
            b'i' => self.integer()?,
            b'0'..=b'9' => self.string()?,
            b'l' | b'd' => return self.open(first == b'd'),
            _ => return Err(self.error(ErrorKind::ExpectedValue)),
        }
        if key_due {
            self.key_read(index)
        } else {
            self.value_read()
        }
        Ok(())
    }

    fn open(&mut self, is_dict: bool) -> Result<(), Error> {
        if self.stack.len() >= self.limits.depth {
            return Err(self.error(ErrorKind::TooDeep));
        }
        self.value_read();
        let token = self.tokens.len();
        self.stack.push(Frame { token, is_dict, last_key: None, value_due: false, unsorted: false });
        let kind = if is_dict { Kind::Dict } else { Kind::List };
        self.push(kind, self.at, 1, Flags::NONE);
        self.at += 1;
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        let Some(frame) = self.stack.pop() else { return Err(self.error(ErrorKind::ExpectedValue)) };
        if frame.value_due {
            return Err(self.error(ErrorKind::MissingValue));
        }
        self.at += 1;
        self.tokens[frame.token].end = self.at as u32;
        self.tokens[frame.token].next = self.tokens.len() as u32;
        if frame.unsorted {
            self.flag_hidden_duplicates(frame.token);
        }
        Ok(())
    }

    /// BEP 3: "Keys must be strings and appear in sorted order (sorted as raw strings, not alphanumerics)".
    fn key_read(&mut self, index: usize) {
        let Some(frame) = self.stack.last_mut() else { return };
        if let Some(last) = frame.last_key {
            match self.tokens[last].payload(self.bytes).cmp(self.tokens[index].payload(self.bytes)) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => self.tokens[index].flags |= Flags::DUPLICATE,
                std::cmp::Ordering::Greater => {
                    frame.unsorted = true;
                    self.tokens[index].flags |= Flags::UNSORTED;
                }
            }
        }
        frame.last_key = Some(index);
        frame.value_due = true;
    }

    fn value_read(&mut self) {
        if let Some(frame) = self.stack.last_mut() {
            frame.value_due = false;
        }
    }

    /// Where keys are out of order, equal keys need not be neighbours.
    fn flag_hidden_duplicates(&mut self, dict: usize) {
        let mut keys = Vec::new();
        let mut at = dict + 1;
        while at < self.tokens[dict].next as usize {
            keys.push(at);
            at = self.tokens[at + 1].next as usize; // over the value: a key is one token
        }
        keys.sort_by_key(|&key| (self.tokens[key].payload(self.bytes), key));
        for pair in keys.windows(2) {
            if self.tokens[pair[0]].payload(self.bytes) == self.tokens[pair[1]].payload(self.bytes) {
                self.tokens[pair[1]].flags |= Flags::DUPLICATE;
            }
        }
    }

    /// `i-12e`
    fn integer(&mut self) -> Result<(), Error> {
        let start = self.at;
        self.at += 1;
        let negative = self.peek()? == b'-';
        self.at += usize::from(negative);
        let (value, leading_zero) = self.digits(if negative { 1 << 63 } else { (1 << 63) - 1 })?;
        if self.peek()? != b'e' {
            return Err(self.error(ErrorKind::ExpectedDigit));
        }
        self.at += 1;
        let mut flags = if leading_zero { Flags::LEADING_ZERO } else { Flags::NONE };
        if negative && value == 0 {
            flags |= Flags::NEGATIVE_ZERO;
        }
        self.push(Kind::Int, start, 1, flags);
        Ok(())
    }

    /// `4:spam`
    fn string(&mut self) -> Result<(), Error> {
        let start = self.at;
        let (len, leading_zero) = self.digits(u64::from(u32::MAX))?;
        if self.peek()? != b':' {
            return Err(self.error(ErrorKind::ExpectedColon));
        }
        self.at += 1;
        let header = self.at - start;
        if len > (self.bytes.len() - self.at) as u64 || header > usize::from(u8::MAX) {
            return Err(Error { kind: ErrorKind::UnexpectedEnd, at: start });
        }
        self.at += len as usize;
        self.push(Kind::Bytes, start, header as u8, if leading_zero { Flags::LEADING_ZERO } else { Flags::NONE });
        Ok(())
    }

    /// At least one digit; the value, and whether it began with a needless zero.
    fn digits(&mut self, max: u64) -> Result<(u64, bool), Error> {
        let start = self.at;
        let mut value = 0u64;
        while let Some(digit @ b'0'..=b'9') = self.bytes.get(self.at) {
            let more = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit - b'0')));
            value = more.filter(|&value| value <= max).ok_or(self.error(ErrorKind::Overflow))?;
            self.at += 1;
        }
        if self.at == start {
            self.peek()?;
            return Err(self.error(ErrorKind::ExpectedDigit));
        }
        Ok((value, self.bytes[start] == b'0' && self.at - start > 1))
    }

    fn push(&mut self, kind: Kind, start: usize, header: u8, flags: Flags) {
        let (start, end) = (start as u32, self.at as u32);
        let next = self.tokens.len() as u32 + 1;
        self.tokens.push(Token { start, end, next, kind, header, flags });
    }

    fn peek(&self) -> Result<u8, Error> {
        self.bytes.get(self.at).copied().ok_or(self.error(ErrorKind::UnexpectedEnd))
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error { kind, at: self.at }
    }
}
