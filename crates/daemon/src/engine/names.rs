//! Categories and tags: those that were made, and those that contents have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::{Engine, Refusal};
use crate::library::is_name;

impl Engine {
    /// All categories, and the folder of each that has one.
    pub(crate) fn categories(&self) -> BTreeMap<String, Option<PathBuf>> {
        let state = self.state();
        let mut all = state.settings.categories.clone();
        for category in state.staying().filter_map(|content| content.entry.category.as_ref()) {
            if !all.contains_key(category) {
                all.insert(category.clone(), None);
            }
        }
        all
    }

    /// All tags.
    pub(crate) fn tags(&self) -> BTreeSet<String> {
        let state = self.state();
        let mut all = state.settings.tags.clone();
        for tag in state.staying().flat_map(|content| &content.entry.tags) {
            if !all.contains(tag) {
                all.insert(tag.clone());
            }
        }
        all
    }

    /// Makes a category, or gives it another folder.
    pub(crate) async fn put_category(&self, name: &str, dir: Option<PathBuf>) -> Result<(), Refusal> {
        let mut categories = self.settings().categories;
        categories.insert(name.to_owned(), dir);
        self.set_categories(&categories).await
    }

    /// Takes categories away, from contents too.
    pub(crate) async fn remove_categories(&self, names: &BTreeSet<String>) -> Result<(), Refusal> {
        let of = |category: &Option<String>| category.as_ref().is_some_and(|name| names.contains(name));
        let ids = self.ids_where(|content| of(&content.entry.category));
        self.update(&ids, |entry| {
            entry.category = None;
            Ok(())
        })
        .await?;
        let mut categories = self.settings().categories;
        categories.retain(|name, _| !names.contains(name));
        self.set_categories(&categories).await
    }

    async fn set_categories(&self, categories: &BTreeMap<String, Option<PathBuf>>) -> Result<(), Refusal> {
        let dir = |dir: &Option<PathBuf>| json!(dir.as_deref().map(|dir| dir.to_string_lossy()));
        let named: Map<String, Value> = categories.iter().map(|(name, path)| (name.clone(), dir(path))).collect();
        self.set(&Map::from_iter([("categories".to_owned(), named.into())])).await.map(drop)
    }

    /// Makes tags known.
    pub(crate) async fn add_tags(&self, names: &BTreeSet<String>) -> Result<(), Refusal> {
        if let Some(bad) = names.iter().find(|name| !is_name(name)) {
            let must = format!("names of at most 128 bytes without commas and line breaks, which `{bad}` is not");
            return Err(Refusal::Invalid { field: "tags", must });
        }
        let known = self.settings().tags;
        if names.is_subset(&known) {
            return Ok(());
        }
        let all: BTreeSet<&String> = known.union(names).collect();
        self.set(&Map::from_iter([("tags".to_owned(), json!(all))])).await.map(drop)
    }

    /// Takes tags away, from contents too.
    pub(crate) async fn remove_tags(&self, names: &BTreeSet<String>) -> Result<(), Refusal> {
        let ids = self.ids_where(|content| !content.entry.tags.is_disjoint(names));
        self.update(&ids, |entry| {
            entry.tags.retain(|tag| !names.contains(tag));
            Ok(())
        })
        .await?;
        let left: Vec<String> = self.settings().tags.into_iter().filter(|tag| !names.contains(tag)).collect();
        self.set(&Map::from_iter([("tags".to_owned(), json!(left))])).await.map(drop)
    }

    fn ids_where(&self, is_so: impl Fn(&super::Content) -> bool) -> Vec<u64> {
        let state = self.state();
        let of = state.contents.iter().filter(|(_, content)| content.entry.going.is_none() && is_so(content));
        of.map(|(id, _)| *id).collect()
    }
}
