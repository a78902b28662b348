//! The text of XML's elements, and nothing else of it: what devices of UPnP say of themselves. There are no namespaces, no entities but the five
//! of XML itself, no recursion, and each step takes a byte at least.

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// An element begins: its name, without what is before a colon.
    Open(&'a str),
    /// An element ends.
    Close(&'a str),
    /// Text, as it is written.
    Text(&'a str),
}

/// Reads a document from its beginning to its end, whatever it is.
pub(crate) struct Tokens<'a> {
    rest: &'a str,
    /// An element that began and ended at once.
    empty: Option<&'a str>,
}

impl<'a> Tokens<'a> {
    pub(crate) fn new(document: &'a str) -> Self {
        Self { rest: document, empty: None }
    }

    /// What stands before `end`, which is passed.
    fn until(&mut self, end: &str) -> &'a str {
        let (text, rest) = self.rest.split_once(end).unwrap_or((self.rest, ""));
        self.rest = rest;
        text
    }

    /// What stands within a tag. A `>` in quotes does not end it.
    fn tag(&mut self) -> &'a str {
        let mut quote = None;
        let end = self.rest.find(|letter: char| match quote {
            Some(open) => {
                if letter == open {
                    quote = None;
                }
                false
            }
            None => {
                quote = (letter == '"' || letter == '\'').then_some(letter);
                letter == '>'
            }
        });
        let (tag, rest) = end.map_or((self.rest, ""), |end| (&self.rest[..end], &self.rest[end + 1..]));
        self.rest = rest;
        tag
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        if let Some(name) = self.empty.take() {
            return Some(Token::Close(name));
        }
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let Some(markup) = self.rest.strip_prefix('<') else {
                let end = self.rest.find('<').unwrap_or(self.rest.len());
                let (text, rest) = self.rest.split_at(end);
                self.rest = rest;
                return Some(Token::Text(text));
            };
            self.rest = markup;
            if let Some(rest) = markup.strip_prefix("![CDATA[") {
                self.rest = rest;
                return Some(Token::Text(self.until("]]>")));
            }
            if markup.starts_with("!--") {
                self.until("-->");
            } else if markup.starts_with('?') || markup.starts_with('!') {
                self.until(">");
            } else {
                let tag = self.tag();
                if let Some(name) = tag.strip_prefix('/') {
                    return Some(Token::Close(local(name)));
                }
                let name = local(tag);
                self.empty = tag.ends_with('/').then_some(name);
                return Some(Token::Open(name));
            }
        }
    }
}

/// The name of a tag, without what is before a colon and behind a space.
fn local(tag: &str) -> &str {
    let name = tag.split(|letter: char| letter.is_ascii_whitespace() || letter == '/').next().unwrap_or_default();
    name.rsplit_once(':').map_or(name, |(_, name)| name)
}

/// The text of the first element called `name`, without space around it.
pub(crate) fn text_of(document: &str, name: &str) -> Option<String> {
    let mut tokens = Tokens::new(document);
    tokens.find(|token| *token == Token::Open(name))?;
    match tokens.next()? {
        Token::Text(text) => Some(unescape(text.trim())),
        Token::Close(_) => Some(String::new()),
        Token::Open(_) => None,
    }
}

/// Text as it is meant. What is no entity of XML stays as it is.
pub(crate) fn unescape(text: &str) -> String {
    const ENTITIES: [(&str, &str); 5] =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    ENTITIES.iter().fold(text.to_owned(), |text, (entity, letter)| text.replace(entity, letter))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn elements_begin_and_end_and_have_text() {
        let document =
            "<?xml version=\"1.0\"?><!-- a > b --><s:root a='x>y'>one<empty/><b >t&amp;w</b>\n<![CDATA[<no>]]></s:root";
        let tokens: Vec<_> = Tokens::new(document).collect();
        let expected = [
            Token::Open("root"),
            Token::Text("one"),
            Token::Open("empty"),
            Token::Close("empty"),
            Token::Open("b"),
            Token::Text("t&amp;w"),
            Token::Close("b"),
            Token::Text("\n"),
            Token::Text("<no>"),
            Token::Close("root"),
        ];
        assert_eq!(tokens, expected);
        assert_eq!(text_of(document, "b").as_deref(), Some("t&w"));
        assert_eq!(text_of(document, "empty").as_deref(), Some(""));
        assert_eq!((text_of(document, "no"), text_of("", "b"), text_of("<b><c>", "b")), (None, None, None));
        assert_eq!(unescape("&amp;lt;"), "&lt;", "what is escaped is no entity");
    }

    proptest! {
        #[test]
        fn any_text_ends(text in "([<>/!?'\":= a-c&;-]|\\[|\\]|\\PC){0,80}") {
            prop_assert!(Tokens::new(&text).count() <= 2 * text.len());
            let _ = text_of(&text, "a");
        }
    }
}
