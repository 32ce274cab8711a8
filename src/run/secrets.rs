//! What looks like a secret: by the name of a variable or a setting, by how a value begins, and by
//! what stands in it.

/// Words of a name, between underscores, that say it holds a secret. Their plurals do, too.
const SECRET_WORDS: &[&str] =
    &["AUTH", "AUTHORIZATION", "BEARER", "CREDS", "JWT", "OAUTH", "PASS", "PAT", "PSK", "PWD"];
/// How a word of a name ends that says so, whatever it begins with: `PGPASSWORD`. Their plurals do,
/// too.
const SECRET_ENDS: &[&str] = &[
    "ACCESSKEY",
    "ACCESSKEYID",
    "APIKEY",
    // Of Yarn and npm: a user and a password.
    "AUTHIDENT",
    "COOKIE",
    "CREDENTIAL",
    "PASSCODE",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PRIVATEKEY",
    "PRIVKEY",
    "SECRET",
    "SECRETKEY",
    "TOKEN",
];
/// Before `PASS`, `PWD` and `AUTH` without an underscore: other words end so, too (`BYPASS`).
const BEFORE_SHORT: &[&str] = &[
    "ADMIN", "BASIC", "DB", "DOCKER", "FTP", "HTTP", "KEY", "KEYSTORE", "LDAP", "MAIL", "MONGO",
    "MYSQL", "PG", "POSTGRES", "PROXY", "REDIS", "ROOT", "RSYNC", "SMTP", "SQL", "SSH", "STORE",
    "SUDO", "USER", "VAULT", "VNC", "VPN", "WEB",
];
const SHORT: &[&str] = &["PASS", "PWD", "AUTH"];
/// Two words that say it together.
const SECRET_PAIRS: &[(&str, &str)] = &[
    ("ACCESS", "KEY"),
    ("ACCOUNT", "KEY"),
    ("AGE", "KEY"),
    ("API", "KEY"),
    ("APP", "KEY"),
    ("CONSUMER", "KEY"),
    ("DEPLOY", "KEY"),
    ("ENCRYPTION", "KEY"),
    ("HMAC", "KEY"),
    ("LICENSE", "KEY"),
    ("MASTER", "KEY"),
    ("PRIV", "KEY"),
    ("PRIVATE", "KEY"),
    ("ROLE", "KEY"),
    ("SERVICE", "KEY"),
    ("SESSION", "KEY"),
    ("SHARED", "KEY"),
    ("SIGNING", "KEY"),
    ("SSH", "KEY"),
    ("STORAGE", "KEY"),
    ("CONNECTION", "STRING"),
];
/// Names that hold no secret although a word says so.
const PLAIN: &[&str] = &["PWD", "OLDPWD", "SSH_AUTH_SOCK", "GPG_TTY", "XAUTHORITY"];
/// How values begin that are secrets, whatever their name.
const SECRET_VALUES: &[&str] = &[
    "AGE-SECRET-KEY-",
    "AKIA",
    "ASIA",
    "ATATT3",
    "AIza",
    "Bearer ",
    "NRAK-",
    "SG.",
    "dckr_pat_",
    "doo_v1_",
    "dop_v1_",
    "dor_v1_",
    "eyJhbGciOi",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "glptt-",
    "glrt-",
    "gsk_",
    "hf_",
    // Whoever knows the address of a webhook may use it.
    "https://discord.com/api/webhooks/",
    "https://hooks.slack.com/services/",
    "hvs.",
    "lin_api_",
    "npm_",
    "pypi-",
    "sk-",
    "rk_live_",
    "rk_test_",
    "sbp_",
    "shpat_",
    "sk_live_",
    "sk_test_",
    "sntrys_",
    "tskey-",
    "whsec_",
    "xai-",
    "xapp-",
    "xoxb-",
    "xoxp-",
    "ya29.",
];
/// Shortest value that is judged by how it begins.
const SECRET_VALUE_MIN: usize = 16;
/// How settings within a value end, such as in a connection string, headers or options of a program,
/// that hold a password or a key; without dashes and underscores.
const SECRET_SETTINGS: &[&str] = &[
    "accesskey",
    "accountkey",
    "apikey",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "secret",
    "secretkey",
    "token",
];
/// Whole ones: `cwd` is none, and ends like one.
const WHOLE_SETTINGS: &[&str] = &["pwd", "userpwd"];
/// How options of programs end that a password or a key stands behind: `--db-password x`.
const SECRET_OPTIONS: &[&str] = &[
    "accesskey",
    "apikey",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "pwd",
    "secret",
    "secretkey",
    "token",
];
/// Options that a user stands behind, with a password where there is a colon: those of curl.
const USER_OPTIONS: &[&str] = &["-u", "-U", "--user", "--proxy-user"];
/// In a string, a backslash stands before them.
const QUOTES: [char; 3] = ['"', '\'', '\\'];
/// What is in PEM and no secret.
const PUBLIC_PEM: &[&str] = &["CERTIFICATE", "PUBLIC KEY", "X509 CRL"];

/// Whether a variable, or a setting of a file, looks like a secret.
pub(super) fn is_secret(name: &str, value: &str) -> bool {
    let value = value.trim();
    // What is empty, or a switch, is none.
    if value.is_empty() || PLAIN.contains(&name) {
        return false;
    }
    is_secret_name(name) || is_secret_value(value)
}

/// Whether the name of a variable, or of a setting, says that its value is a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    if PLAIN.contains(&name) {
        return false;
    }
    let name = name.to_ascii_uppercase();
    let words = || name.split(|c: char| !c.is_ascii_alphanumeric()).map(without_number);
    let pairs = || words().zip(words().skip(1));
    words().any(|word| one_or_many(word, is_secret_word))
        || pairs().any(|(first, second)| {
            one_or_many(second, |second| SECRET_PAIRS.contains(&(first, second)))
        })
}

/// `TOKEN2` as `TOKEN`.
fn without_number(word: &str) -> &str {
    word.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// Whether it is so of the word, or of that of which it is the plural.
fn one_or_many(word: &str, is: impl Fn(&str) -> bool) -> bool {
    is(word) || word.strip_suffix('S').is_some_and(is)
}

fn is_secret_word(word: &str) -> bool {
    let is_pair = |(first, second): &(&str, &str)| word.strip_prefix(first) == Some(*second);
    // One's key for signatures is public, in the settings of git.
    let is_pair = || word != "SIGNINGKEY" && SECRET_PAIRS.iter().any(is_pair);
    let before = |end: &&str| word.strip_suffix(*end).is_some_and(|it| BEFORE_SHORT.contains(&it));
    SECRET_WORDS.contains(&word)
        || SECRET_ENDS.iter().any(|end| word.ends_with(end))
        || SHORT.iter().any(before)
        || is_pair()
}

fn is_secret_value(value: &str) -> bool {
    begins_like_one(value)
        || has_header(value)
        || is_scheme_with_credentials(value)
        || value.split(is_between_words).any(is_token)
        || has_private_key(value)
        || has_password(value)
        || has_setting(value)
        || has_option(value)
        || in_json(value)
}

fn begins_like_one(value: &str) -> bool {
    value.len() >= SECRET_VALUE_MIN && SECRET_VALUES.iter().any(|start| value.starts_with(start))
}

/// A header of HTTP that says who asks, whatever the scheme: `Authorization: basic x`.
pub(super) fn has_header(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower.match_indices("authorization").any(|(at, name)| {
        let after = lower[at + name.len()..].trim_start_matches(['"', '\'', ' ', '\t']);
        after.strip_prefix([':', '=']).is_some_and(|value| {
            value.starts_with(|c: char| !matches!(c, ':' | '=' | '/'))
                && !value.trim_matches(['"', '\'', ' ', '\t', '\r', '\n']).is_empty()
        })
    })
}

/// The value of such a header alone: its scheme, and a word that no sentence has.
fn is_scheme_with_credentials(value: &str) -> bool {
    let Some((scheme, rest)) = value.split_once(' ') else { return false };
    let of_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=-_.~".contains(c);
    let rest = rest.trim();
    let named = ["basic", "bearer", "token"].iter().any(|one| scheme.eq_ignore_ascii_case(one));
    let is_mixed = rest.contains(|c: char| c.is_ascii_digit() || c == '=')
        || rest.contains(|c: char| c.is_ascii_uppercase());
    named && rest.len() >= 8 && rest.chars().all(of_base64) && is_mixed
}

/// Part of a value: a digit tells a token from words that begin like one.
fn is_token(word: &str) -> bool {
    begins_like_one(word) && word.bytes().any(|byte| byte.is_ascii_digit())
}

/// A slash is none of these: parts of paths are no tokens.
fn is_between_words(c: char) -> bool {
    c.is_whitespace() || "\"'`,;:=&?|<>()[]{}".contains(c)
}

fn has_private_key(value: &str) -> bool {
    value.match_indices("-----BEGIN ").any(|(at, found)| {
        let kind = value[at + found.len()..].split("-----").next().unwrap_or_default();
        !PUBLIC_PEM.iter().any(|public| kind.contains(public))
    })
}

/// An address with a user and a password, `scheme://user:password@host`, or with a token for a
/// user; `user:password@tcp(host)` as the clients of a database write it.
fn has_password(value: &str) -> bool {
    let in_address = value.match_indices("://").any(|(at, found)| {
        let rest = &value[at + found.len()..];
        let address = rest.split([' ', '"', '\'', ',']).next().unwrap_or_default();
        let authority = address.split(['/', '?', '#']).next().unwrap_or_default();
        match (authority.rsplit_once('@'), authority.rsplit_once(':')) {
            (Some((user, _)), _) => is_user_with_password(user),
            // A password with a slash in it; a port is made of digits.
            (None, Some((_, after))) => {
                !after.bytes().all(|byte| byte.is_ascii_digit())
                    && !authority.ends_with(']')
                    && address.contains('@')
            }
            (None, None) => false,
        }
    });
    in_address
        || ["@tcp(", "@tcp6(", "@unix("].iter().any(|place| {
            let before = value.split_once(place).map(|(before, _)| before);
            before.is_some_and(is_user_with_password)
        })
}

fn is_user_with_password(user: &str) -> bool {
    user.split_once(':').is_some_and(|(_, password)| !password.is_empty()) || is_token(user)
}

/// `Password=x;`, `--token=x`, `?api_key=x`, `x-api-key=x,`, `-Da.storePassword=x`, `token = "x"`,
/// `X-Api-Key: x`, `{'password': 'x'}`.
fn has_setting(value: &str) -> bool {
    value.match_indices(['=', ':']).any(|(at, sign)| {
        let (before, after) = (&value[..at], &value[at + sign.len()..]);
        let bare = before.trim_end_matches(is_around);
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let (left, name) = bare.split_at(bare.trim_end_matches(is_of_name).len());
        let is_apart = bare.len() < before.len();
        let is_set = if sign == "=" && !is_apart {
            !after.is_empty() && !after.starts_with(is_between_settings)
        } else {
            // `$PWD: ` is of a prompt.
            !left.ends_with('$') && is_set_apart(is_apart, after)
        };
        is_set && is_secret_setting(name)
    })
}

fn is_between_settings(c: char) -> bool {
    c.is_whitespace() || ";&?,".contains(c)
}

/// What may stand around a sign.
fn is_around(c: char) -> bool {
    c.is_whitespace() || QUOTES.contains(&c)
}

/// Whether there is a value behind a sign that stands apart from the name or from the value. A colon
/// that does not is in paths and addresses, too.
fn is_set_apart(from_name: bool, after: &str) -> bool {
    // Other signs, such as `==` and `::`, begin so.
    if after.starts_with(['=', ':', '~']) || !from_name && !after.starts_with(is_around) {
        return false;
    }
    let after = after.trim_start().trim_start_matches(QUOTES);
    let is_behind = |c: char| is_between_settings(c) || QUOTES.contains(&c) || "}])".contains(c);
    let word = after.split(is_behind).next().unwrap_or_default();
    !["", "false", "null", "true"].contains(&word)
}

fn is_secret_setting(name: &str) -> bool {
    // Java has its settings behind this.
    let name = name.strip_prefix("-D").unwrap_or(name);
    let last = name.rsplit('.').next().unwrap_or_default();
    let last: String = last.chars().filter(char::is_ascii_alphanumeric).collect();
    let last = last.to_ascii_lowercase();
    SECRET_SETTINGS.iter().any(|end| last.ends_with(end)) || WHOLE_SETTINGS.contains(&&*last)
}

/// `--password x`, `-u user:x`, and openssl's `pass:x`.
fn has_option(value: &str) -> bool {
    let mut words = value.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let next = words.peek().map_or("", |next| next.trim_matches(['"', '\'']));
        let attached = word.strip_prefix("-u").or_else(|| word.strip_prefix("--user="));
        if (is_secret_option(word) && is_operand(next))
            || (USER_OPTIONS.contains(&word) && names_password(next))
            || attached.is_some_and(names_password)
            || word.strip_prefix("pass:").is_some_and(|password| !password.is_empty())
        {
            return true;
        }
    }
    false
}

fn is_secret_option(word: &str) -> bool {
    let Some(name) = word.strip_prefix('-') else { return false };
    let is_of_name = |c: &char| c.is_ascii_alphanumeric();
    let name: String = name.chars().filter(is_of_name).collect();
    let name = name.to_ascii_lowercase();
    SECRET_OPTIONS.iter().any(|end| name.ends_with(end)) && !name.ends_with("bypass")
}

/// What stands behind an option and is no further one; `id=x` is where docker finds a secret.
fn is_operand(word: &str) -> bool {
    !word.is_empty() && !word.starts_with('-') && !word.contains('=')
}

/// `user:password`; numbers are ids of users, or ports.
fn names_password(word: &str) -> bool {
    let word = word.trim_matches(['"', '\'']);
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    word.split_once(':').is_some_and(|(user, password)| {
        let is_port = is_number(password) && user.contains(['.', '[']);
        let is_place = password.is_empty() || password.starts_with(['/', ':']) || is_port;
        !is_place && !is_number(user)
    })
}

/// A JSON document with a secret in it.
fn in_json(value: &str) -> bool {
    value.starts_with(['{', '[']) && serde_json::from_str(value).is_ok_and(|json| holds_one(&json))
}

fn holds_one(json: &serde_json::Value) -> bool {
    match json {
        serde_json::Value::String(text) => is_secret("", text),
        serde_json::Value::Array(items) => items.iter().any(holds_one),
        serde_json::Value::Object(members) => members.iter().any(|(name, value)| {
            let is_value = name == "value" && members.get("name").is_some_and(names_one);
            let named = is_value || is_secret_name(&with_underscores(name));
            (named && is_set(value)) || holds_one(value)
        }),
        _ => false,
    }
}

/// What is empty, or a switch, is not.
fn is_set(value: &serde_json::Value) -> bool {
    let is_switch = matches!(value, serde_json::Value::Null | serde_json::Value::Bool(_));
    !is_switch && value.as_str() != Some("")
}

/// Of a pair, `{"name": "API_TOKEN", "value": "x"}`.
fn names_one(name: &serde_json::Value) -> bool {
    name.as_str().is_some_and(|name| is_secret_name(&with_underscores(name)))
}

/// `privateKey` as `private_Key`.
fn with_underscores(name: &str) -> String {
    let mut text = String::new();
    let mut was_small = false;
    for c in name.chars() {
        if was_small && c.is_ascii_uppercase() {
            text.push('_');
        }
        was_small = c.is_ascii_lowercase();
        text.push(c);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_known() {
        for (name, value) in [
            ("GITHUB_TOKEN", "x"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("AWS_ACCESS_KEY_ID", "x"),
            ("MY_API_KEY", "x"),
            ("npm_config__authToken", "x"),
            ("PGPASSWORD", "x"),
            ("PASSWORDS", "x"),
            ("DB_PASSWORDS", "x"),
            ("PASSWORD2", "x"),
            ("COOKIES", "x"),
            ("SESSIONCOOKIE", "x"),
            ("SSHPASS", "x"),
            ("DBPASS", "x"),
            ("MYSQLPWD", "x"),
            ("BASICAUTH", "x"),
            ("AUTHORIZATION", "x"),
            ("HTTP_AUTHORIZATION", "x"),
            ("PRIV_KEY", "x"),
            ("PRIVKEY", "x"),
            ("PRIVATE_KEYS", "x"),
            ("ACCESSKEY", "x"),
            ("AWSACCESSKEY", "x"),
            ("ACCESS_KEYS", "x"),
            ("API_KEY_2", "x"),
            ("API_KEYS", "x"),
            ("APIKEYS", "x"),
            ("MASTERKEY", "x"),
            ("CONNECTIONSTRING", "x"),
            ("PASSPHRASES", "x"),
            ("JWTS", "x"),
            ("MYSQL_OPTIONS", "--user me --password zzm"),
            ("MYSQL_OPTIONS", "--db-password 'zzm' -v"),
            ("TOOL_OPTIONS", "-v --api-key zzm"),
            ("TOOL_OPTIONS", "-storepass zzm"),
            ("CURL_OPTIONS", "-s -u me:zzm https://h"),
            ("CURL_OPTIONS", "-sS -ume:zzm"),
            ("CURL_OPTIONS", "--user 'me:zzm'"),
            ("CURL_OPTIONS", "--user=me:zzm"),
            ("OPENSSL_OPTIONS", "-passin pass:zzm"),
            ("MYSQL_PWD", "x"),
            ("DATABASE_URL", "postgres://me:pw@db/x"),
            ("DATABASE_URL", " postgres://me:p/w#1@db/x"),
            ("REMOTE", "https://ghp_0123456789abcdef@github.com/a/b"),
            ("DSN", "me:pw@tcp(db:3306)/x"),
            ("DSN", "host=db user=me password=pw"),
            ("AZURE", "Server=db;User Id=me;Password=pw;"),
            ("OPTIONS", "-Dstore.password=pw -Xmx1g"),
            ("OPTIONS", "-Dpassword=pw"),
            ("OPTIONS", "-Xmx1g -Dtoken=pw"),
            ("OPTIONS", "-Dpwd=pw"),
            ("OPTIONS", "-Djavax.net.ssl.trustStorePassword=x"),
            ("OPTIONS", "--db-password=x -v"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=abc123"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a,x-api-key=abc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a, X-Auth-Token=abc"),
            ("HEADER", "X-Api-Key: x"),
            ("HEADERS", "Accept: a\nPRIVATE-TOKEN: x"),
            ("SETTING", "token = \"x\""),
            ("SETTING", "a=b password = x"),
            ("SETTING", "password: x"),
            ("SETTINGS", "{'user': 'me', 'password': 'x'}"),
            ("SETTINGS", "{'password':'x'}"),
            ("SETTINGS", r#"{\"password\":\"x\"}"#),
            ("SETTINGS", r#"[{"name":"DB_PASSWORD","value":"x"}]"#),
            ("PAGE", "https://h/?client_secret=abc&x=y"),
            ("STORE", "AccountName=a;AccountKey=abc"),
            ("SOPS_AGE_KEY", "x"),
            ("NEW_RELIC_LICENSE_KEY", "x"),
            ("HARMLESS", "AGE-SECRET-KEY-1QQPQQ"),
            ("NOTIFY", "https://hooks.slack.com/services/T0/B0/x"),
            ("HARMLESS", "ghp_0123456789abcdef"),
            ("HARMLESS", "\t ghp_0123456789abcdef\n"),
            ("HEADERS", "Accept: x, Authorization: Bearer sk-0123456789abcdef"),
            ("GIT_HEADER", "AUTHORIZATION: basic eDp5"),
            ("HEADERS", "{\"Authorization\": \"token x\"}"),
            ("HARMLESS", "Basic bWU6cHc="),
            ("HARMLESS", "bearer 0123abcd"),
            ("KEYS", "-----BEGIN PRIVATE KEY-----"),
            ("KEYS", "a certificate: -----BEGIN CERTIFICATE-----, -----BEGIN RSA PRIVATE KEY-----"),
            ("ACCOUNT", r#"{"type": "service", "private_key": "x"}"#),
            ("ACCOUNT", r#" [{"a": [{"clientSecret": "x"}]}]"#),
            ("ACCOUNT", r#"{"a": "{\"privateKey\": \"x\"}"}"#),
            ("ACCOUNT", r#"{"a": "postgres://me:pw@db/x"}"#),
            ("ACCOUNT", r#"{"auths": {"registry": {"auth": "eDp5"}}}"#),
        ] {
            assert!(is_secret(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("PATH", "/usr/bin:/bin"),
            ("PWD", "/tmp"),
            ("OLDPWD", "/tmp"),
            ("KEYBOARD", "us"),
            ("MONKEY", "x"),
            ("HOTKEYS", "x"),
            ("KEYS", "x"),
            ("PUBLIC_KEY", "x"),
            ("LANGUAGE_KEY", "x"),
            ("PACKAGEKEY", "x"),
            ("GPG_TTY", "/dev/pts/0"),
            ("SSH_AUTH_SOCK", "/run/x"),
            ("SSH_ASKPASS", "/usr/bin/askpass"),
            ("BYPASS", "1"),
            ("MULTIPASS", "x"),
            ("PASSES", "3"),
            ("COMPASSES", "3"),
            ("PATH_INFO", "x"),
            ("PATHS", "/a"),
            ("TOKENIZERS_PARALLELISM", "false"),
            ("COOKIECUTTER_CONFIG", "/a"),
            ("SESSION", "x"),
            ("COMPAT", "1"),
            ("STARTPWD", "/a"),
            ("XAUTH", "/usr/bin/xauth"),
            ("AUTHORS", "me"),
            ("DOCKER_OPTIONS", "-u 1000:1000"),
            ("DOCKER_OPTIONS", "build --secret id=npm,src=.npmrc"),
            ("TOOL_OPTIONS", "--password-file /a --no-auth x"),
            ("TOOL_OPTIONS", "--password -v"),
            ("TOOL_OPTIONS", "--user me --host a:b"),
            ("PIP_OPTIONS", "-U pip:"),
            ("RSYNC_OPTIONS", "-u host:/srv"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-request-id=abc,x-team=b"),
            ("OPTIONS", "-Djavax.net.ssl.trustStore=/a -Dfile.encoding=UTF-8"),
            ("OPTIONS", "-Dtoken= -Dpassword"),
            ("OPTIONS", "--max-tokens=5 --token-count=3 --tokenizer=a"),
            ("OPTIONS", "--password-file=/a --cwd=/b"),
            ("OPTIONS", "--public-key=/a --key=b"),
            ("HEADERS", "password=,user=me"),
            ("SETTINGS", "{'password': '', 'token': null, 'secret': false}"),
            ("SETTINGS", r#"[{"name":"DB_PASSWORD","value":""},{"name":"a","value":"x"}]"#),
            ("PATHS", "/opt/secret:/opt/token:/a"),
            ("TEST", "[ $token == x ] && token =~ x; Token::x; secret:"),
            ("PROMPT", "[sudo] password for %u: "),
            ("PROMPT", "Password: "),
            ("PS1", "$PWD: \\$ "),
            ("TOKEN", ""),
            ("TOKEN", " "),
            ("AUTHOR", "me"),
            ("NOTE", "Basic settings"),
            ("NOTE", "authorization: "),
            ("NOTE", "see authorization::check"),
            ("GIT_AUTHOR_NAME", "me"),
            ("COMPASS", "north"),
            ("HTTP_PROXY", "http://proxy:3128"),
            ("URL", "https://me@host/a:b@c"),
            ("URL", "http://[::1]/a@b"),
            ("URL", "http://host:80/a@b https://host/x:y"),
            ("SECRETARIAT", "x"),
            ("CERT", "-----BEGIN CERTIFICATE-----\nMII"),
            ("FLAGS", "-DAUTH=1 -fdebug-prefix-map=/a=/b"),
            ("PYTHONPATH", "/x/sk-learn-1.2.3-extension/lib:/npm_1_modules_of_all"),
            ("LS_COLORS", "rs=0:di=01;34:*.pem=00;33"),
            ("JSON", r#"{"author": "me", "secure": true, "token": "", "tokens": false}"#),
            ("JSON", "{not json, password}"),
        ] {
            assert!(!is_secret(name, value), "{name}={value}");
        }
    }
}
