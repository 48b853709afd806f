//! Values on their way from one Lua state to another.

use mlua::{Error, Lua, Result, Value};

/// Tables within tables that a value may have: more is taken for a table that contains itself.
const DEPTH: usize = 64;

/// What can leave a state: nothing that is tied to it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plain {
    Nil,
    Boolean(bool),
    Number(f64),
    Text(Vec<u8>),
    Table(Vec<(Plain, Plain)>),
}

impl Plain {
    /// A copy of `value`, tables with all that is in them.
    pub(super) fn of(value: &Value) -> Result<Plain> {
        Plain::copy(value, DEPTH)
    }

    fn copy(value: &Value, depth: usize) -> Result<Plain> {
        Ok(match value {
            Value::Nil => Plain::Nil,
            Value::Boolean(boolean) => Plain::Boolean(*boolean),
            Value::Integer(number) => Plain::Number(*number as f64),
            Value::Number(number) => Plain::Number(*number),
            Value::String(text) => Plain::Text(text.as_bytes().to_vec()),
            Value::Table(table) if depth > 0 => {
                let pair = |pair: Result<(Value, Value)>| {
                    let (key, value) = pair?;
                    Ok((Plain::copy(&key, depth - 1)?, Plain::copy(&value, depth - 1)?))
                };
                Plain::Table(table.pairs().map(pair).collect::<Result<_>>()?)
            }
            Value::Table(_) => {
                return Err(Error::runtime("a table that contains itself cannot be transferred"));
            }
            other => {
                let kind = other.type_name();
                return Err(Error::runtime(format!("cannot transfer '{kind}' from one thread to another")));
            }
        })
    }

    /// The same value in the state `lua`.
    pub(super) fn into_lua(self, lua: &Lua) -> Result<Value> {
        Ok(match self {
            Plain::Nil => Value::Nil,
            Plain::Boolean(boolean) => Value::Boolean(boolean),
            Plain::Number(number) => Value::Number(number),
            Plain::Text(text) => Value::String(lua.create_string(text)?),
            Plain::Table(pairs) => {
                let table = lua.create_table()?;
                for (key, value) in pairs {
                    table.raw_set(key.into_lua(lua)?, value.into_lua(lua)?)?;
                }
                Value::Table(table)
            }
        })
    }
}
