//! Categories and tags.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::form::Form;
use super::{Answer, Fault, Outcome, several};
use crate::api::Api;
use crate::library::is_name;

/// Answers of them.
pub(super) async fn answer(api: &Api, form: &Form, action: &str) -> Outcome {
    let engine = &api.engine;
    let tags = || form.list("tags", ',').into_iter().collect::<BTreeSet<String>>();
    match action {
        "categories" => return Ok(Value::from(categories(api)).into()),
        "tags" => return Ok(json!(engine.tags()).into()),
        "createCategory" | "editCategory" => {
            let name = form.need("category")?;
            if name.is_empty() {
                return Err(Fault::bad("Category cannot be empty"));
            }
            let is_there = engine.with_settings(|settings| settings.categories.contains_key(name));
            match action {
                "createCategory" if !is_name(name) => return Err(Fault::conflict("Incorrect category name")),
                "createCategory" if is_there => return Err(Fault::conflict("Unable to create category")),
                "editCategory" if !engine.categories().contains_key(name) => {
                    return Err(Fault::conflict("Unable to edit category"));
                }
                _ => {}
            }
            if action == "editCategory" {
                form.need("savePath")?;
            }
            let dir = Some(form.text("savePath")).filter(|dir| !dir.is_empty()).map(Into::into);
            engine.put_category(name, dir).await?;
        }
        "removeCategories" => {
            form.need("categories")?;
            engine.remove_categories(&form.list("categories", '\n').into_iter().collect()).await?;
        }
        "setCategory" => {
            let (ids, name) = (several(api, form.need("hashes")?), form.need("category")?);
            if !name.is_empty() && !engine.categories().contains_key(name) {
                return Err(Fault::conflict("Incorrect category name"));
            }
            let category = Some(name).filter(|name| !name.is_empty());
            let changes = Map::from_iter([("category".to_owned(), json!(category))]);
            engine.patch(&ids, &changes).await?;
        }
        "createTags" => {
            form.need("tags")?;
            engine.add_tags(&tags()).await?;
        }
        "deleteTags" => {
            form.need("tags")?;
            engine.remove_tags(&tags()).await?;
        }
        _ => {
            let (ids, tags) = (several(api, form.need("hashes")?), tags());
            if action != "removeTags" {
                form.need("tags")?;
                engine.add_tags(&tags).await?;
            }
            let change = |entry: &mut crate::library::Entry| {
                match action {
                    "addTags" => entry.tags.extend(tags.iter().cloned()),
                    "setTags" => entry.tags.clone_from(&tags),
                    // Without naming any, all go.
                    _ if tags.is_empty() => entry.tags.clear(),
                    _ => entry.tags.retain(|tag| !tags.contains(tag)),
                }
                crate::engine::check(entry)
            };
            engine.update(&ids, change).await?;
        }
    }
    Ok(Answer::Done)
}

/// All categories as clients know them.
fn categories(api: &Api) -> Map<String, Value> {
    shown(api.engine.categories())
}

/// Categories and their folders as clients know them.
pub(super) fn shown(categories: BTreeMap<String, Option<PathBuf>>) -> Map<String, Value> {
    let one = |(name, dir): (String, Option<PathBuf>)| {
        let dir = dir.map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default();
        let shown = json!({ "name": name, "savePath": dir });
        (name, shown)
    };
    categories.into_iter().map(one).collect()
}
