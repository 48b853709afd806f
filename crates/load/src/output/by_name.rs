//! Counts by kind, written out as an object of names and counts. A kind that never came up is left out; one that this
//! version does not know is an error, since it would be a count lost.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

use crate::record::Failure;
use crate::response::Malformed;

/// Kinds with names, in the order of their counts.
pub(crate) trait Kind: Copy + 'static {
    const ALL: &'static [Self];
    fn name(self) -> &'static str;
}

impl Kind for Failure {
    const ALL: &'static [Failure] = &Failure::ALL;
    fn name(self) -> &'static str {
        Failure::name(self)
    }
}

impl Kind for Malformed {
    const ALL: &'static [Malformed] = &Malformed::ALL;
    fn name(self) -> &'static str {
        Malformed::name(self)
    }
}

/// For `#[serde(with = "ByName::<K>")]` on an array of counts.
pub(crate) struct ByName<K>(PhantomData<K>);

impl<K: Kind> ByName<K> {
    pub(crate) fn serialize<S: Serializer, const N: usize>(
        counts: &[u64; N],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let named = K::ALL.iter().zip(counts).map(|(kind, count)| (kind.name(), count));
        serializer.collect_map(named.filter(|(_, count)| **count > 0))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        deserializer: D,
    ) -> Result<[u64; N], D::Error> {
        let mut counts = [0; N];
        for (name, count) in BTreeMap::<String, u64>::deserialize(deserializer)? {
            let index = K::ALL.iter().position(|kind| kind.name() == name);
            let slot = index.and_then(|index| counts.get_mut(index));
            *slot.ok_or_else(|| D::Error::custom(format!("no kind of failure is called {name}")))? = count;
        }
        Ok(counts)
    }
}
