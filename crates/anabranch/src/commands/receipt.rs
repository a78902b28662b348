//! `receipt`: what receivers signed, and whether it still holds.

use anabranch_hercules::wire::manifest::Entry;
use anabranch_hercules::wire::receipt::Receipt;
use anabranch_transport::NodeId;
use serde_json::{Value, json};

use crate::bulk::receipts::{self, Comparison, Receipts};
use crate::cli::ReceiptFlags;
use crate::exit::{Code, Failure};
use crate::{output, units};

/// Names that are told of what was sent.
const NAMES_TOLD_MAX: usize = 5;

/// What was found out about one receipt.
struct Verdict {
    is_signed: bool,
    is_by_sender: bool,
    has_manifest: bool,
    /// Whether the content's root is the receipt's, where there is content to look at.
    is_content: Option<bool>,
}

impl Verdict {
    fn holds(&self) -> bool {
        self.is_signed && self.is_by_sender && self.has_manifest && self.is_content != Some(false)
    }
}

/// Runs the command.
pub(crate) fn run(flags: &ReceiptFlags) -> Result<Code, Failure> {
    let file = Receipts::load(&flags.file)?;
    let entries = file.entries()?;
    let content_len: u64 = entries.iter().map(Entry::data_len).sum();
    let roots: Vec<[u8; 32]> = file.receipts.iter().map(|receipt| receipt.root).collect();
    let compare = |path| receipts::compare(&entries, content_len, &roots, path);
    let compared = flags.path.as_deref().map(compare).transpose()?;
    let verdicts: Vec<Verdict> = file.receipts.iter().map(|receipt| judge(flags, &file, receipt, &compared)).collect();
    let has_received = |key: &NodeId| file.receipts.iter().any(|receipt| receipt.receiver == *key.as_bytes());
    let absent: Vec<String> = flags.receiver.iter().filter(|key| !has_received(key)).map(ToString::to_string).collect();
    if flags.json {
        output::line(all_json(&file, &entries, &verdicts, &compared, &absent))?;
    } else {
        output::raw(text(flags, &file, &entries, &verdicts, &compared).as_bytes())?;
    }
    verdict(flags, &verdicts, &absent)
}

fn judge(flags: &ReceiptFlags, file: &Receipts, receipt: &Receipt, compared: &Option<Comparison>) -> Verdict {
    Verdict {
        is_signed: receipt.verify(),
        is_by_sender: flags.sender.is_none_or(|key| *key.as_bytes() == receipt.sender),
        has_manifest: file.has_manifest_of(receipt),
        is_content: compared.as_ref().map(|compared| compared.root == Some(receipt.root)),
    }
}

/// How the program ends.
fn verdict(flags: &ReceiptFlags, verdicts: &[Verdict], absent: &[String]) -> Result<Code, Failure> {
    let file = flags.file.display();
    let any = |lacks: fn(&Verdict) -> bool| verdicts.iter().any(lacks);
    if any(|verdict| !verdict.is_signed) {
        return Err(Failure::input(format!(
            "{file} is forged or damaged: the signature is not that of the receiver's key"
        )));
    }
    if any(|verdict| !verdict.has_manifest) {
        return Err(Failure::input(format!(
            "{file} is forged or damaged: the files it names are not those that were signed"
        )));
    }
    let incomplete = |message: String| Err(Failure::new(Code::Incomplete, message));
    if any(|verdict| !verdict.is_by_sender) {
        return incomplete(format!("{file} is about what another key sent: `--sender` names none of it"));
    }
    if !absent.is_empty() {
        return incomplete(format!("{file} has no receipt of {}", absent.join(" nor of ")));
    }
    if let Some(path) = flags.path.as_deref().filter(|_| any(|verdict| verdict.is_content == Some(false))) {
        return incomplete(format!("{} is not what was received", path.display()));
    }
    Ok(Code::Success)
}

fn names(entries: &[Entry]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in entries {
        let name = String::from_utf8_lossy(receipts::top(entry)).into_owned();
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    names
}

fn text(
    flags: &ReceiptFlags,
    file: &Receipts,
    entries: &[Entry],
    verdicts: &[Verdict],
    compared: &Option<Comparison>,
) -> String {
    let mut lines = Vec::new();
    for (receipt, verdict) in file.receipts.iter().zip(verdicts) {
        let (sender, receiver) = (NodeId::from_bytes(receipt.sender), NodeId::from_bytes(receipt.receiver));
        let right = |holds: bool, yes: &str, no: &str| if holds { yes.to_owned() } else { no.to_owned() };
        let signed = right(
            verdict.is_signed,
            "the signature is right",
            "the signature is WRONG: nobody who has this key signed this",
        );
        lines.push(format!("receiver   {receiver}; {signed}"));
        let asked = if flags.sender.is_some() {
            right(verdict.is_by_sender, ", as asked", ", and ANOTHER was asked for")
        } else {
            String::new()
        };
        lines.push(format!("sender     {sender}{asked}"));
        lines.push(format!("received   {}, by the receiver's clock", date(receipt.finished)));
        let amount = units::bytes(receipt.content_len);
        lines.push(format!("content    {amount} of data, {}", anabranch_content::hex::encode(&receipt.root)));
        let named = right(verdict.has_manifest, "as they were signed for", "NOT those that were signed for");
        lines
            .push(format!("files      {}, {named}", units::count(entries.len(), "entry").replace("entrys", "entries")));
    }
    let names = names(entries);
    let more = names.len().saturating_sub(NAMES_TOLD_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    lines.push(format!("names      {}{more}", names[..names.len().min(NAMES_TOLD_MAX)].join(", ")));
    if let (Some(compared), Some(path)) = (compared, &flags.path) {
        let is_same = verdicts.iter().all(|verdict| verdict.is_content == Some(true));
        let path = path.display();
        lines.push(match is_same {
            true => format!("now        {path} is what was received, byte for byte"),
            false => format!("now        {path} is NOT what was received"),
        });
        lines.extend(compared.missing.iter().chain(&compared.changed).map(|what| format!("           {what}")));
        if compared.more > 0 {
            lines.push(format!("           and {} more", compared.more));
        }
    }
    lines.iter().map(|line| output::one_line(line) + "\n").collect()
}

fn all_json(
    file: &Receipts,
    entries: &[Entry],
    verdicts: &[Verdict],
    compared: &Option<Comparison>,
    absent: &[String],
) -> Value {
    let one = |(receipt, verdict): (&Receipt, &Verdict)| {
        json!({
            "receiver": NodeId::from_bytes(receipt.receiver).to_string(),
            "sender": NodeId::from_bytes(receipt.sender).to_string(),
            "finished": receipt.finished,
            "content_bytes": receipt.content_len,
            "root": anabranch_content::hex::encode(&receipt.root),
            "manifest_hash": anabranch_content::hex::encode(&receipt.manifest_hash),
            "entries": receipt.entries,
            "transfer": receipt.transfer,
            "signature_valid": verdict.is_signed,
            "sender_as_asked": verdict.is_by_sender,
            "manifest_valid": verdict.has_manifest,
            "content_same": verdict.is_content,
        })
    };
    json!({
        "valid": verdicts.iter().all(Verdict::holds) && absent.is_empty(),
        "receipts": file.receipts.iter().zip(verdicts).map(one).collect::<Vec<_>>(),
        "names": names(entries),
        "receivers_absent": absent,
        "missing": compared.as_ref().map(|compared| &compared.missing),
        "changed": compared.as_ref().map(|compared| &compared.changed),
    })
}

/// `2026-11-23 05:02:11 UTC`.
fn date(seconds: u64) -> String {
    let (year, month, day) = anabranch_lab::date(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60, of_day % 60)
}
