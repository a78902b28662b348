//! `--interactive` and `--choose`: the user is shown paths, or files, and asked which ones to take.

use std::fmt;
use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::time::SystemTime;

use anabranch_content::info::Info;
use anabranch_paths::{PathIdError, ScionPath};

use crate::choice::{self, Choice};
use crate::exit::{Code, Failure};
use crate::output::one_line;
use crate::path_list::{ChoiceError, PathList};

/// Answers that name nothing of the list, before the program gives up.
const WRONG_ANSWERS_MAX: usize = 16;
/// Longest answer that is read.
const ANSWER_BYTES_MAX: u64 = 4096;

/// Lists the paths and asks which one to take. What is asked goes to `screen`, so that results stay apart from it.
pub(crate) fn one(list: &PathList, answers: impl BufRead, screen: impl Write) -> Result<Arc<ScionPath>, Failure> {
    ask_for_path(list, answers, screen, "path (number or id): ", |answer| list.choose(answer).cloned())
}

/// The same for several paths, separated by commas or spaces.
pub(crate) fn several(
    list: &PathList,
    answers: impl BufRead,
    screen: impl Write,
) -> Result<Vec<Arc<ScionPath>>, Failure> {
    ask_for_path(list, answers, screen, "paths (numbers or ids, separated by commas): ", |answer| {
        let parts = answer.split([',', ' ', '\n']).filter(|part| !part.is_empty());
        let chosen: Vec<Arc<ScionPath>> = parts.map(|part| list.choose(part).cloned()).collect::<Result<_, _>>()?;
        if chosen.is_empty() { Err(PathIdError::NotAnId(answer.trim().to_owned()).into()) } else { Ok(chosen) }
    })
}

/// Lists the files of a content and asks which ones to fetch: whether each is.
pub(crate) fn files(info: &Info, answers: impl BufRead, screen: impl Write) -> Result<Vec<bool>, Failure> {
    let all = vec![true; info.files.len()];
    let question = Question {
        list: choice::list(info, &all),
        asks: "files (numbers such as 1,3-5, patterns such as *.mkv, or * for all): ",
        unanswered: "no file was chosen: answer with numbers of the list, or give --files or --select-file",
    };
    ask(&question, answers, screen, |answer| Choice::answer(answer)?.wanted(info))
}

/// Whether somebody is there to be asked: a terminal that shows the list, and one to answer at.
pub(crate) fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Waiting for somebody to type keeps nobody else waiting, signals among them.
pub(crate) async fn beside<T: Send + 'static>(
    asking: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(asking).await.map_err(|error| Failure::new(Code::Failed, error))?
}

fn ask_for_path<T>(
    list: &PathList,
    answers: impl BufRead,
    screen: impl Write,
    asks: &'static str,
    read: impl Fn(&str) -> Result<T, ChoiceError>,
) -> Result<T, Failure> {
    let question = Question {
        list: list.text(SystemTime::now(), false),
        asks,
        unanswered: "no path was chosen: answer with a number of the list, or give --path ID",
    };
    ask(&question, answers, screen, read)
}

/// What a user is asked.
struct Question {
    list: String,
    asks: &'static str,
    /// What is said to who does not answer.
    unanswered: &'static str,
}

fn ask<T, E: fmt::Display>(
    question: &Question,
    answers: impl BufRead,
    mut screen: impl Write,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<T, Failure> {
    let shown = |error: std::io::Error| Failure::new(Code::Failed, format!("cannot ask what to take: {error}"));
    let mut answers = answers.take(ANSWER_BYTES_MAX * WRONG_ANSWERS_MAX as u64);
    write!(screen, "{}", question.list).map_err(shown)?;
    for _ in 0..WRONG_ANSWERS_MAX {
        write!(screen, "{}", question.asks).and_then(|()| screen.flush()).map_err(shown)?;
        let mut answer = String::new();
        if answers.read_line(&mut answer).map_err(shown)? == 0 {
            break;
        }
        match read(&answer) {
            Ok(chosen) => return Ok(chosen),
            Err(error) => writeln!(screen, "{}", one_line(&error.to_string())).map_err(shown)?,
        }
    }
    Err(Failure::usage(question.unanswered))
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
