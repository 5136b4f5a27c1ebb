//! [`Reply`]: an answer of Redis.
//!
//! **Invariant:** no type of the client library leaves this folder, and nothing is assumed about an
//! answer: an answer of an unexpected form is an error.

use redis::Value;

use super::StoreError;

/// One answer, or a part of one. A script of ours answers with a tag, followed by parts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply(Value);

impl Reply {
    pub(super) fn new(value: Value) -> Reply {
        Reply(value)
    }

    /// The tag of a script's answer; empty if it has none.
    pub(crate) fn tag(&self) -> &str {
        let tag = match &self.0 {
            Value::Array(items) => items.first(),
            other => Some(other),
        };
        match tag {
            Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).unwrap_or_default(),
            Some(Value::SimpleString(text)) => text,
            _ => "",
        }
    }

    fn items(&self) -> &[Value] {
        match &self.0 {
            Value::Array(items) => items.get(1..).unwrap_or_default(),
            _ => &[],
        }
    }

    fn item(&self, index: usize) -> Result<&Value, StoreError> {
        self.items().get(index).ok_or_else(|| StoreError::odd("reply too short"))
    }

    /// How many parts come with the tag.
    pub(crate) fn len(&self) -> usize {
        self.items().len()
    }

    /// A number that came with the tag.
    pub(crate) fn number(&self, index: usize) -> Result<i64, StoreError> {
        number(self.item(index)?)
    }

    /// A text that came with the tag.
    pub(crate) fn text(&self, index: usize) -> Result<String, StoreError> {
        text(self.item(index)?)
    }

    /// Bytes that came with the tag.
    pub(crate) fn bytes(&self, index: usize) -> Result<Vec<u8>, StoreError> {
        bytes(self.item(index)?)
    }

    /// The parts that came with the tag.
    pub(crate) fn into_parts(self) -> Vec<Reply> {
        let Value::Array(items) = self.0 else { return Vec::new() };
        items.into_iter().skip(1).map(Reply).collect()
    }

    /// An answer with a tag that this version does not know.
    pub(crate) fn unexpected(&self) -> StoreError {
        match self.tag() {
            "" => StoreError::odd(format!("unexpected reply {:?}", self.0)),
            tag => StoreError::odd(format!("unexpected answer {tag:?}")),
        }
    }

    /// Is the answer nil?
    pub(crate) fn is_nil(&self) -> bool {
        self.0 == Value::Nil
    }

    /// The answer itself is a text.
    pub(crate) fn into_text(self) -> Result<String, StoreError> {
        text(&self.0)
    }

    /// The answer itself is a number.
    pub(crate) fn into_number(self) -> Result<i64, StoreError> {
        number(&self.0)
    }

    /// The answer itself is a string of bytes.
    pub(crate) fn into_bytes(self) -> Result<Vec<u8>, StoreError> {
        match self.0 {
            Value::BulkString(bytes) => Ok(bytes),
            other => bytes(&other),
        }
    }

    /// The answer is a list. Nil counts as an empty list.
    pub(crate) fn into_list(self) -> Result<Vec<Reply>, StoreError> {
        match self.0 {
            Value::Array(items) | Value::Set(items) => Ok(items.into_iter().map(Reply).collect()),
            Value::Map(pairs) => {
                Ok(pairs.into_iter().flat_map(|(k, v)| [Reply(k), Reply(v)]).collect())
            }
            Value::Nil => Ok(Vec::new()),
            other => Err(StoreError::odd(format!("expected a list, got {other:?}"))),
        }
    }

    /// The answer is a list of texts.
    pub(crate) fn into_texts(self) -> Result<Vec<String>, StoreError> {
        self.into_list()?.into_iter().map(Reply::into_text).collect()
    }

    /// The answer is a list of names and values.
    pub(crate) fn into_pairs(self) -> Result<Vec<(String, Reply)>, StoreError> {
        let mut items = self.into_list()?.into_iter();
        let mut pairs = Vec::with_capacity(items.len() / 2);
        while let (Some(name), Some(value)) = (items.next(), items.next()) {
            pairs.push((name.into_text()?, value));
        }
        Ok(pairs)
    }

    /// The answer as JSON. Bytes that are not valid UTF-8 are replaced.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        json(&self.0)
    }
}

#[cfg(test)]
impl From<&str> for Reply {
    fn from(text: &str) -> Reply {
        Reply(Value::BulkString(text.as_bytes().to_vec()))
    }
}

#[cfg(test)]
impl From<i64> for Reply {
    fn from(number: i64) -> Reply {
        Reply(Value::Int(number))
    }
}

#[cfg(test)]
impl From<Vec<Reply>> for Reply {
    fn from(items: Vec<Reply>) -> Reply {
        Reply(Value::Array(items.into_iter().map(|item| item.0).collect()))
    }
}

fn text(value: &Value) -> Result<String, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text.clone()),
        Value::Okay => Ok("OK".to_owned()),
        Value::Int(n) => Ok(n.to_string()),
        other => Err(StoreError::odd(format!("expected text, got {other:?}"))),
    }
}

fn bytes(value: &Value) -> Result<Vec<u8>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes.clone()),
        other => text(other).map(String::into_bytes),
    }
}

fn number(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(n) => Ok(*n),
        Value::Double(x) => Ok(*x as i64),
        other => {
            let text = text(other)?;
            // A score may come as `1794710083943` or in exponent form.
            text.parse()
                .or_else(|_| text.parse::<f64>().map(|x| x as i64))
                .map_err(|_| StoreError::odd(format!("expected a number, got {text:?}")))
        }
    }
}

fn json(value: &Value) -> serde_json::Value {
    use serde_json::{Number, Value as Json};
    match value {
        Value::Int(n) => Json::from(*n),
        Value::Double(x) => Number::from_f64(*x).map_or(Json::Null, Json::Number),
        Value::Boolean(truth) => Json::from(*truth),
        Value::BulkString(bytes) => Json::from(String::from_utf8_lossy(bytes)),
        Value::SimpleString(text) => Json::from(text.as_str()),
        Value::Okay => Json::from("OK"),
        Value::Array(items) | Value::Set(items) => items.iter().map(json).collect(),
        Value::Map(pairs) => {
            pairs.iter().map(|(k, v)| Json::from(vec![json(k), json(v)])).collect()
        }
        _ => Json::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_tag_and_what_comes_with_it() {
        let reply = Reply::from(vec!["held".into(), "a|7".into(), 12.into()]);
        assert_eq!((reply.tag(), reply.len()), ("held", 2));
        assert_eq!(reply.text(0).expect("a text"), "a|7");
        assert_eq!(reply.number(1).expect("a number"), 12);
        assert!(reply.number(0).is_err() && reply.number(2).is_err());
        let alone = Reply::from("gone");
        assert_eq!((alone.tag(), alone.len()), ("gone", 0));
        assert_eq!(Reply::from(3).tag(), "");
    }

    #[test]
    fn answers_become_json() {
        let value =
            Value::Array(vec![Value::Int(7), Value::BulkString(b"seven".to_vec()), Value::Nil]);
        assert_eq!(Reply::new(value).to_json().to_string(), r#"[7,"seven",null]"#);
    }
}
