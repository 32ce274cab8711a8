//! Tokens that are told by their format: a fixed beginning, then so many bytes of a kind.

use crate::class::{ALNUM, BASE64URL, Class};

/// The longest token, in bytes with its beginning. What follows is not masked; no known format is
/// half as long, but for JSON web tokens (module `jwt`).
pub(crate) const TOKEN_MAX: usize = 4096;

/// One format.
#[derive(Debug)]
pub(crate) struct Format {
    /// Whose.
    pub(crate) kind: &'static str,
    /// What each token begins with. It stays readable, so that a reader knows what was masked.
    pub(crate) start: &'static str,
    /// What follows.
    pub(crate) class: &'static Class,
    /// At least so many bytes, and at most so many: a longer run is something else.
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) holds: Holds,
}

/// What must be in a token, where its beginning alone says too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Anything,
    /// A letter and a digit.
    Mixed,
    /// As [`Holds::Mixed`], behind the name of an HTTP scheme: `b` in either case comes before its
    /// beginning.
    Scheme,
    /// Base64 of text with a colon, behind the name of an HTTP scheme.
    Credentials,
}

const fn exact(kind: &'static str, start: &'static str, class: &'static Class, n: usize) -> Format {
    Format { kind, start, class, min: n, max: n, holds: Holds::Anything }
}

const fn open(kind: &'static str, start: &'static str, class: &'static Class, n: usize) -> Format {
    Format { kind, start, class, min: n, max: usize::MAX, holds: Holds::Anything }
}

const fn mixed(kind: &'static str, start: &'static str, class: &'static Class, n: usize) -> Format {
    Format { kind, start, class, min: n, max: usize::MAX, holds: Holds::Mixed }
}

/// A scheme's name without its first letter.
const fn scheme(kind: &'static str, start: &'static str, holds: Holds) -> Format {
    let (class, min) =
        if matches!(holds, Holds::Credentials) { (&BASE64, 8) } else { (&BEARER, 20) };
    Format { kind, start, class, min, max: usize::MAX, holds }
}

static UPPER32: Class = Class::new(b"A-Z2-7");
static UPPER: Class = Class::new(b"A-Z0-9");
static HEX: Class = Class::new(b"a-f0-9");
static DOTTED: Class = Class::new(b"A-Za-z0-9_.-");
static DASHED: Class = Class::new(b"A-Za-z0-9-");
static BASE64: Class = Class::new(b"A-Za-z0-9+/=_-");
static BEARER: Class = Class::new(b"A-Za-z0-9._~+/=-");
static PERCENT: Class = Class::new(b"A-Za-z0-9%_-");
static SLASHED: Class = Class::new(b"A-Za-z0-9/");

/// All formats. None begins with another's beginning, none ends as another begins (tested):
/// so one pass finds all of them.
pub(crate) static FORMATS: &[Format] = &[
    exact("AWS access key id", "AKIA", &UPPER32, 16),
    exact("AWS access key id", "ASIA", &UPPER32, 16),
    exact("AWS access key id", "ABIA", &UPPER32, 16),
    exact("AWS access key id", "ACCA", &UPPER32, 16),
    open("GitHub", "ghp_", &ALNUM, 36),
    open("GitHub", "gho_", &ALNUM, 36),
    open("GitHub", "ghu_", &ALNUM, 36),
    open("GitHub", "ghs_", &BASE64URL, 36),
    open("GitHub", "ghr_", &ALNUM, 36),
    open("GitHub", "github_pat_", &BASE64URL, 22),
    open("GitLab", "glpat-", &DOTTED, 20),
    open("GitLab", "gldt-", &BASE64URL, 20),
    open("GitLab", "glrt-", &DOTTED, 20),
    open("GitLab", "glptt-", &BASE64URL, 20),
    mixed("Slack", "xoxb-", &DASHED, 10),
    mixed("Slack", "xoxp-", &DASHED, 10),
    mixed("Slack", "xoxa-", &DASHED, 10),
    mixed("Slack", "xoxs-", &DASHED, 10),
    mixed("Slack", "xoxr-", &DASHED, 10),
    mixed("Slack", "xapp-", &DASHED, 10),
    mixed("Slack webhook", "hooks.slack.com/services/", &SLASHED, 20),
    mixed("Stripe", "sk_live_", &ALNUM, 10),
    mixed("Stripe", "sk_test_", &ALNUM, 10),
    mixed("Stripe", "rk_live_", &ALNUM, 10),
    mixed("Stripe", "whsec_", &BASE64, 20),
    exact("Google API key", "AIza", &BASE64URL, 35),
    exact("Google OAuth secret", "GOCSPX-", &BASE64URL, 28),
    mixed("Google OAuth token", "ya29.", &DOTTED, 20),
    mixed("OpenAI", "sk-proj-", &BASE64URL, 20),
    mixed("OpenAI", "sk-svcacct-", &BASE64URL, 20),
    mixed("Anthropic", "sk-ant-", &BASE64URL, 20),
    mixed("OpenRouter", "sk-or-v1-", &HEX, 40),
    open("Hugging Face", "hf_", &ALNUM, 34),
    exact("npm", "npm_", &ALNUM, 36),
    open("PyPI", "pypi-AgE", &BASE64URL, 50),
    exact("crates.io", "cio", &ALNUM, 32),
    open("RubyGems", "rubygems_", &HEX, 40),
    open("Docker", "dckr_pat_", &BASE64URL, 20),
    open("Docker", "dckr_oat_", &BASE64URL, 20),
    open("DigitalOcean", "dop_v1_", &HEX, 40),
    open("DigitalOcean", "doo_v1_", &HEX, 40),
    mixed("HashiCorp Vault", "hvs.", &BASE64URL, 24),
    mixed("HashiCorp Vault", "hvb.", &BASE64URL, 24),
    exact("Databricks", "dapi", &HEX, 32),
    open("Grafana", "glsa_", &BASE64URL, 32),
    open("Grafana", "glc_", &BASE64, 32),
    open("Shopify", "shpat_", &ALNUM, 32),
    open("Shopify", "shpss_", &ALNUM, 32),
    open("Tailscale", "tskey-", &DASHED, 20),
    open("Linear", "lin_api_", &ALNUM, 32),
    open("Postman", "PMAK-", &DASHED, 40),
    open("Atlassian", "ATATT3", &BASE64, 50),
    open("Square", "sq0csp-", &BASE64URL, 40),
    open("Sentry", "sntrys_", &BASE64, 40),
    open("Supabase", "sbp_", &HEX, 40),
    open("PlanetScale", "pscale_", &DOTTED, 32),
    exact("New Relic", "NRAK-", &UPPER, 27),
    mixed("SendGrid", "SG.", &DOTTED, 60),
    exact("Mailgun", "key-", &HEX, 32),
    open("Azure storage key", "AccountKey=", &BASE64, 40),
    open("Azure access signature", "&sig=", &PERCENT, 40),
    scheme("bearer token", "earer ", Holds::Scheme),
    scheme("bearer token", "EARER ", Holds::Scheme),
    scheme("bearer token", "earer\t", Holds::Scheme),
    scheme("bearer token", "EARER\t", Holds::Scheme),
    scheme("basic credentials", "asic ", Holds::Credentials),
    scheme("basic credentials", "ASIC ", Holds::Credentials),
    scheme("basic credentials", "asic\t", Holds::Credentials),
    scheme("basic credentials", "ASIC\t", Holds::Credentials),
    exact("Telegram bot", ":AAE", &BASE64URL, 32),
    exact("Telegram bot", ":AAF", &BASE64URL, 32),
    exact("Telegram bot", ":AAG", &BASE64URL, 32),
    exact("Telegram bot", ":AAH", &BASE64URL, 32),
    exact("age", "AGE-SECRET-KEY-1", &UPPER, 58),
    exact("age", "AGE-SECRET-KEY-PQ-1", &UPPER, 58),
];
