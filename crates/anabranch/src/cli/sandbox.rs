//! The flag of everything that speaks with strangers: what a fault in it reaches.

use anabranch_sandbox::Wish;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// What this process is shut in with.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct SandboxFlags {
    /// Shut this process in with the files that the command needs, by Landlock and seccomp: as far as the kernel goes (auto), both or not
    /// go on (require), not at all (off)
    #[arg(long = "sandbox", value_name = "WHEN", default_value = "auto", value_parser = by_name())]
    pub wish: Wish,
}

/// The names of `--sandbox`.
const WISHES: [(&str, Wish); 3] = [("auto", Wish::Auto), ("require", Wish::Require), ("off", Wish::Off)];

fn by_name() -> impl TypedValueParser<Value = Wish> {
    let names = PossibleValuesParser::new(WISHES.map(|(name, _)| name));
    names.map(|name| WISHES.iter().find(|(known, _)| *known == name).map_or(Wish::default(), |(_, wish)| *wish))
}
