//! `--interactive`: the user is shown paths and asked which ones to take.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_paths::{PathIdError, ScionPath};

use crate::exit::{Code, Failure};
use crate::path_list::{ChoiceError, PathList};

/// Answers that name no path, before the program gives up.
const WRONG_ANSWERS_MAX: usize = 16;
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4096;

/// Lists the paths and asks which one to take. What is asked goes to `screen`, so that results stay apart from it.
pub fn one(list: &PathList, answers: impl BufRead, screen: impl Write) -> Result<Arc<ScionPath>, Failure> {
    ask(list, answers, screen, "path (number or id): ", |answer| list.choose(answer).cloned())
}

/// The same for several paths, separated by commas or spaces.
pub fn several(list: &PathList, answers: impl BufRead, screen: impl Write) -> Result<Vec<Arc<ScionPath>>, Failure> {
    ask(list, answers, screen, "paths (numbers or ids, separated by commas): ", |answer| {
        let parts = answer.split([',', ' ', '\n']).filter(|part| !part.is_empty());
        let chosen: Vec<Arc<ScionPath>> = parts.map(|part| list.choose(part).cloned()).collect::<Result<_, _>>()?;
        if chosen.is_empty() { Err(PathIdError::NotAnId(answer.trim().to_owned()).into()) } else { Ok(chosen) }
    })
}

fn ask<T>(
    list: &PathList,
    answers: impl BufRead,
    mut screen: impl Write,
    question: &str,
    read: impl Fn(&str) -> Result<T, ChoiceError>,
) -> Result<T, Failure> {
    let shown = |error: std::io::Error| Failure::new(Code::Failed, format!("cannot ask which path to take: {error}"));
    let mut answers = answers.take(ANSWER_BYTES_MAX * WRONG_ANSWERS_MAX as u64);
    write!(screen, "{}", list.text(SystemTime::now(), false)).map_err(shown)?;
    for _ in 0..WRONG_ANSWERS_MAX {
        write!(screen, "{question}").and_then(|()| screen.flush()).map_err(shown)?;
        let mut answer = String::new();
        if answers.read_line(&mut answer).map_err(shown)? == 0 {
            break;
        }
        match read(&answer) {
            Ok(chosen) => return Ok(chosen),
            Err(error) => writeln!(screen, "{error}").map_err(shown)?,
        }
    }
    Err(Failure::usage("no path was chosen: answer with a number of the list, or give --path ID"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path_list::tests::path;

    fn list() -> PathList {
        let paths = ["1-1 1>2 1-2", "1-1 3>4 1-2"].map(|text| Arc::new(path(text)));
        PathList::new(paths[0].source, paths[0].destination, paths.into(), None)
    }

    #[test]
    fn the_user_is_asked_until_an_answer_names_a_path() {
        let list = list();
        let mut screen = Vec::new();
        let chosen = one(&list, "7\nwest\n1\n".as_bytes(), &mut screen).unwrap();
        assert_eq!(chosen, list.paths()[1]);
        let screen = String::from_utf8(screen).unwrap();
        assert!(screen.starts_with("2 paths from 1-1 to 1-2"), "{screen}");
        assert!(screen.contains("`west` is no path id"), "{screen}");
    }

    #[test]
    fn several_paths_are_named_at_once() {
        let list = list();
        let second = list.paths()[1].id().to_string();
        for answer in ["0,1\n", "0 1\n", &format!("0, {second}\n")] {
            assert_eq!(several(&list, answer.as_bytes(), Vec::new()).unwrap(), list.paths(), "{answer}");
        }
        let mut screen = Vec::new();
        assert_eq!(several(&list, "\n0,x\n1\n".as_bytes(), &mut screen).unwrap(), [list.paths()[1].clone()]);
        assert!(String::from_utf8(screen).unwrap().contains("`x` is no path id"));
    }

    #[test]
    fn asking_ends() {
        let ended = one(&list(), "west\n".as_bytes(), Vec::new()).unwrap_err();
        assert!(ended.to_string().contains("--path ID"));
        let mut screen = Vec::new();
        let endless = "west\n".repeat(WRONG_ANSWERS_MAX + 1) + "0\n";
        assert!(one(&list(), endless.as_bytes(), &mut screen).is_err());
        assert_eq!(String::from_utf8(screen).unwrap().matches("path (").count(), WRONG_ANSWERS_MAX);
    }
}
