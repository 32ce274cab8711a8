//! Settings of charts, services and frameworks, and files whose texts only look like tokens.

use crate::harness::{SECRET, private_key};

/// A password as somebody who is careful has it.
const PASSWORD: &str = "xK9v-2mQ7";

/// How a key begins.
const KEY: &str = "MIIEpAIBAAKCAQEAx0k7";

pub(crate) fn planted() -> Vec<(&'static str, String)> {
    let files = [
        ("z/chart/values.yaml", format!("auth:\n  postgresPassword: \"{PASSWORD}\"\n")),
        ("z/chart/values-prod.yml", format!("redis:\n  password: {PASSWORD}\n")),
        ("z/chart/a/values.prod.yaml", format!("jwtSecret: {PASSWORD}\n")),
        ("z/chart/b/values.yaml", format!("url: \"postgres://app:{PASSWORD}@db/app\"\n")),
        ("z/go.env", format!("GOPROXY=https://me:{PASSWORD}@proxy.test\n")),
        ("z/a/go.env", format!("API_TOKEN={PASSWORD}\n")),
        (
            "z/m2/settings.xml",
            format!("<!-- <password>repopwd</password> --><password>{PASSWORD}</password>\n"),
        ),
        (
            "z/values/tls.yaml",
            format!("tls:\n  key: |\n    {}", private_key("RSA ").replace(SECRET, KEY)),
        ),
        ("z/tls.json", format!("{{\"key\": \"-----BEGIN EC PRIVATE KEY-----\\n{KEY}\\n\"}}")),
        ("z/b/tls.json", format!("[\"-----BEGIN PRIVATE KEY-----\", \"{KEY}\"]")),
        (
            "z/old.txt",
            format!("-----BEGIN RSA PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\n\r\n{KEY}\n"),
        ),
        ("z/alembic.ini", format!("sqlalchemy.url = postgresql://app:{PASSWORD}@db/app\n")),
        ("z/group/vault.yml", format!("vault_db_password: {PASSWORD}\n")),
        ("z/vault_prod.yaml", format!("api_key: '{PASSWORD}'\n")),
        ("z/prometheus.yml", format!("basic_auth:\n  password: {PASSWORD}\n")),
        ("z/a/prometheus.yaml", format!("authorization:\n  credentials: {PASSWORD}\n")),
        ("z/b/prometheus-prod.yml", format!("bearer_token: {PASSWORD}\n")),
        ("z/alertmanager.yml", format!("smtp_auth_password: '{PASSWORD}'\n")),
        (
            "z/a/alertmanager.yml",
            "slack_api_url: https://hooks.slack.com/services/T0123ABCD/B0/x\n".to_owned(),
        ),
        ("z/connection.properties", format!("password={PASSWORD}\n")),
        ("z/shop/settings.py", format!("SECRET_KEY = '{PASSWORD}$h!('\n")),
        (
            "z/a/settings.py",
            format!("DATABASES = {{\n    'default': {{'PASSWORD': '{PASSWORD}'}},\n}}\n"),
        ),
        (
            "z/b/settings.py",
            format!("CACHES = {{'LOCATION': 'redis://:x@h', 'a': 'redis://u:{PASSWORD}@h'}}\n"),
        ),
        ("z/c/settings.py", format!("SECRET_KEY: str = \"{PASSWORD}\"\n")),
        ("z/d/settings.py", format!("EMAIL_HOST_PASSWORD = \"{PASSWORD}\"\n")),
        // Tokens in files that hold designs and labels elsewhere.
        ("z/design/tokens.json", "{\"token\": \"8c1f0b7e2d9a4c6b8e3f\"}".to_owned()),
        ("z/a/tokens.json", "{\"key\": \"dGhpc0lzQVNlY3JldFZhbHVl\"}".to_owned()),
        ("z/b/token.json", "{\"token\": \"550e8400-e29b-41d4-a716-446655440000\"}".to_owned()),
        ("z/c/token.json", format!("{{\"access_token\": \"ya29.{PASSWORD}-a0AfH6SMBx\"}}")),
        (
            "z/d/auth.json",
            "{\"x\": {\"type\": \"api\", \"key\": \"sk-or-v1-0a9b8c7d6e\"}}".to_owned(),
        ),
        ("z/e/auth.json", "{\"a\": {\"auth\": \"bWU6aHVudGVyc2VjcmV0\"}}".to_owned()),
        ("z/i18n/secret.json", format!("{{\"secret_key\": \"{PASSWORD}\"}}")),
        ("z/a/secrets.json", "{\"password\": \"Tr0ub4dor&3\"}".to_owned()),
        ("z/b/secrets.json", "{\"api_token\": \"AbCdEfGhIjKlMnOp\"}".to_owned()),
        ("z/c/secrets.json", "{\"db_secret\": \"Server=a b;Password=k3yW9rdx8Qz;\"}".to_owned()),
        ("z/d/secrets.json", "{\"password\": \"123456\"}".to_owned()),
    ];
    let marked = |(name, text): (&'static str, String)| match name.rsplit('.').next() {
        Some("json") => (name, format!("{{\"note\": \"{SECRET}\", \"it\": {text}}}\n")),
        _ => (name, format!("{text}# {SECRET}\n")),
    };
    files.into_iter().map(marked).collect()
}

pub(crate) fn harmless() -> Vec<(&'static str, String)> {
    let files = [
        (
            "w/design/tokens.json",
            "{\"a\": {\"key\": \"color-primary-background-hover\", \"token\": \"var(--color-blue-500-a1b-hover)\"},
              \"b\": {\"key\": \"{color.base.gray.500.value}\", \"token\": \"md.sys.color.primary40.container\"},
              \"c\": {\"token\": \"--ds-space-100-negative\", \"key\": \"fontSizeHeadingLarge\"}}\n",
        ),
        ("w/design/token.json", "{\"token\": \"rgba(0,0,0,0.5)\", \"key\": \"#ff00aa11223344556677\"}\n"),
        (
            "w/i18n/secret.json",
            "{\"secret_key\": \"Secret key\", \"token\": \"Your token (min. 8 characters)\", \"password\": \"Passwort\",
              \"api_key\": \"API-Schlüssel\", \"api_secret\": \"Clé secrète\", \"access_token\": \"Zugriffstoken\",
              \"old_password\": \"Use base64url or utf8mb4\", \"client_secret\": \"密码\"}\n",
        ),
        ("w/i18n/de/auth.json", "{\"token\": \"Authentifizierungs-Token\", \"key\": \"Verschluesselungskennwort\"}\n"),
        (
            "w/chart/values.yaml",
            "auth:\n  password: \"\"\n  existingSecret: my-secret-2024\n  secretKeys:\n    adminPasswordKey: postgres-password1\n\
             db:\n  password: changeme\n  url: postgres://user:${DB_PASSWORD1}@db/app\nextra:\n  token: \"{{ .Values.x1token }}\"\n\
             \x20 secret: my-tls-2\n  apiKey: <api-key-1>\n  clientSecret: ${SECRET_2}\n",
        ),
        (
            "w/a/values.yaml",
            "# password: password1\n#   url: postgres://a:b1@c/d\ntls:\n  key: |\n    -----BEGIN PRIVATE KEY-----\n    ...\n\
             ## key: |-\n##    -----BEGIN RSA PRIVATE KEY-----\n##    ...\n##    -----END RSA PRIVATE KEY-----\n",
        ),
        (
            "w/api.examples.json",
            "{\"PrivateKey\": \"-----BEGIN DSA PRIVATE KEY-----<a very long string>-----END DSA PRIVATE KEY-----\"}\n",
        ),
        ("w/goroot/go.env", "GOPROXY=https://proxy.golang.org,direct\nGOSUMDB=sum.golang.org\n"),
        (
            "w/maven/conf/settings.xml",
            "<!-- <password>proxypass</password> <password>repopwd</password>\n\
             <privateKey>/path/to/private/key</privateKey> <passphrase>optional; leave empty if not used.</passphrase> -->\n",
        ),
        (
            "w/env/lib/python3.12/test/certdata/keycert.pem",
            "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\n",
        ),
        (
            "w/alembic.ini",
            "[alembic]\nscript_location = alembic\nsqlalchemy.url = driver://user:pass@localhost/dbname\n\
             # or postgresql://%(DB_USER)s:%(DB_PASS1)s@h/d\n",
        ),
        ("w/vault.yml", "$ANSIBLE_VAULT;1.1;AES256\n62313365396662343061393464336163\n"),
        ("w/a/vault.yml", "vault_db_password: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6231\nother_password: changeme\n"),
        (
            "w/prometheus.yml",
            "basic_auth:\n  username: x\n  password: <secret>\n  password_file: /run/secrets/prom1pass\n\
             authorization:\n  credentials_file: token1file\n  credentials: ${TOKEN1}\nbearer_token: changeme\n",
        ),
        ("w/alertmanager.yml", "slack_api_url: <secret>\nsmtp_auth_password: ''\n"),
        ("w/connection.properties", "password=${DB_PASSWORD1}\nuser=app\npassword=\n"),
        (
            "w/shop/settings.py",
            "SECRET_KEY = 'django-insecure-y7!#k0@abc123$x^'\nOTHER_SECRET = os.environ['SECRET_KEY_2']\n\
             A_TOKEN = os.environ.get(\"A_TOKEN\", \"default1234\")\nDATABASES = {'default': {'PASSWORD': ''}}\n\
             AUTH_PASSWORD_VALIDATORS = [{'NAME': 'django.contrib.auth.password_validation.MinimumLengthValidator'}]\n\
             API_KEY = config('API_KEY', default='changeme1')\nPASSWORD = '<password>'\nX_PASSWORD = \"changeme\"\n",
        ),
    ];
    files.into_iter().map(|(name, text)| (name, text.to_owned())).collect()
}
